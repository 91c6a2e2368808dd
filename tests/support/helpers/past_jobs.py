"""A database with many past jobs, and the query plans of a database."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

from sqlalchemy import Engine, event, text

from perdure.controller.store.engine.batch_writer import WriteBatch
from perdure.controller.store.queries import search
from perdure.controller.store.queries.counts import TaskCounter
from perdure.controller.store.queries.search import Filter
from perdure.controller.store.records import jobs
from perdure.controller.store.records.jobs import NewTask, Task
from perdure.recovery.job import TaskView
from perdure.recovery.reasons import Reason
from perdure.recovery.statuses import TERMINAL, TaskState

NOW = 1_800_000_000.0
KINDS = (
    TaskView(0, (), wake_at=1.0),
    TaskView(0, (), state=TaskState.PROVISIONING),
    TaskView(0, (), state=TaskState.PROVISIONING, has_run=True),
    TaskView(0, (), state=TaskState.RUNNING),
    TaskView(0, (), state=TaskState.STOPPING, outcome=Reason.USER_CANCELLED),
    *(TaskView(0, (), state=TaskState.ENDED, outcome=why) for why in (Reason.COMPLETED, Reason.USER_CANCELLED)),
    *(TaskView(0, (), state=TaskState.ENDED, outcome=why) for why in (Reason.RUN_FAILED, Reason.NO_OFFER_FITS)),
)

FULL_SCAN = re.compile(r"SCAN (job|task|attempt|peer_message)$|Seq Scan on (job|task|attempt)\b", re.MULTILINE)


@dataclass(frozen=True)
class PastJobs:
    """Jobs in a database. `known`: id → (name, the statuses of its tasks)."""

    engine: Engine
    known: dict[int, tuple[str, tuple[str, ...]]]

    def matching(self, wanted: Filter) -> list[int]:
        """What `find_ids` has to return, computed from all jobs."""
        ids = [
            id
            for id, (name, statuses) in sorted(self.known.items(), reverse=True)
            if (wanted.ids is None or id in wanted.ids)
            and (wanted.before is None or id < wanted.before)
            and (wanted.name is None or name == wanted.name)
            and (not wanted.glob or re.fullmatch(wanted.glob.regex, name))
            and (not wanted.skip_finished or not TERMINAL.issuperset(statuses))
            and (not wanted.statuses or set(statuses) & set(wanted.statuses))
        ]
        return ids[: wanted.limit]

    def find(self, wanted: Filter) -> list[int]:
        with self.engine.connect() as conn:
            return search.find_ids(conn, wanted)

    def counts(self, now: float, counter: TaskCounter) -> dict[str, int]:
        with self.engine.connect() as conn:
            return counter.by_status(conn, now)

    def true_counts(self) -> dict[str, int]:
        with self.engine.connect() as conn:
            return dict(Counter(conn.execute(Task.select().with_only_columns(Task.c.status)).scalars()))

    def add(self, name: str, kinds: list[TaskView], ended_at: float) -> int:
        has_ended = all(kind.state is TaskState.ENDED for kind in kinds)
        columns = {"name": name, "num_tasks": len(kinds), "submitted_at": NOW, "finalized": has_ended, "owner": "one"}
        views = [
            replace(k, index=i, ended_at=ended_at if k.state is TaskState.ENDED else None) for i, k in enumerate(kinds)
        ]
        new = [NewTask(view, "t", {}, {"resources": "cpus=4"}, None) for view in views]
        with self.engine.begin() as conn:
            (id,) = jobs.insert_batch(conn, columns)
            writes = WriteBatch(conn)
            jobs.add_tasks(writes, new, {id: [f"{id}-{i}" for i in range(len(views))]})
            writes.flush()
        self.known[id] = (name, tuple(view.status.value for view in views))
        return id


def executed_statements(engine: Engine, act: Callable[[], object]) -> list[tuple[str, object]]:
    """The statements that the database executes during `act`, with their parameters."""
    executed: list[tuple[str, object]] = []

    def record(_conn: object, _cursor: object, statement: str, parameters: object, *_: object) -> None:
        executed.append((statement, parameters))

    event.listen(engine, "before_cursor_execute", record)
    try:
        act()
    finally:
        event.remove(engine, "before_cursor_execute", record)
    return executed


def query_plans(engine: Engine, act: Callable[[], object]) -> list[str]:
    """The query plans of the statements of `act`, as for tables that are too large to scan."""
    plans = []
    for statement, parameters in executed_statements(engine, act):
        with engine.connect() as conn:
            if engine.dialect.name == "postgresql":
                conn.execute(text("SET LOCAL enable_seqscan = off"))
                explain = "EXPLAIN "
            else:
                explain = "EXPLAIN QUERY PLAN "
            rows = conn.exec_driver_sql(explain + statement, parameters).all()  # type: ignore[arg-type]
        plans.append("\n".join(str(row[-1]) for row in rows))
    return plans
