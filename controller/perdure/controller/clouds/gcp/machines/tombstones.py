"""What became of deleted machines: the operations on them, and this process's memory of what they were.

A preempted machine is deleted at once, and its labels with it. Its operations, which Google keeps for two weeks, are
the only proof of what happened to it.
cloud.google.com/compute/docs/instances/create-use-spot#detect_preemption_of_spot_vms
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from perdure.controller.clouds.base.protocol import Instance, InstanceState, Owner
from perdure.controller.clouds.gcp.machines import parse
from perdure.recovery.reasons import Reason

MAX_TOMBSTONES = 20_000

# Kinds of operations that end a machine, or report why it ends. The first one in this order counts.
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
class Lifespan:
    """When a machine ran and why it ended. Times are epoch seconds."""

    launched_at: float | None = None
    ended_at: float | None = None
    reason: Reason | None = None  # None: no operation ends it


class GcpTombstones:
    """The machines that this process has seen, and the tombstones of those that have ended. Thread-safe.

    The oldest entries are dropped beyond `MAX_TOMBSTONES`.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: OrderedDict[str, Instance] = OrderedDict()
        self._tombstones: OrderedDict[str, Instance] = OrderedDict()

    def record_seen(self, instances: Iterable[Instance]) -> None:
        with self._lock:
            for instance in instances:
                _insert(self._seen, instance)

    def add(self, tombstone: Instance) -> None:
        """Store a tombstone, unless the time of the end is still unknown."""
        if tombstone.ended_at is None:
            return
        with self._lock:
            self._seen.pop(tombstone.id, None)
            _insert(self._tombstones, tombstone)

    def last_seen(self, id: str) -> Instance | None:
        with self._lock:
            return self._seen.get(id)

    def get(self, id: str) -> Instance | None:
        with self._lock:
            return self._tombstones.get(id)


def is_done(operation: Any) -> bool:
    """Whether the operation is over, successfully or not."""
    return bool(operation.status.name == "DONE")


def lifespan(operations: Iterable[Any]) -> Lifespan:
    """The lifespan of a machine from the operations on it, in any order. Failed operations do not count.

    Of a machine that was stopped and started, that since its last start.
    """
    launched: list[float] = []
    ended: dict[str, float | None] = {}
    successful = [operation for operation in operations if not operation.error.errors]
    restarts = (parse.epoch_s(one.start_time or one.insert_time) for one in successful if one.operation_type == "start")
    started_again_at = max((at for at in restarts if at is not None), default=None)
    for operation in successful:
        if operation.operation_type in ("insert", "start"):
            started_at = parse.epoch_s(operation.start_time or operation.insert_time)
            launched += [started_at] if started_at is not None else []
        elif operation.operation_type in ENDS:
            ended_at = parse.epoch_s(operation.end_time) if is_done(operation) else None
            if started_again_at is None or ended_at is None or ended_at > started_again_at:
                ended[operation.operation_type] = ended_at
    reasons = [ENDS[kind] for kind in ENDS if kind in ended]
    done = [at for at in ended.values() if at is not None]
    launched_at = min(launched, default=None) if started_again_at is None else started_again_at
    return Lifespan(launched_at, min(done, default=None), reasons[0] if reasons else None)


def tombstone(id: str, life: Lifespan, last_seen: Instance | None) -> Instance:
    """A machine that has ended. Without `last_seen`, its owner is unknown and only its id identifies it."""
    zone, _, name = id.partition("/")
    launched_at = last_seen.launched_at if last_seen and last_seen.launched_at is not None else life.launched_at
    return Instance(
        id=id,
        rank=parse.rank_of(name),
        owner=last_seen.owner if last_seen else Owner("", 0, 0, 0, ""),
        state=InstanceState.GONE,
        cloud="gcp",
        region=zone.rpartition("-")[0],
        zone=zone,
        instance_type=last_seen.instance_type if last_seen else "",
        ip=last_seen.ip if last_seen else None,
        launched_at=launched_at,
        ended_at=life.ended_at,
        gone_reason=life.reason,
    )


def _insert(entries: OrderedDict[str, Instance], instance: Instance) -> None:
    entries[instance.id] = instance
    entries.move_to_end(instance.id)
    if len(entries) > MAX_TOMBSTONES:
        entries.popitem(last=False)
