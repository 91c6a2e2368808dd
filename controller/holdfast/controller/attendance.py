"""Who of the nodes is there: written down where every daemon sees it, beside what a node is told when it calls."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import Engine

from holdfast.controller.clock import Clock
from holdfast.controller.store import connections, jobs
from holdfast.controller.store.connections import Place
from holdfast.recovery.directive import STOP, Directive, directive


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
        key, rank = place
        with self.database.begin() as conn:
            attempt = jobs.load_attempts(conn, [key[0]]).get(key)
            if attempt is not None:
                connections.hold(conn, place, controller=self.owner, token=token, now=self.clock.now())
            return Arrival(jobs.checkpoint_seq(conn, key, rank), directive(attempt) if attempt else STOP)

    def leave(self, place: Place, token: str) -> bool:
        """A connection ended. False if the node has called again since."""
        with self.database.begin() as conn:
            return connections.release(conn, place, token)

    def hold_only(self, tokens: Iterable[str]) -> None:
        """Forget connections that ended while the database was away."""
        with self.database.begin() as conn:
            connections.release_all_but(conn, self.owner, tokens)

    def silent(self) -> list[Place]:
        """Nodes of this daemon's jobs that count as connected, and are so to nobody."""
        with self.database.connect() as conn:
            return connections.unheld(conn, self.owner, self.clock.now())
