"""Which daemon holds which node's connection: by this, and not by whose job it is, a node counts as heard or silent."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import cache
from typing import Any

from sqlalchemy import Connection, and_, bindparam, delete, exists, select

from perdure.controller.store import wake
from perdure.controller.store.database import DATABASE_NOW, as_of, insert_for
from perdure.controller.store.jobs import Attempt, Controller, Job, Node
from perdure.controller.store.tables import ConnectionRow
from perdure.controller.store.wake import Topic
from perdure.recovery.statuses import AttemptState

Connections = ConnectionRow.__table__  # type: ignore[attr-defined]

_PLACE = ("job_id", "task_index", "generation", "rank")
_LIVING = (
    select(*(Connections.c[name] for name in _PLACE))
    .join(Controller, Controller.c.id == Connections.c.controller)
    .where(Controller.c.lease_until >= DATABASE_NOW)
)
_LIVING_IDS = select(Controller.c.id).where(Controller.c.lease_until >= DATABASE_NOW)
# Looked up by key, or hashed: a join with a subquery is one of all with all while the statistics are young.
_IS_HELD = (
    exists()
    .where(*(Connections.c[name] == Node.c[name] for name in _PLACE))
    .where(Connections.c.controller.in_(bindparam("living", expanding=True)))
)
_UNHELD = (
    select(*(Node.c[name] for name in _PLACE))
    .join(Job, Job.c.id == Node.c.job_id)
    .join(Attempt, and_(*(Node.c[n] == Attempt.c[n] for n in _PLACE[:3])))
    .where(Job.c.owner == bindparam("owner"), Job.c.settled.is_(False), Attempt.c.state != AttemptState.GONE.value)
    .where(Node.c.connected, ~_IS_HELD)
)
_UNHELD_OF = _UNHELD.where(Job.c.id.in_(bindparam("job_ids", expanding=True)))
_HELD_BY = select(Connections.c.token).where(Connections.c.controller == bindparam("controller"))
_ENDED = (
    Connections.c.job_id.in_(bindparam("job_ids", expanding=True)),
    Connections.c.token.in_(bindparam("tokens", expanding=True)),
)
_LOCK = select(Connections.c.token).where(*_ENDED).order_by(*(Connections.c[name] for name in _PLACE)).with_for_update()
_RELEASE = delete(Connections).where(*_ENDED).returning(Connections.c.job_id, Connections.c.token)

Place = tuple[tuple[int, int, int], int]
"""An attempt and a rank of it"""


def hold(conn: Connection, place: Place, *, controller: str, token: str, now: float) -> None:
    """The node is connected to `controller`, by the connection `token`; an older connection of it counts no more."""
    hold_all(conn, [(place, token)], controller=controller, now=now)


def hold_all(conn: Connection, held: Sequence[tuple[Place, str]], *, controller: str, now: float) -> None:
    """`hold` for several connections, given in the order in which they were made.

    Rows are written in the order of their nodes, as everybody does: so no two wait for each other.
    """
    rows = [
        {**dict(zip(_PLACE, (*key, rank), strict=True)), "controller": controller, "token": token, "since": now}
        for (key, rank), token in sorted(held, key=lambda one: one[0])
    ]
    if rows:
        conn.execute(_hold(conn.dialect.name), rows)


@cache
def _hold(dialect: str) -> Any:
    new = insert_for(dialect, Connections)
    held = {name: new.excluded[name] for name in ("controller", "token", "since")}
    return new.on_conflict_do_update(index_elements=list(_PLACE), set_=held)


def release_all(conn: Connection, ended: Sequence[tuple[Place, str]]) -> set[str]:
    """These connections (tokens) are over. Returns those whose node has not called again, here or elsewhere: it is
    silent."""
    of = {"job_ids": sorted({place[0][0] for place, _ in ended}), "tokens": [token for _, token in ended]}
    if len(ended) > 1 and conn.dialect.name == "postgresql":
        conn.execute(_LOCK, of)  # in the order in which `hold_all` writes
    rows = conn.execute(_RELEASE, of).all()
    if rows:
        wake.notify_all(conn, Topic.SILENCE, sorted({row.job_id for row in rows}))
    return {row.token for row in rows}


def release_all_but(conn: Connection, controller: str, tokens: Iterable[str]) -> None:
    """Forget what `controller` no longer holds, whatever became of the calls that should have said so."""
    kept = set(tokens)
    if not kept:
        conn.execute(delete(Connections).where(Connections.c.controller == controller))
        return
    rows = conn.execute(_HELD_BY, {"controller": controller}).scalars()
    over = [token for token in rows if token not in kept]
    if over:
        conn.execute(delete(Connections).where(Connections.c.token.in_(over)))


def release_others(conn: Connection, controller: str) -> None:
    """Forget all that other controllers hold: there is no other."""
    conn.execute(delete(Connections).where(Connections.c.controller != controller))


def held(conn: Connection, job_ids: Iterable[int], now: float) -> set[Place]:
    """The nodes of these jobs that a living controller has a connection with."""
    query = _LIVING.where(Connections.c.job_id.in_(list(job_ids)))
    return {((r.job_id, r.task_index, r.generation), r.rank) for r in conn.execute(query, as_of(now))}


def unheld(conn: Connection, owner: str, now: float, job_ids: Collection[int] | None = None) -> list[Place]:
    """Nodes of the owner's jobs, of these or of all, that count as connected, and that no living controller has a
    connection with."""
    living = conn.execute(_LIVING_IDS, as_of(now)).scalars().all()
    of = {"owner": owner, "living": living}
    query = _UNHELD if job_ids is None else _UNHELD_OF
    rows = conn.execute(query, of if job_ids is None else {**of, "job_ids": list(job_ids)})
    return [((r.job_id, r.task_index, r.generation), r.rank) for r in rows]
