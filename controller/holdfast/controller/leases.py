"""The daemon's lease: as long as it is renewed, its jobs are its own."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field

from sqlalchemy import Connection, Engine, insert, select, update

from holdfast.controller.clock import Clock
from holdfast.controller.crashpoints import reach
from holdfast.controller.store import jobs
from holdfast.controller.store.jobs import Claim
from holdfast.controller.store.tables import ControllerRow, Meta

Controllers = ControllerRow.__table__  # type: ignore[attr-defined]
Metas = Meta.__table__  # type: ignore[attr-defined]

LEASE_S = 10.0
_BATCH = 500


@dataclass(frozen=True)
class Lease:
    """One daemon's lease. `alone`: no other daemon can be running on this database."""

    database: Engine
    clock: Clock
    alone: bool
    owner: str = field(default_factory=lambda: uuid.uuid4().hex)

    def begin(self, endpoint: str) -> None:
        now = self.clock.now()
        row = {"id": self.owner, "started_at": now, "lease_until": now + LEASE_S, "endpoint": endpoint}
        with self.database.begin() as conn:
            conn.execute(insert(Controllers).values(**row))
        reach("lease.begun")

    def renew(self) -> None:
        until = self.clock.now() + LEASE_S
        with self.database.begin() as conn:
            conn.execute(update(Controllers).where(Controllers.c.id == self.owner).values(lease_until=until))
        reach("lease.renewed")

    def claim_all(self) -> list[Claim]:
        """Claim every unsettled job that no living daemon owns."""
        claims: list[Claim] = []
        while True:
            with self.database.begin() as conn:
                batch = jobs.claim(conn, self.owner, self.clock.now(), limit=_BATCH, take_all=self.alone)
            reach("lease.claimed")
            claims.extend(batch)
            if len(batch) < _BATCH:
                return claims


def remembered(conn: Connection, name: str, made: str) -> str:
    """The fact `name` of this database; `made` becomes it if there is none."""
    found: str | None = conn.execute(select(Metas.c.value).where(Metas.c.name == name)).scalar()
    if found is None:
        conn.execute(insert(Metas).values(name=name, value=made))
        return made
    return found


def remember(conn: Connection, name: str, value: str) -> None:
    """Make `value` the fact `name`."""
    if remembered(conn, name, value) != value:
        conn.execute(update(Metas).where(Metas.c.name == name).values(value=value))
