"""Translates EC2's descriptions of instances."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from perdure.controller.clouds.aws.machines.launch_request import TAG
from perdure.controller.clouds.base import tags
from perdure.controller.clouds.base.protocol import Instance, InstanceState
from perdure.recovery.reasons import Reason

STATES = {
    "pending": InstanceState.PENDING,
    "running": InstanceState.RUNNING,
    "shutting-down": InstanceState.ENDING,
    "stopping": InstanceState.ENDING,
    "stopped": InstanceState.STOPPED,
    "terminated": InstanceState.GONE,
}
LIVING = tuple(name for name, state in STATES.items() if state is not InstanceState.GONE)

# docs.aws.amazon.com/AWSEC2/latest/APIReference/API_StateReason.html
GONE_REASONS = {
    "Server.SpotInstanceTermination": Reason.PREEMPTED,
    "Server.SpotInstanceShutdown": Reason.PREEMPTED,
    "Server.InsufficientInstanceCapacity": Reason.PREEMPTED,  # EC2 took the capacity back before the machine ran
    "Server.ScheduledStop": Reason.PREEMPTED,
    "Server.InternalError": Reason.MACHINE_CRASHED,
    "Client.InternalError": Reason.MACHINE_CRASHED,
    "Client.InstanceTerminated": Reason.MACHINE_CRASHED,
    "Client.VolumeLimitExceeded": Reason.MACHINE_CRASHED,
    "Client.InvalidSnapshot.NotFound": Reason.MACHINE_CRASHED,
    "Client.UserInitiatedShutdown": Reason.MACHINE_STOPPED,
    "Client.UserInitiatedHibernate": Reason.MACHINE_STOPPED,
    "Client.InstanceInitiatedShutdown": Reason.MACHINE_STOPPED,
}

_WHEN = re.compile(r"\((\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) (?:GMT|UTC)\)")


def instances(reservations: Iterable[Mapping[str, Any]], region: str) -> list[Instance]:
    """All instances of a response that have the owner's tags."""
    described = (
        instance(description, region)
        for reservation in reservations
        for description in reservation.get("Instances", ())
    )
    return [one for one in described if one is not None]


def instance(description: Mapping[str, Any], region: str) -> Instance | None:
    """None if it does not have the owner's tags.

    Billing is per second from launch to `ended_at`. Two rules of EC2 are not considered: it bills at least a minute,
    and nothing for a spot machine that it preempts within the first hour.
    """
    owner = tags.from_tags({tag["Key"]: tag["Value"] for tag in description.get("Tags", ())}, TAG)
    if owner is None:
        return None
    state = STATES.get(description["State"]["Name"], InstanceState.ENDING)
    is_off = state in (InstanceState.STOPPED, InstanceState.GONE)
    launched: datetime | None = description.get("LaunchTime")
    return Instance(
        id=description["InstanceId"],
        rank=description.get("AmiLaunchIndex", 0),
        owner=owner,
        state=state,
        cloud="aws",
        region=region,
        zone=description["Placement"]["AvailabilityZone"],
        instance_type=description["InstanceType"],
        ip=description.get("PrivateIpAddress") or None,
        launched_at=launched.timestamp() if launched else None,
        ended_at=ended_at(description.get("StateTransitionReason", "")) if is_off else None,
        gone_reason=gone_reason(description) if is_off or state is InstanceState.ENDING else None,
    )


def is_running_spot(description: Mapping[str, Any]) -> bool:
    """Whether EC2 can preempt it: a spot machine that is not shutting down."""
    is_spot: bool = description.get("InstanceLifecycle") == "spot"
    return is_spot and STATES.get(description["State"]["Name"]) in (InstanceState.PENDING, InstanceState.RUNNING)


def gone_reason(description: Mapping[str, Any]) -> Reason | None:
    """Why the instance ends; None if EC2 does not report it. The transition's reason may begin with a code, too."""
    code = (
        description.get("StateReason", {}).get("Code") or description.get("StateTransitionReason", "").partition(":")[0]
    )
    if not code:
        return None
    return GONE_REASONS.get(code, Reason.MACHINE_CRASHED)


def ended_at(transition: str) -> float | None:
    """Epoch seconds from `User initiated (2026-01-02 03:04:05 GMT)`; None if it contains no time."""
    match = _WHEN.search(transition)
    if match is None:
        return None
    return datetime.strptime(match[1], "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC).timestamp()
