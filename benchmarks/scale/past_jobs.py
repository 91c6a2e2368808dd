"""Fills a database with past jobs: copies of a few real ones, made by the database itself.

    python -m benchmarks.scale.past_jobs DATABASE_URL [--past 1000000] [--waiting 10000]

The originals were run by a controller on this database, on the local cloud, and have ended (`benchmarks.scale.queue`
does so). A copy has all that its original left: tasks, attempts, nodes, intents and the timeline, at other times.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.machine import print_machine
from sqlalchemy import Connection, Engine, Table, func, select, text

from perdure.controller.store.engine.database import open_database
from perdure.controller.store.tables import AttemptRow, EventRow, IntentRow, JobRow, NodeRow, TaskRow

SPAN_S = 365 * 86_400.0
NAMES = 1_000
SWEEP = "gpt"  # each of its copies has a name of its own; of the other copies, some hundreds share one
WAIT_S = 30 * 86_400.0
_CHUNK = 20_000  # copies of every original in one transaction

_TABLES: tuple[Table, ...] = tuple(
    row.__table__  # type: ignore[attr-defined]
    for row in (JobRow, TaskRow, AttemptRow, NodeRow, IntentRow, EventRow)
)
_TIMES = frozenset(
    {
        *("submitted_at", "started_at", "ended_at", "run_since", "requested_at", "booted_at", "running_at"),
        *("stopped_at", "gone_at", "described_at", "describe_requested_at", "launched_at", "created_at"),
        *("done_at", "at"),
    }
)
_DISTINCT = frozenset({"task_id", "instance_id", "token"})


@dataclass(frozen=True)
class Filled:
    """How many jobs there are now, and how long it took to make them."""

    past: int
    waiting: int
    seconds: float


def fill(engine: Engine, *, past: int, waiting: int, log_line: Callable[[str], None] = lambda _: None) -> Filled:
    """Have `past` finalized jobs in all, spread over a year, and `waiting` newer ones that wait for a month.

    Every finalized job that exists already is an original. Its copies are named `train-<name>-<number>`.
    """
    begun = time.monotonic()
    with engine.connect() as conn:
        job = _TABLES[0]
        originals = list(conn.execute(select(job.c.id).where(job.c.finalized).order_by(job.c.id)).scalars())
        newest = conn.execute(select(func.max(job.c.id))).scalar() or 0
    if not originals:
        raise SystemExit("there is no finalized job in this database to make copies of: run some first")
    rounds = max(0, (past - len(originals)) // len(originals))
    with engine.connect() as conn:
        fast = conn.execution_options(isolation_level="AUTOCOMMIT")
        if engine.dialect.name == "sqlite":
            fast.execute(text("PRAGMA synchronous=OFF"))
            fast.execute(text("PRAGMA cache_size=-500000"))
    for first in range(0, rounds, _CHUNK):
        last = min(rounds, first + _CHUNK)
        with engine.begin() as conn:
            _copy(conn, originals, newest, first, last, SPAN_S / max(1, rounds), rounds)
        log_line(f"{len(originals) * (last + 1)} jobs after {time.monotonic() - begun:.0f} s")
    with engine.begin() as conn:
        _wait(conn, originals[0], newest + rounds * len(originals), waiting)
    if engine.dialect.name == "postgresql":  # PostgreSQL would do so by itself a while after many inserts
        with engine.connect() as conn:
            conn.execution_options(isolation_level="AUTOCOMMIT").execute(text("VACUUM ANALYZE"))
    return Filled(len(originals) * (rounds + 1), waiting, time.monotonic() - begun)


def _copy(
    conn: Connection, originals: Sequence[int], newest: int, first: int, last: int, step_s: float, rounds: int
) -> None:
    """Copies number `first` to `last` of every original: the higher the number, the newer."""
    ranks = " ".join(f"WHEN {id} THEN {rank}" for rank, id in enumerate(originals, 1))
    values = {"first": first, "last": last - 1, "step": step_s, "rounds": rounds}
    for table in _TABLES:
        of = "id" if table.name == "job" else "job_id"
        new_id = f"{newest} + s.i * {len(originals)} + CASE t.{of} {ranks} END"
        columns = {name: f't."{name}"' for name in _names(table) if name != "id" or table.name == "job"}
        columns |= {name: f"{value} - :step * (:rounds - s.i)" for name, value in columns.items() if name in _TIMES}
        columns |= {name: f"{value} || '-' || s.i" for name, value in columns.items() if name in _DISTINCT}
        columns[of] = new_id
        if table.name == "job":
            of_sweep = f"t.name = '{SWEEP}'"
            which = f"CASE WHEN {of_sweep} THEN s.i ELSE s.i % {NAMES} END"
            columns |= {"name": f"'train-' || t.name || '-' || {which}", "idempotency_key": "NULL"}
        _insert(conn, table, columns, f"t.{of} IN ({', '.join(map(str, originals))})", values)


def _wait(conn: Connection, original: int, newest: int, count: int) -> None:
    """Jobs that next request a machine in a month. No controller owns them yet."""
    values = {"first": 1, "last": count, "far": time.time() + WAIT_S, "now": time.time()}
    waits = {"status": "'PENDING'", "state": "'WAITING'", "reason": "'BACKING_OFF'", "outcome": "NULL"}
    never_ran = {name: "NULL" for name in ("started_at", "run_since", "ended_at", "last_offer", "preempted_from")}
    zero = {"next_generation": "1", "recovery_count": "0", "run_seconds": "0", "has_run": "false", "wake_at": ":far"}
    job, task = _TABLES[:2]
    columns = {name: f't."{name}"' for name in _names(job)}
    owned = {
        "owner": "NULL",
        "finalized": "false",
        "wake_at": ":far",
        "submitted_at": ":now",
        "idempotency_key": "NULL",
    }
    columns |= {"id": f"{newest} + s.i", "name": "'waiting'", **owned}
    _insert(conn, job, columns, f"t.id = {original}", values)
    columns = {name: f't."{name}"' for name in _names(task)}
    columns |= {"job_id": f"{newest} + s.i", "task_id": "t.task_id || '-waiting-' || s.i", **waits, **never_ran, **zero}
    _insert(conn, task, columns, f"t.job_id = {original}", values)


def _insert(
    conn: Connection, table: Table, columns: dict[str, str], which: str, values: dict[str, float | int]
) -> None:
    """Insert `columns` (name → SQL) of the rows `which`, t, for every s.i from :first to :last."""
    series = "WITH RECURSIVE s(i) AS (SELECT :first UNION ALL SELECT i + 1 FROM s WHERE i < :last)"
    if conn.dialect.name == "postgresql":
        series = "WITH s AS (SELECT i FROM generate_series(CAST(:first AS bigint), CAST(:last AS bigint)) AS i)"
    named = ", ".join(f'"{name}"' for name in columns)
    rows = f"SELECT {', '.join(columns.values())} FROM s CROSS JOIN {_rows_of(table, which)} ORDER BY s.i"
    used = {name: value for name, value in values.items() if f":{name}" in f"{series} {rows}"}
    into = f'INSERT INTO "{table.name}" ({named})'
    conn.execute(text(f"{into} {series} {rows}"), used)


def _names(table: Table) -> list[str]:
    return [column.name for column in table.c]


def _rows_of(table: Table, which: str) -> str:
    """The originals' rows, t: read once, before copies are added to the table that they are in."""
    order = ", ".join(f'"{column.name}"' for column in table.primary_key)
    return f'(SELECT * FROM "{table.name}" AS t WHERE {which} ORDER BY {order} LIMIT 100000) AS t'


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("url")
    parser.add_argument("--past", type=int, default=1_000_000)
    parser.add_argument("--waiting", type=int, default=10_000)
    words = parser.parse_args()
    print_machine()
    engine = open_database(words.url)
    filled = fill(engine, past=words.past, waiting=words.waiting, log_line=lambda line: print(line, file=sys.stderr))
    engine.dispose()
    print(f"{filled.past} past and {filled.waiting} waiting jobs in {filled.seconds:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
