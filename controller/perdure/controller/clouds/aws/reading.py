"""EC2's description of an instance, read as ours."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from perdure.controller.clouds import owners
from perdure.controller.clouds.aws.launching import TAG
from perdure.controller.clouds.base import Instance, InstanceState
from perdure.recovery.reasons import Reason

STATES = {
    "pending": InstanceState.PENDING,
    "running": InstanceState.RUNNING,
    "shutting-down": InstanceState.ENDING,
    "stopping": InstanceState.ENDING,
    "stopped": InstanceState.ENDING,  # runs nothing, but its disk is there and billed: it is to be ended still
    "terminated": InstanceState.GONE,
}
LIVING = tuple(name for name, state in STATES.items() if state is not InstanceState.GONE)

# docs.aws.amazon.com/AWSEC2/latest/APIReference/API_StateReason.html
GONE_REASONS = {
    "Server.SpotInstanceTermination": Reason.PREEMPTED,
    "Server.SpotInstanceShutdown": Reason.PREEMPTED,
    "Server.InsufficientInstanceCapacity": Reason.PREEMPTED,  # it was given, and taken back before it ran
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
    """All instances of an answer that carry our tags."""
    found = (read(one, region) for reservation in reservations for one in reservation.get("Instances", ()))
    return [instance for instance in found if instance is not None]


def read(told: Mapping[str, Any], region: str) -> Instance | None:
    """None if it does not carry our tags.

    Billing is per second from launch to `ended_at`. What EC2 adds to that is not counted: it bills a minute at least,
    and nothing for a spot machine that it takes within its first hour.
    """
    owner = owners.read({tag["Key"]: tag["Value"] for tag in told.get("Tags", ())}, TAG)
    if owner is None:
        return None
    state = STATES.get(told["State"]["Name"], InstanceState.ENDING)
    is_ending = state in (InstanceState.ENDING, InstanceState.GONE)
    launched: datetime | None = told.get("LaunchTime")
    return Instance(
        id=told["InstanceId"],
        rank=told.get("AmiLaunchIndex", 0),
        owner=owner,
        state=state,
        cloud="aws",
        region=region,
        zone=told["Placement"]["AvailabilityZone"],
        instance_type=told["InstanceType"],
        ip=told.get("PrivateIpAddress") or None,
        launched_at=launched.timestamp() if launched else None,
        ended_at=ended_at(told.get("StateTransitionReason", "")) if state is InstanceState.GONE else None,
        gone_reason=gone_reason(told) if is_ending else None,
    )


def is_running_spot(told: Mapping[str, Any]) -> bool:
    """Whether EC2 could take it back: a spot machine that has not begun to end."""
    is_spot: bool = told.get("InstanceLifecycle") == "spot"
    return is_spot and STATES.get(told["State"]["Name"]) in (InstanceState.PENDING, InstanceState.RUNNING)


def gone_reason(told: Mapping[str, Any]) -> Reason | None:
    """Why it goes; None when EC2 does not tell. The transition's reason begins with a code, too, now and then."""
    code = told.get("StateReason", {}).get("Code") or told.get("StateTransitionReason", "").partition(":")[0]
    if not code:
        return None
    return GONE_REASONS.get(code, Reason.MACHINE_CRASHED)


def ended_at(transition: str) -> float | None:
    """Epoch seconds from `User initiated (2026-01-02 03:04:05 GMT)`; None if it holds no time."""
    found = _WHEN.search(transition)
    if found is None:
        return None
    return datetime.strptime(found[1], "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC).timestamp()
