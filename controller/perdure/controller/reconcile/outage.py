"""Times in which reports of nodes could not be received: this process was suspended, or the database was unavailable.

Timers that run out in such a time say nothing about the nodes.
"""

from __future__ import annotations

import structlog
from sqlalchemy import Engine, update

from perdure.controller.runtime.clock import Clock
from perdure.controller.store.engine.database import UNAVAILABLE
from perdure.controller.store.tables import Meta

log = structlog.get_logger(__name__)

# The reconcile loop runs more often than this. A longer gap means that the process or its computer was suspended.
SUSPENDED_AFTER_S = 15.0

Metas = Meta.__table__  # type: ignore[attr-defined]


class SuspendDetector:
    """Detects that the loop that calls it was suspended. `speed`: of `clock`, relative to real time."""

    def __init__(self, clock: Clock, speed: float) -> None:
        self._speed = speed
        self.checked_at = clock.now()

    def was_suspended(self, now: float) -> bool:
        """Whether more than `SUSPENDED_AFTER_S` of real time has passed since the last call."""
        gap_s, self.checked_at = (now - self.checked_at) / self._speed, now
        if gap_s > SUSPENDED_AFTER_S:
            log.warning("controller.was_suspended", seconds=round(gap_s, 1))
        return gap_s > SUSPENDED_AFTER_S


class DatabaseOutage:
    """Tracks whether the database is unavailable. `mark_down` may be called from any thread, after a failed statement.

    `speed`: of `clock`, relative to real time.
    """

    def __init__(self, database: Engine, clock: Clock, speed: float) -> None:
        self._database = database
        self._clock = clock
        self._speed = speed
        self._since: float | None = None
        self._ended_at = float("-inf")
        self.was_long = False  # of the last outage, once it is over

    @property
    def is_down(self) -> bool:
        return self._since is not None

    def was_down_within(self, seconds: float) -> bool:
        """Whether the database is unavailable, or came back less than `seconds` ago (by the clock)."""
        return self.is_down or self._clock.now() - self._ended_at < seconds

    def mark_down(self) -> None:
        if self._since is None:
            self._since = self._clock.now()

    def probe(self) -> bool:
        """Whether the database is back. Probes with a write: a full disk can still be read."""
        try:
            with self._database.begin() as conn:
                conn.execute(update(Metas).where(Metas.c.name == "controller").values(value=Metas.c.value))
        except UNAVAILABLE as error:
            log.warning("database.unavailable", error=str(error))
            return False
        since, self._since = self._since, None
        self._ended_at = self._clock.now()
        away_s = 0.0 if since is None else (self._ended_at - since) / self._speed
        self.was_long = away_s > SUSPENDED_AFTER_S
        if self.was_long:
            log.warning("database.was_away", seconds=round(away_s, 1))
        return True
