"""Who of the nodes is there: written down where every daemon sees it, beside what a node is told when it calls."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from sqlalchemy import Engine

from perdure.controller.clock import Clock
from perdure.controller.store import connections, jobs
from perdure.controller.store.connections import Place
from perdure.recovery.directive import STOP, Directive, directive


@dataclass(frozen=True)
class Arrival:
    """What a node has to know when it calls: its last checkpoint message that was recorded, and what it shall do."""

    checkpoint_seq: int
    wanted: Directive


@dataclass(frozen=True)
class Attendance:
    """Keeps the connections of the daemon whose lease is `owner`. Every method raises what the database raises."""

    database: Engine
    clock: Clock
    owner: str

    def arrive(self, place: Place, token: str) -> Arrival:
        """A node called. Only one whose attempt is recorded as gone is told to stop."""
        return self.arrive_all([(place, token)])[0]

    def arrive_all(self, calls: Sequence[tuple[Place, str]]) -> list[Arrival]:
        """`arrive` for several, in one transaction."""
        ids = sorted({place[0][0] for place, _ in calls})
        with self.database.begin() as conn:
            attempts = jobs.load_attempts(conn, ids)
            known = [(place, token) for place, token in calls if place[0] in attempts]
            connections.hold_all(conn, known, controller=self.owner, now=self.clock.now())
            seqs = jobs.checkpoint_seqs(conn, ids)
        wanted = {key: directive(attempt) for key, attempt in attempts.items()}
        return [Arrival(seqs.get(place, 0), wanted.get(place[0], STOP)) for place, _ in calls]

    def leave(self, place: Place, token: str) -> bool:
        """A connection ended. False if the node has called again since."""
        return self.leave_all([(place, token)])[0]

    def leave_all(self, ended: Sequence[tuple[Place, str]]) -> list[bool]:
        """`leave` for several, in one transaction."""
        with self.database.begin() as conn:
            gone = connections.release_all(conn, ended)
        return [token in gone for _, token in ended]

    def hold_only(self, tokens: Iterable[str]) -> None:
        """Forget connections that ended while the database was away."""
        with self.database.begin() as conn:
            connections.release_all_but(conn, self.owner, tokens)

    def silent(self, jobs: Collection[int] | None = None) -> list[Place]:
        """Nodes of this daemon's jobs, of `jobs` or of all, that count as connected, and are so to nobody."""
        with self.database.connect() as conn:
            return connections.unheld(conn, self.owner, self.clock.now(), jobs)
