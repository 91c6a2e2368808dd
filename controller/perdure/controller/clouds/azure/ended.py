"""What Azure tells no more: a machine that was deleted, or taken, is not found from that moment on.

So whoever bought it, or has seen it, remembers it for a while, as EC2 does for its customers. A spot machine whose end
nobody here asked for was taken: its eviction policy is that it is deleted, and no crash deletes a machine. One that
somebody deleted by hand looks the same at that moment, and the job recovers the same way.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from perdure.controller.clock import Clock
from perdure.controller.clouds.base import VISIBLE_WITHIN_S, Instance, InstanceState
from perdure.recovery.reasons import Reason

REMEMBERED_S = 3600.0  # after its end


@dataclass(frozen=True)
class _Seen:
    """`at`: when it was bought (epoch seconds); None once Azure has shown it, which it then goes on doing."""

    instance: Instance
    is_spot: bool
    at: float | None
    end_asked: bool = False


class Ended:
    """The machines that this process knows of. Shared by threads; lost with the process."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._seen: dict[str, _Seen] = {}

    def bought(self, instances: Iterable[Instance], *, is_spot: bool) -> None:
        now = self._clock.now()
        with self._lock:
            self._forget_old(now)
            self._seen |= {i.id: _Seen(i, is_spot, now) for i in instances}

    def shown(self, instance: Instance, *, is_spot: bool) -> None:
        with self._lock:
            before = self._seen.get(instance.id)
            self._seen[instance.id] = _Seen(instance, is_spot, None, before is not None and before.end_asked)

    def asked(self, region: str, ids: Iterable[str]) -> None:
        """Their end was asked for."""
        with self._lock:
            for id in ids:
                if (one := self._seen.get(id)) and one.instance.region == region:
                    self._seen[id] = replace(one, end_asked=True)

    def forget(self, ids: Iterable[str]) -> None:
        """As if they had never been: their launch was taken back."""
        with self._lock:
            for id in ids:
                self._seen.pop(id, None)

    def known(self, ids: Iterable[str]) -> list[str]:
        """Those of `ids` that were bought or seen."""
        with self._lock:
            return [id for id in ids if id in self._seen]

    def not_found(self, region: str, ids: Sequence[str]) -> list[Instance]:
        """What is known of those that Azure does not find there: gone, or bought too short a time ago to be shown."""
        now = self._clock.now()
        with self._lock:
            return [told for id in ids if (told := self._without(region, id, now)) is not None]

    def _without(self, region: str, id: str, now: float) -> Instance | None:
        one = self._seen.get(id)
        if one is None or one.instance.region != region:
            return None
        if one.instance.state is not InstanceState.GONE:
            if one.at is not None and now - one.at < VISIBLE_WITHIN_S and not one.end_asked:
                return one.instance
            taken = one.is_spot and not one.end_asked
            reason = Reason.PREEMPTED if taken else Reason.MACHINE_STOPPED
            gone = replace(one.instance, state=InstanceState.GONE, ended_at=now, gone_reason=reason)
            self._seen[id] = one = replace(one, instance=gone)
        return one.instance

    def _forget_old(self, now: float) -> None:
        self._seen = {
            id: one
            for id, one in self._seen.items()
            if one.instance.ended_at is None or now - one.instance.ended_at < REMEMBERED_S
        }
