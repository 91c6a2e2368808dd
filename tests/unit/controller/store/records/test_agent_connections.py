"""The records of which daemon holds the connection of a node."""

from __future__ import annotations

from perdure.controller.peers.lease import Controllers
from perdure.controller.store.records import agent_connections
from support.helpers.leases import insert_lease
from unit.controller.world import World


def test_missing_nodes__are_those_without_a_live_connection(world: World) -> None:
    job = world.submit()
    world.run(job)
    place = ((job, 0, 1), 0)
    now = world.clock.now()
    insert_lease(world.database, world.clock, "other", 3600)
    with world.database.begin() as conn:
        assert agent_connections.missing_nodes(conn, "one", now) == [place]
        agent_connections.record(conn, place, controller="other", session_id="first", now=now)
        assert agent_connections.missing_nodes(conn, "one", now) == []
        agent_connections.record(conn, place, controller="other", session_id="second", now=now)
        assert not agent_connections.release(conn, [(place, "first")]), "the node has connected again"
        assert agent_connections.connected_nodes(conn, [job], now) == {place}
        conn.execute(Controllers.update().values(lease_until=0.0))
        assert agent_connections.missing_nodes(conn, "one", now) == [place]
