"""What became of machines that are no more: the operations on them, which Google keeps for two weeks.

A preempted machine is deleted at once, so its operations are the only proof of what happened to it.
cloud.google.com/compute/docs/instances/create-use-spot#detect_preemption_of_spot_vms
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from perdure.controller.clouds.base import Instance, InstanceState, Owner
from perdure.controller.clouds.gcp import reading
from perdure.recovery.reasons import Reason

# Kinds of operations that end a machine, or tell why it ends; what comes first in here counts.
ENDS = {
    "compute.instances.preempted": Reason.PREEMPTED,
    "compute.instances.terminateOnHostMaintenance": Reason.PREEMPTED,
    "compute.instances.hostError": Reason.MACHINE_CRASHED,
    "compute.instances.guestTerminate": Reason.MACHINE_STOPPED,
    "stop": Reason.MACHINE_STOPPED,
    "suspend": Reason.MACHINE_STOPPED,
    "delete": Reason.MACHINE_STOPPED,
}


@dataclass(frozen=True)
class Fate:
    """`reason`: why it ends, None while nothing says that it does. Times are epoch seconds."""

    launched_at: float | None = None
    ended_at: float | None = None
    reason: Reason | None = None


def is_done(operation: Any) -> bool:
    """Whether it is over, well or not."""
    return bool(operation.status.name == "DONE")


def fate(operations: Iterable[Any]) -> Fate:
    """What the operations on one machine come to, whatever their order. Those that failed changed nothing."""
    launched: list[float] = []
    ended: dict[str, float | None] = {}
    for one in operations:
        if one.error.errors:
            continue
        if one.operation_type == "insert":
            launched += [at for at in [reading.epoch_s(one.start_time or one.insert_time)] if at is not None]
        elif one.operation_type in ENDS:
            ended[one.operation_type] = reading.epoch_s(one.end_time) if is_done(one) else None
    reasons = [ENDS[kind] for kind in ENDS if kind in ended]
    done = [at for at in ended.values() if at is not None]
    return Fate(min(launched, default=None), min(done, default=None), reasons[0] if reasons else None)


def ending(instance: Instance, told: Fate) -> Instance:
    """A machine on its way out, with the reason."""
    return replace(instance, gone_reason=told.reason)


def tombstone(id: str, told: Fate, before: Instance | None) -> Instance:
    """A machine that is no more. `before`: as it was seen last, where anybody remembers.

    Without that, whose it was is told by its id alone.
    """
    zone, _, name = id.partition("/")
    launched_at = before.launched_at if before and before.launched_at is not None else told.launched_at
    return Instance(
        id=id,
        rank=reading.rank_of(name),
        owner=before.owner if before else Owner("", 0, 0, 0, ""),
        state=InstanceState.GONE,
        cloud="gcp",
        region=zone.rpartition("-")[0],
        zone=zone,
        instance_type=before.instance_type if before else "",
        ip=before.ip if before else None,
        launched_at=launched_at,
        ended_at=told.ended_at,
        gone_reason=told.reason,
    )
