"""Records which daemon holds the connection of which node.

A node is disconnected if no live daemon has a row for it, whichever daemon owns its job.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from sqlalchemy import Connection, and_, bindparam, delete, exists, or_, select, update

from perdure.controller.runtime.keys import AttemptKey
from perdure.controller.store.engine import pg_notify
from perdure.controller.store.engine.database import DATABASE_NOW, as_of, insert_for
from perdure.controller.store.engine.pg_notify import Topic
from perdure.controller.store.records.job_claims import Controller
from perdure.controller.store.records.jobs import Attempt, Job, Node
from perdure.controller.store.tables import AgentConnectionRow
from perdure.recovery.statuses import AttemptState

AgentConnections = AgentConnectionRow.__table__  # type: ignore[attr-defined]

_PLACE = ("job_id", "task_index", "generation", "rank")
_CONNECTED = (
    select(*(AgentConnections.c[name] for name in _PLACE))
    .join(Controller, Controller.c.id == AgentConnections.c.controller)
    .where(Controller.c.lease_until >= DATABASE_NOW)
)
_LIVE_CONTROLLERS = select(Controller.c.id).where(Controller.c.lease_until >= DATABASE_NOW)
# PostgreSQL looks this up by key or hashes it. A join with a subquery, without statistics, would compare all with all.
_IS_HELD = (
    exists()
    .where(*(AgentConnections.c[name] == Node.c[name] for name in _PLACE))
    .where(AgentConnections.c.controller.in_(bindparam("live", expanding=True)))
)
_MISSING = (
    select(*(Node.c[name] for name in _PLACE))
    .join(Job, Job.c.id == Node.c.job_id)
    .join(Attempt, and_(*(Node.c[n] == Attempt.c[n] for n in _PLACE[:3])))
    .where(Job.c.owner == bindparam("owner"), Job.c.finalized.is_(False), Attempt.c.state != AttemptState.GONE.value)
    .where(Node.c.connected, ~_IS_HELD)
)
_MISSING_OF_JOBS = _MISSING.where(Job.c.id.in_(bindparam("job_ids", expanding=True)))
_SESSIONS_OF_CONTROLLER = select(AgentConnections.c.session_id).where(
    AgentConnections.c.controller == bindparam("controller")
)
_ENDED = (
    AgentConnections.c.job_id.in_(bindparam("job_ids", expanding=True)),
    AgentConnections.c.session_id.in_(bindparam("session_ids", expanding=True)),
)
_LOCK = (
    select(AgentConnections.c.session_id)
    .where(*_ENDED)
    .order_by(*(AgentConnections.c[name] for name in _PLACE))
    .with_for_update()
)
_RELEASE = delete(AgentConnections).where(*_ENDED).returning(AgentConnections.c.job_id, AgentConnections.c.session_id)

_PROBES = (
    select(AgentConnections.c.job_id, AgentConnections.c.task_index, AgentConnections.c.generation)
    .add_columns(AgentConnections.c.probe)
    .where(AgentConnections.c.job_id.in_(bindparam("job_ids", expanding=True)), AgentConnections.c.rank == 0)
    .where(AgentConnections.c.controller.in_(_LIVE_CONTROLLERS), AgentConnections.c.probe.is_not(None))
)
_SET_PROBE = (
    update(AgentConnections)
    .where(*(AgentConnections.c[name] == bindparam(f"of_{name}") for name in _PLACE))
    .where(AgentConnections.c.controller == bindparam("of_controller"))
    .values(probe=bindparam("newest"))
)
_HOLDER = (
    select(Controller.c.id, Controller.c.peer_url, Controller.c.peer_certificate)
    .join(AgentConnections, AgentConnections.c.controller == Controller.c.id)
    .where(*(AgentConnections.c[name] == bindparam(f"of_{name}") for name in _PLACE))
    .where(Controller.c.lease_until >= DATABASE_NOW)
)

_OF_PLACE = tuple(Node.c[name] == bindparam(f"of_{name}") for name in _PLACE)
_TRADE = (
    update(Node)
    .where(*_OF_PLACE, or_(Node.c.boot_nonce.is_(None), Node.c.boot_nonce == bindparam("nonce")))
    .values(boot_nonce=bindparam("nonce"))
)

Place = tuple[tuple[int, int, int], int]


def trade_boot_token(conn: Connection, place: Place, nonce: str) -> bool:
    """Record who trades the boot token of this machine: `nonce` is the same in all calls of one agent.

    False if somebody else has traded it before, or if there is no such machine.
    """
    return conn.execute(_TRADE, {**_of_place(place), "nonce": nonce}).rowcount == 1


"""An attempt and a rank in it."""


def record(conn: Connection, place: Place, *, controller: str, session_id: str, now: float) -> None:
    """Record that the node is connected to `controller`. Replaces an older session of the node."""
    record_all(conn, [(place, session_id)], controller=controller, now=now)


def record_all(conn: Connection, sessions: Sequence[tuple[Place, str]], *, controller: str, now: float) -> None:
    """`record` for several sessions (place, session id), given in the order in which they began.

    Every writer orders rows by node, so that no two transactions wait for each other.
    """
    rows = [
        {
            **dict(zip(_PLACE, (*key, rank), strict=True)),
            "controller": controller,
            "session_id": session_id,
            "since": now,
        }
        for (key, rank), session_id in sorted(sessions, key=lambda session: session[0])
    ]
    if rows:
        conn.execute(_hold(conn.dialect.name), rows)


@cache
def _hold(dialect: str) -> Any:
    new = insert_for(dialect, AgentConnections)
    # The probe of another connection says nothing of this one: it is not inserted, so it becomes NULL.
    columns = {name: new.excluded[name] for name in ("controller", "session_id", "since", "probe")}
    return new.on_conflict_do_update(index_elements=list(_PLACE), set_=columns)


def release(conn: Connection, ended: Sequence[tuple[Place, str]]) -> set[str]:
    """Delete these sessions, which have ended. Returns the ids of those whose node has not connected again anywhere."""
    of = {
        "job_ids": sorted({place[0][0] for place, _ in ended}),
        "session_ids": [session_id for _, session_id in ended],
    }
    if len(ended) > 1 and conn.dialect.name == "postgresql":
        conn.execute(_LOCK, of)  # locks in the order in which `record_all` writes
    rows = conn.execute(_RELEASE, of).all()
    if rows:
        pg_notify.notify_all(conn, Topic.NODE_LOST, sorted({row.job_id for row in rows}))
    return {row.session_id for row in rows}


def release_except(conn: Connection, controller: str, session_ids: Iterable[str]) -> None:
    """Delete the sessions that `controller` no longer holds, in case an earlier `release` failed."""
    kept = set(session_ids)
    if not kept:
        conn.execute(delete(AgentConnections).where(AgentConnections.c.controller == controller))
        return
    rows = conn.execute(_SESSIONS_OF_CONTROLLER, {"controller": controller}).scalars()
    ended = [session_id for session_id in rows if session_id not in kept]
    if ended:
        conn.execute(delete(AgentConnections).where(AgentConnections.c.session_id.in_(ended)))


def release_other_controllers(conn: Connection, controller: str) -> None:
    """Delete the sessions of all other controllers. Call it only if no other is running."""
    conn.execute(delete(AgentConnections).where(AgentConnections.c.controller != controller))


def connected_nodes(conn: Connection, job_ids: Iterable[int], now: float) -> set[Place]:
    """The nodes of these jobs that are connected to a live controller."""
    query = _CONNECTED.where(AgentConnections.c.job_id.in_(list(job_ids)))
    return {((r.job_id, r.task_index, r.generation), r.rank) for r in conn.execute(query, as_of(now))}


def holder(conn: Connection, place: Place, now: float) -> Any:
    """The live controller (`id`, `peer_url`, `peer_certificate`) that holds a node's connection; None if none does."""
    return conn.execute(_HOLDER, {**_of_place(place), **as_of(now)}).first()


def set_probes(conn: Connection, probes: Mapping[Place, Mapping[str, Any]], controller: str) -> None:
    """Record what nodes that are connected to `controller` report of their replicas, and notify the others."""
    rows = [
        {**_of_place(place), "of_controller": controller, "newest": probe} for place, probe in sorted(probes.items())
    ]
    if rows:
        conn.execute(_SET_PROBE, rows)
        pg_notify.notify_all(conn, Topic.JOB, sorted({place[0][0] for place in probes}))


def probes(conn: Connection, job_ids: Collection[int], now: float) -> dict[AttemptKey, dict[str, Any]]:
    """What the nodes of these jobs report, whichever live controller they are connected to."""
    rows = conn.execute(_PROBES, {"job_ids": list(job_ids), **as_of(now)}) if job_ids else ()
    return {(row.job_id, row.task_index, row.generation): row.probe for row in rows}


def _of_place(place: Place) -> dict[str, int]:
    (job_id, task_index, generation), rank = place
    return {"of_job_id": job_id, "of_task_index": task_index, "of_generation": generation, "of_rank": rank}


def missing_nodes(conn: Connection, owner: str, now: float, job_ids: Collection[int] | None = None) -> list[Place]:
    """Nodes that are recorded as connected, although no live controller holds their connection.

    Only nodes of jobs of `owner`; of all of them, or of `job_ids`.
    """
    live = conn.execute(_LIVE_CONTROLLERS, as_of(now)).scalars().all()
    of = {"owner": owner, "live": live}
    query = _MISSING if job_ids is None else _MISSING_OF_JOBS
    rows = conn.execute(query, of if job_ids is None else {**of, "job_ids": list(job_ids)})
    return [((r.job_id, r.task_index, r.generation), r.rank) for r in rows]
