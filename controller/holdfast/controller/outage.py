"""Times in which the database took nothing: no node could be heard then, whatever the timers say afterwards."""

from __future__ import annotations

import structlog
from sqlalchemy import Engine, update

from holdfast.controller.clock import Clock
from holdfast.controller.store.database import UNAVAILABLE
from holdfast.controller.store.tables import Meta

log = structlog.get_logger(__name__)

Metas = Meta.__table__  # type: ignore[attr-defined]


class Outage:
    """The one that is on, if any. `began` may be said from any thread, by whoever the database refused."""

    def __init__(self, database: Engine, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._since: float | None = None
        self._over_at = float("-inf")

    @property
    def is_on(self) -> bool:
        return self._since is not None

    def was_on_within(self, seconds: float) -> bool:
        """Whether it is on, or ended less than that ago."""
        return self.is_on or self._clock.now() - self._over_at < seconds

    def began(self) -> None:
        if self._since is None:
            self._since = self._clock.now()

    def ended_after_s(self) -> float | None:
        """How long it was, if it is over now; else None. Asks by a write: a full disk lets itself be read."""
        try:
            with self._database.begin() as conn:
                conn.execute(update(Metas).where(Metas.c.name == "controller").values(value=Metas.c.value))
        except UNAVAILABLE as error:
            log.warning("database.refused", error=str(error))
            return None
        since, self._since = self._since, None
        self._over_at = self._clock.now()
        return None if since is None else self._clock.now() - since
