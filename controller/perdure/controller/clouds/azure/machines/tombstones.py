"""Remembers machines that Azure has deleted: after its end, Azure does not describe a machine any more.

This process remembers the machines that it has launched or seen, for a while after their end. A spot machine that
disappears without a call of `terminate` was preempted: its eviction policy deletes it, and a crash deletes no machine.
A machine that was deleted by hand looks the same, and the job recovers in the same way.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from perdure.controller.clouds.base.protocol import VISIBLE_WITHIN_S, Instance, InstanceState
from perdure.controller.runtime.clock import Clock
from perdure.recovery.reasons import Reason

RETENTION_S = 3600.0  # after the machine's end


@dataclass(frozen=True)
class _Seen:
    """A machine that was launched or seen."""

    instance: Instance
    is_spot: bool
    launched_at: float | None  # epoch seconds; None once Azure has listed it
    is_terminated: bool = False  # `terminate` was called


class AzureTombstones:
    """The machines that this process has launched or seen. Thread-safe; lost with the process."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._seen: dict[str, _Seen] = {}

    def record_launched(self, instances: Iterable[Instance], *, is_spot: bool) -> None:
        now = self._clock.now()
        with self._lock:
            self._forget_old(now)
            self._seen |= {i.id: _Seen(i, is_spot, now) for i in instances}

    def record_seen(self, instance: Instance, *, is_spot: bool) -> None:
        with self._lock:
            before = self._seen.get(instance.id)
            self._seen[instance.id] = _Seen(instance, is_spot, None, before is not None and before.is_terminated)

    def record_termination(self, region: str, ids: Iterable[str]) -> None:
        with self._lock:
            for id in ids:
                if (one := self._seen.get(id)) and one.instance.region == region:
                    self._seen[id] = replace(one, is_terminated=True)

    def forget(self, ids: Iterable[str]) -> None:
        """Forget machines whose launch was undone."""
        with self._lock:
            for id in ids:
                self._seen.pop(id, None)

    def known(self, ids: Iterable[str]) -> list[str]:
        """Those of `ids` that were launched or seen."""
        with self._lock:
            return [id for id in ids if id in self._seen]

    def describe_missing(self, region: str, ids: Sequence[str]) -> list[Instance]:
        """The machines of `ids` that Azure does not find: gone, or launched too recently to be listed."""
        now = self._clock.now()
        with self._lock:
            return [instance for id in ids if (instance := self._describe_missing(region, id, now)) is not None]

    def _describe_missing(self, region: str, id: str, now: float) -> Instance | None:
        seen = self._seen.get(id)
        if seen is None or seen.instance.region != region:
            return None
        if seen.instance.state is not InstanceState.GONE:
            is_new = seen.launched_at is not None and now - seen.launched_at < VISIBLE_WITHIN_S
            if is_new and not seen.is_terminated:
                return seen.instance
            is_preempted = seen.is_spot and not seen.is_terminated
            reason = Reason.PREEMPTED if is_preempted else Reason.MACHINE_STOPPED
            gone = replace(seen.instance, state=InstanceState.GONE, ended_at=now, gone_reason=reason)
            self._seen[id] = seen = replace(seen, instance=gone)
        return seen.instance

    def _forget_old(self, now: float) -> None:
        self._seen = {
            id: one
            for id, one in self._seen.items()
            if one.instance.ended_at is None or now - one.instance.ended_at < RETENTION_S
        }
