"""The queue and its counts among many past jobs: right, and read along an index on either database."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product

import pytest
from sqlalchemy import Engine, delete, event, text

from perdure.controller.store import counts, globs, jobs, letters, queries, search
from perdure.controller.store.counts import MARGIN_S, RENEW_S, Counts
from perdure.controller.store.database import open_database
from perdure.controller.store.jobs import NewTask, Task
from perdure.controller.store.search import Filter
from perdure.controller.store.writes import Writes
from perdure.recovery.job import TaskView
from perdure.recovery.reasons import Reason
from perdure.recovery.statuses import TERMINAL, TaskState

NOW = 1_800_000_000.0
KINDS = (
    TaskView(0, (), wake_at=1.0),
    TaskView(0, (), state=TaskState.PLACING),
    TaskView(0, (), state=TaskState.PLACING, has_run=True),
    TaskView(0, (), state=TaskState.RUNNING),
    TaskView(0, (), state=TaskState.STOPPING, outcome=Reason.USER_CANCELLED),
    *(TaskView(0, (), state=TaskState.ENDED, outcome=why) for why in (Reason.COMPLETED, Reason.USER_CANCELLED)),
    *(TaskView(0, (), state=TaskState.ENDED, outcome=why) for why in (Reason.RUN_FAILED, Reason.NO_OFFER_FITS)),
)


@dataclass(frozen=True)
class Many:
    """`known`: id → (name, its tasks' statuses)."""

    engine: Engine
    known: dict[int, tuple[str, tuple[str, ...]]]

    def matching(self, wanted: Filter) -> list[int]:
        """What `find_ids` shall find, by looking at every job."""
        found = [
            id
            for id, (name, statuses) in sorted(self.known.items(), reverse=True)
            if (not wanted.ids or id in wanted.ids)
            and (wanted.before is None or id < wanted.before)
            and (not wanted.name or name == wanted.name)
            and (not wanted.glob or re.fullmatch(wanted.glob.regex, name))
            and (not wanted.skip_finished or not TERMINAL.issuperset(statuses))
            and (not wanted.statuses or set(statuses) & set(wanted.statuses))
        ]
        return found[: wanted.limit]

    def find(self, wanted: Filter) -> list[int]:
        with self.engine.connect() as conn:
            return search.find_ids(conn, wanted)

    def tally(self, now: float, of: Counts) -> dict[str, int]:
        with self.engine.connect() as conn:
            return of.of(conn, now)

    def true_tally(self) -> dict[str, int]:
        with self.engine.connect() as conn:
            return dict(Counter(conn.execute(Task.select().with_only_columns(Task.c.status)).scalars()))

    def add(self, name: str, kinds: list[TaskView], ended_at: float) -> int:
        is_over = all(kind.state is TaskState.ENDED for kind in kinds)
        columns = {"name": name, "num_tasks": len(kinds), "submitted_at": NOW, "settled": is_over, "owner": "one"}
        views = [
            replace(k, index=i, ended_at=ended_at if k.state is TaskState.ENDED else None) for i, k in enumerate(kinds)
        ]
        new = [NewTask(view, "t", {}, {"resources": "cpus=4"}, None) for view in views]
        with self.engine.begin() as conn:
            (id,) = jobs.reserve(conn, columns)
            writes = Writes(conn)
            jobs.add_tasks(writes, new, {id: [f"{id}-{i}" for i in range(len(views))]})
            writes.flush()
        self.known[id] = (name, tuple(view.status.value for view in views))
        return id


@pytest.fixture
def many(database_url: str) -> Iterator[Many]:
    drawn = random.Random(7)
    found = Many(open_database(database_url), {})
    for _ in range(60):
        kinds = drawn.choices(KINDS, weights=(1, 1, 1, 1, 1, 8, 4, 4, 2), k=drawn.choice((1, 1, 1, 2, 3)))
        found.add(drawn.choice(("bert", "gpt", "rare")), kinds, NOW - drawn.uniform(0, 3 * MARGIN_S))
    yield found
    found.engine.dispose()


GLOBS = ("b*", "*t", "?[a-f]*", "nobod*", "b_*")

FILTERS = [
    Filter(limit, before, skip, statuses, name, ids, glob)
    for limit, before, skip, statuses, (name, glob), ids in product(
        (3, None),
        (None, 31),
        (False, True),
        ((), ("SUCCEEDED",), ("RUNNING", "FAILED", "CANCELLED"), ("FAILED_PRECHECKS",)),
        (*((name, None) for name in (None, "bert", "nobody")), *((None, globs.read(glob)) for glob in GLOBS)),
        ((), (5, 6, 7, 31, 40, 900)),
    )
]


@pytest.mark.parametrize(("few", "window"), [(search.FEW, search.WINDOW), (3, 5)])
def test_every_filter_finds_what_a_look_at_every_job_finds(
    many: Many, few: int, window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "FEW", few)
    monkeypatch.setattr(search, "WINDOW", window)
    for wanted in FILTERS:
        assert many.find(wanted) == many.matching(wanted), wanted


@pytest.mark.parametrize(
    "wanted", [Filter(statuses=("SUCCEEDED", "RUNNING")), Filter(glob=globs.read("*r*")), Filter(glob=globs.read("b*"))]
)
def test_pages_join_to_the_whole(many: Many, wanted: Filter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "FEW", 3)
    monkeypatch.setattr(search, "WINDOW", 5)
    found: list[int] = []
    wanted = replace(wanted, limit=7)
    while page := many.find(wanted):
        found += page
        wanted = replace(wanted, before=page[-1])
    assert found == many.matching(replace(wanted, limit=None, before=None))


@pytest.mark.parametrize("ids", [[], [7], [31, 30, 29, 28], [60, 58, 57, 55, 54], [50, 20, 3, 2]])
def test_a_page_is_what_its_jobs_are_one_by_one(many: Many, ids: list[int]) -> None:
    with many.engine.connect() as conn:
        one_by_one = [task for id in ids for task in queries.describe(conn, [id], NOW)]
        assert queries.describe(conn, ids, NOW) == one_by_one
    assert [task["job_id"] for task in one_by_one] == [id for id in ids for _ in many.known[id][1]]


def test_counts_are_exact_whenever_they_are_asked_for(many: Many) -> None:
    told = Counts()
    assert many.tally(NOW, told) == many.true_tally()
    for passed_s in (0.0, 60.0, MARGIN_S, RENEW_S, 3 * RENEW_S):
        # One ends now, one ended a while ago and is committed late, and one begins.
        many.add("new", [KINDS[5], KINDS[3]], NOW + passed_s)
        many.add("late", [KINDS[7]], NOW + passed_s - 0.9 * MARGIN_S)
        assert many.tally(NOW + passed_s, told) == many.true_tally()


def test_counts_know_what_retention_removed(many: Many) -> None:
    """Also what another daemon's removed, before and after the past was counted."""
    one, other = Counts(), Counts()
    many.tally(NOW, one)
    long_ago = NOW - 2 * MARGIN_S
    for round in range(2):
        with many.engine.begin() as conn:
            gone = Task.c.ended_at < long_ago - MARGIN_S / 2 * (1 - round)
            lost = Counter(conn.execute(delete(Task).where(gone).returning(Task.c.status)).scalars())
            counts.note_removed(conn, lost)
        assert sum(lost.values()) > 0
        assert many.tally(NOW, one) == many.tally(NOW, other) == many.true_tally()


def test_a_clock_that_was_set_back_is_no_reason_to_count_wrongly(many: Many) -> None:
    told = Counts()
    many.tally(NOW + 10 * RENEW_S, told)
    many.add("then", [KINDS[5]], NOW)
    assert many.tally(NOW, told) == many.true_tally()


def statements(engine: Engine, act: Callable[[], object]) -> list[tuple[str, object]]:
    """What `act` has the database execute."""
    said: list[tuple[str, object]] = []

    def hear(_conn: object, _cursor: object, statement: str, parameters: object, *_: object) -> None:
        said.append((statement, parameters))

    event.listen(engine, "before_cursor_execute", hear)
    try:
        act()
    finally:
        event.remove(engine, "before_cursor_execute", hear)
    return said


def plans(engine: Engine, act: Callable[[], object]) -> list[str]:
    """How the database goes about each statement of `act`, where no table is so small that it would be read whole."""
    found = []
    for statement, parameters in statements(engine, act):
        with engine.connect() as conn:
            if engine.dialect.name == "postgresql":
                conn.execute(text("SET LOCAL enable_seqscan = off"))
                explain = "EXPLAIN "
            else:
                explain = "EXPLAIN QUERY PLAN "
            rows = conn.exec_driver_sql(explain + statement, parameters).all()  # type: ignore[arg-type]
        found.append("\n".join(str(row[-1]) for row in rows))
    return found


READS_WHOLE = re.compile(r"SCAN (job|task|attempt|letter)$|Seq Scan on (job|task|attempt)\b", re.MULTILINE)


@pytest.mark.parametrize(
    "wanted",
    [
        Filter(before=50),
        Filter(skip_finished=True),
        Filter(statuses=("SUCCEEDED", "FAILED"), before=50),
        Filter(name="bert"),
        Filter(name="nobody", statuses=("RUNNING",)),
        Filter(name="bert", skip_finished=True, statuses=("SUCCEEDED",)),
        Filter(ids=(1, 2, 3), skip_finished=True),
        Filter(glob=globs.read("be*")),
        Filter(glob=globs.read("be*"), before=50, statuses=("SUCCEEDED",)),
        Filter(glob=globs.read("*t"), skip_finished=True),
    ],
)
def test_pages_go_along_an_index(many: Many, wanted: Filter) -> None:
    def page() -> None:
        with many.engine.connect() as conn:
            queries.describe(conn, search.find_ids(conn, wanted), NOW)

    for plan in plans(many.engine, page):
        assert not READS_WHOLE.search(plan), plan


def test_where_the_newest_promise_nothing_the_names_are_looked_through(
    many: Many, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "FEW", 1)
    monkeypatch.setattr(search, "WINDOW", 1)
    *_, walk, names = plans(many.engine, lambda: many.find(Filter(glob=globs.read("*nothing"), before=50)))
    assert "ix_job_name_id" not in walk, walk
    assert re.search("(COVERING INDEX|Scan on|Scan using) ix_job_name_id", names), names


def test_counts_are_read_from_an_index_alone(many: Many) -> None:
    told = Counts()
    found = plans(many.engine, lambda: [many.tally(NOW, told), many.tally(NOW, told)])
    assert len(found) == 3, "the past is counted once"
    for plan in found:
        assert "ix_task_ended" in plan, plan
        assert not READS_WHOLE.search(plan), plan


def test_what_a_daemon_asks_all_the_time_passes_over_the_past(many: Many) -> None:
    def ask() -> None:
        with many.engine.begin() as conn:
            jobs.claim(conn, "two", NOW, limit=10)
            jobs.live_attempts(conn)
            letters.drop_settled(conn)
            conn.rollback()

    for plan in plans(many.engine, ask):
        assert not READS_WHOLE.search(plan.replace("SCAN letter", "")), plan
