"""The lease of a daemon. While the daemon renews it, no other daemon may claim its jobs.

It also runs the claims of `store.records.job_claims` (which decide whose jobs may be taken over) for `ownership`.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable

from sqlalchemy import Connection, Engine, Float, bindparam, delete, func, insert, select, update

from perdure.controller.runtime.clock import Clock, since_boot
from perdure.controller.runtime.failpoints import failpoint
from perdure.controller.runtime.security.peer_address import PeerAddress
from perdure.controller.store.engine import pg_notify
from perdure.controller.store.engine.database import DATABASE_NOW, as_of, database_now, head_revision
from perdure.controller.store.engine.pg_notify import Topic
from perdure.controller.store.records import agent_connections, job_claims
from perdure.controller.store.records.job_claims import Claim
from perdure.controller.store.tables import ControllerRow

Controllers = ControllerRow.__table__  # type: ignore[attr-defined]
_RENEW = (
    update(Controllers)
    .where(Controllers.c.id == bindparam("owner"))
    .values(lease_until=DATABASE_NOW + bindparam("duration_s", type_=Float))
)

DEFAULT_DURATION_S = 10.0
_CLAIM_BATCH_SIZE = 2000
_EXPIRED_KEPT_S = 3600.0


class Lease:
    """The lease of one daemon, which lasts `duration_s` after each renewal.

    Two clocks matter. By the database's clock, on which all daemons agree, others may take over when the lease expires.
    By this computer's clock since boot, which runs on while the process is frozen or the computer is suspended, the
    daemon stops acting. That is earlier, because it counts from before the request for the renewal.

    `alone`: no other daemon can be running on this database. `speed`: of `clock`, relative to the monotonic clock.
    """

    def __init__(
        self,
        database: Engine,
        clock: Clock,
        *,
        alone: bool,
        duration_s: float = DEFAULT_DURATION_S,
        monotonic: Callable[[], float] = since_boot,
        speed: float = 1.0,
        peer: PeerAddress | None = None,
    ) -> None:
        """`peer`: how the other daemons reach this one."""
        self.owner = uuid.uuid4().hex
        self.duration_s = duration_s
        self.monotonic = monotonic
        self._database = database
        self._clock = clock
        self._alone = alone
        self._speed = speed
        self._peer = peer
        self._endpoint = ""
        self._held_until = 0.0

    def start(self, endpoint: str, *, previous_owner: str | None = None) -> None:
        """Insert the lease. `previous_owner`: a lease to release, because its daemon is known to be dead."""
        self._endpoint = endpoint
        self.mark_held(self.renew())
        with self._database.begin() as conn:
            if previous_owner is not None:
                _release(conn, previous_owner)
            expired = database_now(conn, self._clock.now()) - _EXPIRED_KEPT_S
            conn.execute(delete(Controllers).where(Controllers.c.lease_until < expired))
            if self._alone:
                agent_connections.release_other_controllers(conn, self.owner)
        failpoint("lease.begun")

    def renew(self) -> float:
        """Renew the lease in the database. Returns the argument for `mark_held`.

        Before that call, a daemon whose lease had expired must drop the jobs that it has lost.
        """
        requested_at = self.monotonic()
        with self._database.begin() as conn:
            duration_s = self.duration_s * self._speed
            renewed = conn.execute(_RENEW, {"owner": self.owner, "duration_s": duration_s, **as_of(self._clock.now())})
            if renewed.rowcount == 0:
                now = database_now(conn, self._clock.now())
                row = {"id": self.owner, "endpoint": self._endpoint, "schema_revision": head_revision()}
                times = {"started_at": now, "lease_until": now + duration_s}
                peer = {"peer_url": self._peer.url, "peer_certificate": self._peer.certificate} if self._peer else {}
                conn.execute(insert(Controllers).values(**row, **times, **peer))
        failpoint("lease.renewed")
        return requested_at

    def mark_held(self, requested_at: float) -> None:
        """Let the daemon act until the lease that was requested at `requested_at` (monotonic clock) expires."""
        self._held_until = requested_at + self.duration_s

    def is_held(self) -> bool:
        """Whether this daemon may act on its jobs. False after it was frozen, or without a database, for too long."""
        return self._alone or self.monotonic() < self._held_until

    def release(self) -> None:
        """End the lease now, so that others need not wait until it expires."""
        with self._database.begin() as conn:
            _release(conn, self.owner)

    def claim_all(self) -> list[Claim]:
        """Claim every job that is not finalized and that no live daemon owns."""
        claimed: list[Claim] = []
        while True:
            with self._database.begin() as conn:
                batch = job_claims.claim(
                    conn, self.owner, self._clock.now(), limit=_CLAIM_BATCH_SIZE, take_all=self._alone
                )
            failpoint("lease.claimed")
            claimed.extend(batch)
            if len(batch) < _CLAIM_BATCH_SIZE:
                return claimed

    def owned_claims(self) -> list[Claim]:
        """This daemon's claims in the database, on all jobs that are not finalized."""
        with self._database.connect() as conn:
            return job_claims.claims_of(conn, self.owner)

    def live_peers(self) -> int:
        """The number of other daemons whose leases have not expired."""
        with self._database.connect() as conn:
            is_live = Controllers.c.lease_until >= database_now(conn, self._clock.now())
            query = select(func.count()).where(is_live, Controllers.c.id != self.owner)
            return int(conn.execute(query).scalar_one())


def _release(conn: Connection, owner: str) -> None:
    conn.execute(update(Controllers).where(Controllers.c.id == owner).values(lease_until=0.0))
    agent_connections.release_except(conn, owner, ())
    pg_notify.notify(conn, Topic.CLAIM)
