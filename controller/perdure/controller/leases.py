"""The daemon's lease: as long as it is renewed, its jobs are its own."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable

from sqlalchemy import Connection, Engine, Float, bindparam, delete, func, insert, select, update

from perdure.controller.clock import Clock
from perdure.controller.crashpoints import reach
from perdure.controller.store import connections, jobs, wake
from perdure.controller.store.database import DATABASE_NOW, as_of, database_now, head, insert_into
from perdure.controller.store.jobs import Claim
from perdure.controller.store.tables import ControllerRow, Meta
from perdure.controller.store.wake import Topic

Controllers = ControllerRow.__table__  # type: ignore[attr-defined]
Metas = Meta.__table__  # type: ignore[attr-defined]
_RENEW = (
    update(Controllers)
    .where(Controllers.c.id == bindparam("owner"))
    .values(lease_until=DATABASE_NOW + bindparam("length_s", type_=Float))
)

LEASE_S = 10.0
_BATCH = 2000
_DEAD_KEPT_S = 3600.0


class Lease:
    """One daemon's lease of `length_s`. `alone`: no other daemon can be running on this database.

    Two clocks: the database's says when others may take over, and all agree on it. This process's monotonic one, which
    runs on while the process is frozen, says when it must no longer act, and does so earlier: it counts from before
    each renewal was asked for. `speed`: of `clock` beside the monotonic one.
    """

    def __init__(
        self,
        database: Engine,
        clock: Clock,
        *,
        alone: bool,
        length_s: float = LEASE_S,
        monotonic: Callable[[], float] = time.monotonic,
        speed: float = 1.0,
    ) -> None:
        self.owner = uuid.uuid4().hex
        self.length_s = length_s
        self.monotonic = monotonic
        self._database = database
        self._clock = clock
        self._alone = alone
        self._speed = speed
        self._endpoint = ""
        self._held_until = 0.0

    def begin(self, endpoint: str, *, predecessor: str | None = None) -> None:
        """`predecessor`: the owner of a lease whose daemon is known to be dead, to be given back."""
        self._endpoint = endpoint
        self.confirm(self.renew())
        with self._database.begin() as conn:
            if predecessor is not None:
                _give_back(conn, predecessor)
            gone = database_now(conn, self._clock.now()) - _DEAD_KEPT_S
            conn.execute(delete(Controllers).where(Controllers.c.lease_until < gone))
            if self._alone:
                connections.release_others(conn, self.owner)
        reach("lease.begun")

    def renew(self) -> float:
        """Renew the lease in the database. Returns what `confirm` wants, once nothing lost is in hand any more."""
        asked_at = self.monotonic()
        with self._database.begin() as conn:
            length_s = self.length_s * self._speed
            renewed = conn.execute(_RENEW, {"owner": self.owner, "length_s": length_s, **as_of(self._clock.now())})
            if renewed.rowcount == 0:
                now = database_now(conn, self._clock.now())
                row = {"id": self.owner, "endpoint": self._endpoint, "knows": head()}
                times = {"started_at": now, "lease_until": now + length_s}
                conn.execute(insert(Controllers).values(**row, **times))
        reach("lease.renewed")
        return asked_at

    def confirm(self, asked_at: float) -> None:
        """Act again, for as long as the lease that was asked for at `asked_at` (monotonic) lasts."""
        self._held_until = asked_at + self.length_s

    def is_held(self) -> bool:
        """Whether this daemon may act on what it has in hand. False after it was frozen, or cut off, for too long."""
        return self._alone or self.monotonic() < self._held_until

    def end(self) -> None:
        """Give the lease back: others need not wait for it to run out."""
        with self._database.begin() as conn:
            _give_back(conn, self.owner)

    def claim_all(self) -> list[Claim]:
        """Claim every unsettled job that no living daemon owns."""
        claims: list[Claim] = []
        while True:
            with self._database.begin() as conn:
                batch = jobs.claim(conn, self.owner, self._clock.now(), limit=_BATCH, take_all=self._alone)
            reach("lease.claimed")
            claims.extend(batch)
            if len(batch) < _BATCH:
                return claims

    def own(self) -> list[Claim]:
        """All unsettled jobs of this daemon, by the database."""
        with self._database.connect() as conn:
            return jobs.claims_of(conn, self.owner)

    def others(self) -> int:
        """How many other daemons live."""
        with self._database.connect() as conn:
            living = Controllers.c.lease_until >= database_now(conn, self._clock.now())
            query = select(func.count()).where(living, Controllers.c.id != self.owner)
            return int(conn.execute(query).scalar_one())


def _give_back(conn: Connection, owner: str) -> None:
    conn.execute(update(Controllers).where(Controllers.c.id == owner).values(lease_until=0.0))
    connections.release_all_but(conn, owner, ())
    wake.notify(conn, Topic.CLAIM)


def remembered(conn: Connection, name: str, made: str) -> str:
    """The fact `name` of this database; `made` becomes it if there is none."""
    conn.execute(insert_into(conn, Metas).values(name=name, value=made).on_conflict_do_nothing())
    return str(conn.execute(select(Metas.c.value).where(Metas.c.name == name)).scalar_one())


def fact(conn: Connection, name: str) -> str | None:
    """The fact `name` of this database; None if there is none."""
    found = conn.execute(select(Metas.c.value).where(Metas.c.name == name)).scalar()
    return None if found is None else str(found)


def remember(conn: Connection, name: str, value: str) -> None:
    """Make `value` the fact `name`."""
    if remembered(conn, name, value) != value:
        conn.execute(update(Metas).where(Metas.c.name == name).values(value=value))
