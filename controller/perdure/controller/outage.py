"""Times in which no node could be heard, whatever the timers say afterwards: this process slept, or had no database."""

from __future__ import annotations

import structlog
from sqlalchemy import Engine, update

from perdure.controller.clock import Clock
from perdure.controller.store.database import UNAVAILABLE
from perdure.controller.store.tables import Meta

log = structlog.get_logger(__name__)

# The reconcile loop comes round more often: when so much time has passed unseen, the process or its computer slept.
_SLEPT_S = 15.0

Metas = Meta.__table__  # type: ignore[attr-defined]


class Sleep:
    """Tells when the loop that asks it has not come round for long. `speed`: of `clock` beside the world."""

    def __init__(self, clock: Clock, speed: float) -> None:
        self._speed = speed
        self.seen_at = clock.now()

    def is_over(self, now: float) -> bool:
        """Whether much time has passed since the last call."""
        slept_s, self.seen_at = (now - self.seen_at) / self._speed, now
        if slept_s > _SLEPT_S:
            log.warning("controller.slept", seconds=round(slept_s, 1))
        return slept_s > _SLEPT_S


class Outage:
    """The time without a database that is on, if any. `began` may be said from any thread, by whoever was refused."""

    def __init__(self, database: Engine, clock: Clock, speed: float) -> None:
        self._database = database
        self._clock = clock
        self._speed = speed
        self._since: float | None = None
        self._over_at = float("-inf")
        self.was_long = False  # the last one, once it is over

    @property
    def is_on(self) -> bool:
        return self._since is not None

    def was_on_within(self, seconds: float) -> bool:
        """Whether it is on, or ended less than that ago."""
        return self.is_on or self._clock.now() - self._over_at < seconds

    def began(self) -> None:
        if self._since is None:
            self._since = self._clock.now()

    def ends(self) -> bool:
        """Look whether it is over, by a write: a full disk lets itself be read."""
        try:
            with self._database.begin() as conn:
                conn.execute(update(Metas).where(Metas.c.name == "controller").values(value=Metas.c.value))
        except UNAVAILABLE as error:
            log.warning("database.refused", error=str(error))
            return False
        since, self._since = self._since, None
        self._over_at = self._clock.now()
        away_s = 0.0 if since is None else (self._over_at - since) / self._speed
        self.was_long = away_s > _SLEPT_S
        if self.was_long:
            log.warning("database.was_away", seconds=round(away_s, 1))
        return True
