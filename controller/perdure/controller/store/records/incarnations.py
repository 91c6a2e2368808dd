"""What the database records of its own past: incarnations, the watermark, and the highest job id.

A home keeps the same values (`peers.home.record`). A database whose values are lower was replaced by an older copy.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Connection, Text, cast, select, text, update

from perdure.controller.runtime.security.incarnations import Incarnation, Incarnations, new_id
from perdure.controller.store.engine.database import insert_into
from perdure.controller.store.records import facts
from perdure.controller.store.records.facts import Metas
from perdure.controller.store.records.jobs import Task
from perdure.recovery.statuses import TERMINAL

_INCARNATIONS, _WATERMARK = "incarnations", "watermark"
_ADVANCE = (
    update(Metas)
    .where(Metas.c.name == _WATERMARK)
    .values(value=cast(cast(Metas.c.value, BigInteger) + 1, Text))
    .returning(Metas.c.value)
)


def load(conn: Connection) -> Incarnations:
    """None are recorded in a database that is empty, or that no controller of this version has used."""
    stored = facts.get(conn, _INCARNATIONS)
    return Incarnations.from_json(stored) if stored else Incarnations()


def lock(conn: Connection) -> Incarnations:
    """`load`, for a transaction that may begin one: no other may do so meanwhile."""
    return Incarnations.from_json(facts.get_or_create(conn, _INCARNATIONS, "[]"))


def begin(conn: Connection, *, first_job_id: int, replaces: str = "") -> Incarnations:
    """Begin a new incarnation, to which every attempt belongs that is not recorded yet. Returns all of them.

    The next job gets the id `first_job_id`, or a later one. `replaces`: the incarnation that was lost.
    """
    skip_job_ids(conn, first_job_id - 1)
    query = select(Task.c.job_id, Task.c["index"], Task.c.next_generation).where(
        Task.c.status.not_in([status.value for status in TERMINAL])
    )
    first_generations = {(job_id, task): generation for job_id, task, generation in conn.execute(query)}
    new = Incarnation(new_id(), first_job_id, first_generations, replaces)
    incarnations = Incarnations((*load(conn).history, new))
    facts.set(conn, _INCARNATIONS, incarnations.to_json())
    return incarnations


def watermark(conn: Connection) -> int:
    return int(facts.get(conn, _WATERMARK) or 0)


def advance(conn: Connection, at_least: int = 0) -> int:
    """Increment the watermark, to a value above `at_least`. Returns it."""
    conn.execute(insert_into(conn, Metas).values(name=_WATERMARK, value=str(at_least)).on_conflict_do_nothing())
    value = int(conn.execute(_ADVANCE).scalar_one())
    if value <= at_least:
        value = at_least + 1
        facts.set(conn, _WATERMARK, str(value))
    return value


def highest_job_id(conn: Connection) -> int:
    """The highest id that a job of this database was ever given; 0 if it never had one."""
    if conn.dialect.name == "sqlite":
        return int(conn.execute(text("SELECT max(seq) FROM sqlite_sequence WHERE name = 'job'")).scalar() or 0)
    sequence = conn.execute(text("SELECT pg_get_serial_sequence('job', 'id')")).scalar_one()
    given = f"SELECT CASE WHEN is_called THEN last_value ELSE last_value - 1 END FROM {sequence}"  # noqa: S608
    return int(conn.execute(text(given)).scalar_one())


def skip_job_ids(conn: Connection, up_to: int) -> None:
    """Never give ids up to this one."""
    if up_to <= highest_job_id(conn):
        return
    if conn.dialect.name == "sqlite":
        conn.execute(text("DELETE FROM sqlite_sequence WHERE name = 'job'"))
        conn.execute(text("INSERT INTO sqlite_sequence (name, seq) VALUES ('job', :id)"), {"id": up_to})
    else:
        conn.execute(text("SELECT setval(pg_get_serial_sequence('job', 'id'), :id)"), {"id": up_to})
