"""Which nodes are connected, and to which controller: recorded in the database, where every controller sees it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from sqlalchemy import Engine

from perdure.controller.runtime.clock import Clock
from perdure.controller.store.records import agent_connections, jobs
from perdure.controller.store.records.agent_connections import Place
from perdure.recovery.directive import STOP, Directive, directive_for


@dataclass(frozen=True)
class WelcomeState:
    """What a node receives when it connects."""

    checkpoint_seq: int  # of its last checkpoint message that was recorded
    directive: Directive


@dataclass(frozen=True)
class ConnectionRecords:
    """Records the connections of one controller. Every method raises what the database raises."""

    database: Engine
    clock: Clock
    owner: str  # the lease of this controller

    def mark_connected(self, place: Place, session_id: str) -> WelcomeState:
        """Record a connection. The directive is STOP only if the attempt is recorded as gone."""
        return self.mark_connected_all([(place, session_id)])[0]

    def mark_connected_all(self, calls: Sequence[tuple[Place, str]]) -> list[WelcomeState]:
        """`mark_connected` for each of `calls`, in one transaction; the results are in their order."""
        ids = sorted({place[0][0] for place, _ in calls})
        with self.database.begin() as conn:
            attempts = jobs.load_attempts(conn, ids)
            live = [(place, session_id) for place, session_id in calls if place[0] in attempts]
            agent_connections.record_all(conn, live, controller=self.owner, now=self.clock.now())
            seqs = jobs.checkpoint_seqs(conn, ids)
        directives = {key: directive_for(attempt) for key, attempt in attempts.items()}
        return [WelcomeState(seqs.get(place, 0), directives.get(place[0], STOP)) for place, _ in calls]

    def mark_disconnected(self, place: Place, session_id: str) -> bool:
        """Record that a connection ended. Returns False if the node has reconnected since."""
        return self.mark_disconnected_all([(place, session_id)])[0]

    def mark_disconnected_all(self, ended: Sequence[tuple[Place, str]]) -> list[bool]:
        """`mark_disconnected` for each of `ended`, in one transaction; the results are in their order."""
        with self.database.begin() as conn:
            gone = agent_connections.release(conn, ended)
        return [session_id in gone for _, session_id in ended]

    def prune_except(self, session_ids: Iterable[str]) -> None:
        """Delete the records of all other connections: those that ended while the database was unavailable."""
        with self.database.begin() as conn:
            agent_connections.release_except(conn, self.owner, session_ids)

    def disconnected_nodes(self, jobs: Collection[int] | None = None) -> list[Place]:
        """Nodes of this controller's jobs (of `jobs`, or of all) that count as connected but are connected nowhere."""
        with self.database.connect() as conn:
            return agent_connections.missing_nodes(conn, self.owner, self.clock.now(), jobs)
