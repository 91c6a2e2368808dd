"""Claims of jobs."""

from __future__ import annotations

from perdure.controller.peers.lease import Controllers
from perdure.controller.store.records import job_claims
from support.helpers.leases import insert_lease
from unit.controller.world import World


def test_claim__takes_only_jobs_whose_lease_expired(world: World) -> None:
    job = world.submit()
    insert_lease(world.database, world.clock, "one", 3600)
    insert_lease(world.database, world.clock, "other", 3600)
    with world.database.begin() as conn:
        assert job_claims.claim(conn, "other", world.clock.now(), limit=10) == []
        conn.execute(Controllers.update().where(Controllers.c.id == "one").values(lease_until=0.0))
        assert [c.job_id for c in job_claims.claim(conn, "other", world.clock.now(), limit=10)] == [job]
        assert job_claims.claim(conn, "other", world.clock.now(), limit=10) == []
