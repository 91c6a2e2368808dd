"""Leases of daemons that a test does not run."""

from __future__ import annotations

from sqlalchemy import Engine, insert, select

from perdure.controller.peers.lease import Controllers
from perdure.controller.runtime.clock import Clock
from perdure.controller.store.engine.database import database_now


def insert_lease(database: Engine, clock: Clock, owner: str, duration_s: float) -> None:
    """Insert a lease that expires after `duration_s`."""
    with database.begin() as conn:
        now = conn.execute(select(database_now(conn, clock.now()))).scalar_one()
        row = {"id": owner, "started_at": now, "lease_until": now + duration_s, "endpoint": "", "schema_revision": ""}
        conn.execute(insert(Controllers).values(**row))
