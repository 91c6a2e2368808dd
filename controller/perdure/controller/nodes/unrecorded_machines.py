"""Machines of this installation that its database has no record of: an older copy was accepted or restored.

They are named in the log and in `perdure controller status` before they are terminated.
"""

from __future__ import annotations

import threading
from dataclasses import asdict, dataclass
from typing import Any

import structlog

from perdure.controller.runtime.keys import AttemptKey

log = structlog.get_logger(__name__)

_MAX_KEPT = 100


@dataclass(frozen=True)
class UnrecordedMachine:
    """`cloud` and `instance` are empty for one that only connected: a cloud's list names it later."""

    cloud: str
    instance: str
    job_id: int
    task: int
    generation: int


class UnrecordedMachines:
    """The newest unknown machines of this daemon's life. From any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._machines: dict[UnrecordedMachine, None] = {}
        #: How many there were, with those that are not kept any more.
        self.total = 0

    def name(self, key: AttemptKey, *, cloud: str = "", instance: str = "") -> bool:
        """Name a machine. False if it was named before."""
        machine = UnrecordedMachine(cloud, instance, *key)
        with self._lock:
            if machine in self._machines:
                return False
            self._machines[machine] = None
            self.total += 1
            if len(self._machines) > _MAX_KEPT:
                self._machines.pop(next(iter(self._machines)))
        job_id, task, generation = key
        where = {"cloud": cloud, "instance": instance} if instance else {}
        log.warning("machine.unknown", job=job_id, task=task, generation=generation, **where)
        return True

    def listed(self) -> list[dict[str, Any]]:
        """Those that are kept, the oldest first."""
        with self._lock:
            return [asdict(machine) for machine in self._machines]
