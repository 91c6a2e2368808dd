"""What this process knows of machines that Compute Engine has forgotten: a deleted one's labels are gone with it."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable

from perdure.controller.clouds.base import Instance

MOST = 20_000


class Memory:
    """Shared by threads. The oldest is forgotten when it is full."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: OrderedDict[str, Instance] = OrderedDict()
        self._buried: OrderedDict[str, Instance] = OrderedDict()

    def remember(self, seen: Iterable[Instance]) -> None:
        with self._lock:
            for one in seen:
                _put(self._seen, one)

    def bury(self, gone: Instance) -> None:
        """It has ended for good; if it is not known when, that is still to come."""
        if gone.ended_at is None:
            return
        with self._lock:
            self._seen.pop(gone.id, None)
            _put(self._buried, gone)

    def last_seen(self, id: str) -> Instance | None:
        with self._lock:
            return self._seen.get(id)

    def tombstone(self, id: str) -> Instance | None:
        with self._lock:
            return self._buried.get(id)


def _put(kept: OrderedDict[str, Instance], one: Instance) -> None:
    kept[one.id] = one
    kept.move_to_end(one.id)
    if len(kept) > MOST:
        kept.popitem(last=False)
