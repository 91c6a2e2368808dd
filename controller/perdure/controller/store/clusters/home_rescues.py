"""The homes of clusters whose machines cannot be stopped: they are saved to a bucket before the machines end.

Rows exist from the refusal of the stop until the machines are gone, one for each rank. While they do, the node specs of
the machines say where to save the home, and each node reports once what has become of that.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Connection, Engine, delete, or_, select, update

from perdure.controller.store.clusters.cluster_homes import Home, Rescue
from perdure.controller.store.engine.database import insert_into
from perdure.controller.store.records.agent_connections import Place
from perdure.controller.store.records.clusters import DOWN, Cluster

LIMIT_S = 900.0
"""For how long machines are kept for it."""


@dataclass(frozen=True)
class HomeRescue:
    """What has become of it so far. `saved`: ranks. `problems`: one sentence for each rank that failed."""

    begun_at: float
    num_nodes: int
    saved: Collection[int]
    problems: Sequence[str]
    bucket: str
    bucket_problem: str  # why there is no bucket yet, if one was tried since then
    is_needed: bool  # the cluster is not down

    def outcome(self, now: float) -> str | None:
        """What has been saved, in one sentence; None as long as more may be."""
        if not self.is_needed:
            return "the cluster is down"
        count, of_all = len(self.saved), f"of {self.num_nodes} home folders"
        if count == self.num_nodes:
            return f"the home folders were saved to {self.bucket}"
        if count + len(self.problems) == self.num_nodes:
            return f"{count} {of_all} were saved to {self.bucket}: {'; '.join(dict.fromkeys(self.problems))}"
        if now - self.begun_at >= LIMIT_S:
            why = f": {self.bucket_problem}" if self.bucket_problem else ""
            return f"{count} {of_all} were saved within {LIMIT_S / 60:g} minutes{why}"
        return None


def begin(conn: Connection, cluster_id: int, job_id: int, generation: int, num_nodes: int, now: float) -> None:
    """Record that the homes of an attempt's machines must be saved. Repeating it changes nothing.

    Rows of another attempt are replaced: a controller of an older version has ended its machines, and left them.
    """
    is_other = or_(Rescue.c.job_id != job_id, Rescue.c.generation != generation)
    conn.execute(delete(Rescue).where(Rescue.c.cluster_id == cluster_id, is_other))
    rows = [
        {"cluster_id": cluster_id, "rank": rank, "job_id": job_id, "generation": generation, "begun_at": now}
        for rank in range(num_nodes)
    ]
    conn.execute(insert_into(conn, Rescue).on_conflict_do_nothing(), rows)


def fail(conn: Connection, cluster_id: int, problem: str) -> None:
    """Record why no home of a cluster can be saved."""
    is_open = (Rescue.c.saved_at.is_(None), Rescue.c.problem == "")
    conn.execute(update(Rescue).where(Rescue.c.cluster_id == cluster_id, *is_open).values(problem=problem))


def end(conn: Connection, cluster_id: int) -> None:
    """The machines are gone."""
    conn.execute(delete(Rescue).where(Rescue.c.cluster_id == cluster_id))


def of_attempt(conn: Connection, cluster_id: int, job_id: int, generation: int) -> HomeRescue | None:
    """The rescue of the homes of an attempt's machines, if it was begun."""
    is_its = (Rescue.c.cluster_id == cluster_id, Rescue.c.job_id == job_id, Rescue.c.generation == generation)
    rows = list(conn.execute(select(Rescue).where(*is_its).order_by(Rescue.c.rank)))
    if not rows:
        return None
    home = conn.execute(select(Home).where(Home.c.cluster_id == cluster_id, Home.c.removed_at.is_(None))).first()
    wanted = conn.execute(select(Cluster.c.wanted).where(Cluster.c.id == cluster_id)).scalar()
    return HomeRescue(
        begun_at=rows[0].begun_at,
        num_nodes=len(rows),
        saved=[row.rank for row in rows if row.saved_at is not None],
        problems=[row.problem for row in rows if row.problem],
        bucket=f"bucket {home.bucket} ({home.store})" if home else "a bucket",
        bucket_problem=home.problem if home and home.tried_at >= rows[0].begun_at else "",
        is_needed=wanted not in (None, DOWN),
    )


def reader(database: Engine) -> Callable[[int, int, int], HomeRescue | None]:
    """`of_attempt` with a connection of its own."""

    def read(cluster_id: int, job_id: int, generation: int) -> HomeRescue | None:
        with database.connect() as conn:
            return of_attempt(conn, cluster_id, job_id, generation)

    return read


def is_asked(conn: Connection, place: Place) -> bool:
    """Whether a node must save its home now, and has not reported yet what has become of that."""
    where = (*_is(place), Rescue.c.saved_at.is_(None), Rescue.c.problem == "")
    return conn.execute(select(Rescue.c.rank).where(*where)).first() is not None


def report(conn: Connection, place: Place, problem: str, now: float) -> None:
    """Record that a node has saved its home, or what has prevented it. A node that is not asked is ignored."""
    values = {"problem": problem} if problem else {"saved_at": now}
    conn.execute(update(Rescue).where(*_is(place), Rescue.c.saved_at.is_(None)).values(**values))


def _is(place: Place) -> tuple[ColumnElement[bool], ...]:
    (job_id, _, generation), rank = place
    return Rescue.c.job_id == job_id, Rescue.c.generation == generation, Rescue.c.rank == rank
