"""Finding the jobs of a page, along an index on either database."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import product

import pytest
from sqlalchemy import Engine, insert, text

from perdure.controller.store.clusters import idle_rules
from perdure.controller.store.engine.database import open_database
from perdure.controller.store.queries import globs, search
from perdure.controller.store.queries import job_listing as queries
from perdure.controller.store.queries.counts import TaskCounter
from perdure.controller.store.queries.search import Filter
from perdure.controller.store.records import cluster_slots, clusters, job_claims, jobs, peer_messages
from perdure.controller.store.records.jobs import Job
from support.helpers.past_jobs import FULL_SCAN, NOW, PastJobs, query_plans
from support.helpers.postgres_server import Postgres

SCAN_OF_CLUSTERS = re.compile(
    r"SCAN (job|task|attempt|cluster|cluster_slot)$|Seq Scan on (job|task|attempt|cluster|cluster_slot)\b", re.MULTILINE
)
GLOBS = ("b*", "*t", "?[a-f]*", "nobod*", "b_*")


FILTERS = [
    Filter(limit, before, skip, statuses, name, ids, glob)
    for limit, before, skip, statuses, (name, glob), ids in product(
        (3, None),
        (None, 31),
        (False, True),
        ((), ("SUCCEEDED",), ("RUNNING", "FAILED", "CANCELLED"), ("FAILED_PRECHECKS",)),
        (*((name, None) for name in (None, "bert", "nobody", "")), *((None, globs.parse(glob)) for glob in GLOBS)),
        (None, (), (5, 6, 7, 31, 40, 900)),
    )
]


@pytest.mark.parametrize(("many_rows", "window"), [(search.MANY_ROWS, search.WINDOW), (3, 5)])
def test_find_ids__equals_a_scan_of_all_jobs(
    past_jobs: PastJobs, many_rows: int, window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "MANY_ROWS", many_rows)
    monkeypatch.setattr(search, "WINDOW", window)
    for wanted in FILTERS:
        assert past_jobs.find(wanted) == past_jobs.matching(wanted), wanted


@pytest.mark.parametrize(
    "wanted",
    [Filter(statuses=("SUCCEEDED", "RUNNING")), Filter(glob=globs.parse("*r*")), Filter(glob=globs.parse("b*"))],
)
def test_find_ids__pages_add_up_to_all_matches(
    past_jobs: PastJobs, wanted: Filter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "MANY_ROWS", 3)
    monkeypatch.setattr(search, "WINDOW", 5)
    ids: list[int] = []
    wanted = replace(wanted, limit=7)
    while page := past_jobs.find(wanted):
        ids += page
        wanted = replace(wanted, before=page[-1])
    assert ids == past_jobs.matching(replace(wanted, limit=None, before=None))


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
        Filter(glob=globs.parse("be*")),
        Filter(glob=globs.parse("be*"), before=50, statuses=("SUCCEEDED",)),
        Filter(glob=globs.parse("*t"), skip_finished=True),
    ],
)
def test_find_ids__follows_an_index(past_jobs: PastJobs, wanted: Filter) -> None:
    def page() -> None:
        with past_jobs.engine.connect() as conn:
            queries.describe(conn, search.find_ids(conn, wanted), NOW)

    for plan in query_plans(past_jobs.engine, page):
        assert not FULL_SCAN.search(plan), plan


def test_find_ids__reads_names_when_the_newest_jobs_do_not_match(
    past_jobs: PastJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "MANY_ROWS", 1)
    monkeypatch.setattr(search, "WINDOW", 1)
    *_, scan, names = query_plans(
        past_jobs.engine, lambda: past_jobs.find(Filter(glob=globs.parse("*nothing"), before=50))
    )
    assert "ix_job_name_id" not in scan, scan
    assert re.search("(COVERING INDEX|Scan on|Scan using) ix_job_name_id", names), names


def test_periodic_queries__do_not_scan_past_jobs(past_jobs: PastJobs) -> None:
    def periodic_queries() -> None:
        with past_jobs.engine.begin() as conn:
            job_claims.claim(conn, "two", NOW, limit=10)
            jobs.live_attempts(conn)
            peer_messages.delete_for_finalized_jobs(conn)
            conn.rollback()

    for plan in query_plans(past_jobs.engine, periodic_queries):
        assert not FULL_SCAN.search(plan.replace("SCAN peer_message", "")), plan


def test_periodic_queries_of_clusters__do_not_read_past_jobs_or_slots(past_jobs: PastJobs) -> None:
    def of_unfinalized_jobs() -> None:
        with past_jobs.engine.connect() as conn:
            clusters.unsettled(conn)
            clusters.stray_hosts(conn)
            clusters.unfinalized(conn)
            clusters.waiting_jobs(conn, 1)
            clusters.unfinished_jobs(conn, 1)
            clusters.uncancelled_jobs(conn, 1)
            clusters.running_jobs(conn, 1)

    def others() -> None:
        with past_jobs.engine.connect() as conn:
            clusters.hosts(conn, [1])
            clusters.ends_by(conn, [1], NOW)
            idle_rules.of_clusters(conn, [1])
            idle_rules.floors(conn)
            cluster_slots.held(conn)
            cluster_slots.held(conn, 1)
            cluster_slots.lost_hosts(conn)

    for plan in query_plans(past_jobs.engine, of_unfinalized_jobs):
        assert re.search("ix_job_cluster_unfinalized|ix_job_unfinalized", plan), plan
        assert not SCAN_OF_CLUSTERS.search(plan), plan
    for plan in query_plans(past_jobs.engine, others):
        assert not SCAN_OF_CLUSTERS.search(plan), plan


def test_jobs_with_kept_machines__reads_live_attempts_only(past_jobs: PastJobs) -> None:
    with past_jobs.engine.connect() as conn:
        plans = query_plans(past_jobs.engine, lambda: search.jobs_with_kept_machines(conn, None))
    assert "ix_attempt_live" in "\n".join(plans), plans


@pytest.fixture
def english_database(postgres: Postgres) -> Iterator[Engine]:
    """A database with a language's collation: `a` sorts before `B`, and `_` before both."""
    count = postgres.sql("SELECT count(*) FROM pg_collation WHERE collname = 'en-US-x-icu'")
    if count.strip() == "0" or int(postgres.sql("SHOW server_version_num")) < 150_000:
        pytest.skip("this PostgreSQL cannot create a database with an ICU collation")
    url = postgres.new_database()
    name = url.rpartition("/")[2]
    postgres.sql(f"DROP DATABASE {name}")
    postgres.sql(f"CREATE DATABASE {name} TEMPLATE template0 LOCALE_PROVIDER icu ICU_LOCALE 'en-US'")
    engine = open_database(url)
    yield engine
    engine.dispose()


@pytest.mark.parametrize("many_rows", [search.MANY_ROWS, 2])
def test_find_ids__does_not_depend_on_the_collation(
    english_database: Engine, many_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "MANY_ROWS", many_rows)
    monkeypatch.setattr(search, "WINDOW", 4)
    names = ["ab", "a-b", "aB", "a_b", "A-b", "B", "a.b", "b", "a-B7", "a7", "ba", "a-"]
    with english_database.begin() as conn:
        assert conn.execute(text("SELECT 'a' < 'B'")).scalar(), "sorts by bytes"
        conn.execute(insert(Job), [{"name": name, "submitted_at": 1.0} for name in names])
    for pattern in ("a-*", "a*", "A*", "a?b", "*b", "a[!-]*", "a-B*", "B?", "*"):
        expected = [id for id, name in enumerate(names, 1) if fnmatchcase(name, pattern)][::-1]
        with english_database.connect() as conn:
            assert search.find_ids(conn, Filter(glob=globs.parse(pattern))) == expected, pattern
            conn.execute(text("SET LOCAL enable_seqscan = off"))
            plan = conn.execute(text("EXPLAIN SELECT id FROM job WHERE name ~>=~ 'a-' AND name ~<~ 'a.'")).scalars()
            assert re.search("ix_job_name_id.*Index Cond: .*~>=~", "".join(plan))


def give_every_third_to(past_jobs: PastJobs, user: str) -> set[int]:
    with past_jobs.engine.begin() as conn:
        conn.execute(text('UPDATE job SET "user" = :user WHERE id % 3 = 0'), {"user": user})
    return {id for id in past_jobs.known if id % 3 == 0}


@pytest.mark.parametrize("many_rows", [search.MANY_ROWS, 3])
def test_find_ids__of_a_user(past_jobs: PastJobs, many_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "MANY_ROWS", many_rows)
    monkeypatch.setattr(search, "WINDOW", 5)
    own = give_every_third_to(past_jobs, "ada")
    for wanted in FILTERS[::7]:
        matching = [id for id in past_jobs.matching(replace(wanted, limit=None)) if id in own]
        assert past_jobs.find(replace(wanted, user="ada")) == matching[: wanted.limit], wanted
        assert past_jobs.find(replace(wanted, user="nobody")) == []


def test_pages_of_a_user__scan_no_table(past_jobs: PastJobs) -> None:
    give_every_third_to(past_jobs, "ada")
    for wanted in (Filter(user="ada"), Filter(user="ada", skip_finished=True), Filter(user="ada", name="bert")):
        plans = query_plans(past_jobs.engine, lambda wanted=wanted: past_jobs.find(wanted))  # type: ignore[misc]
        assert not FULL_SCAN.search("\n".join(plans)), plans


def test_counts__of_a_user(past_jobs: PastJobs) -> None:
    own, counter = give_every_third_to(past_jobs, "ada"), TaskCounter()
    true = Counter(status for id in own for status in past_jobs.known[id][1])
    for later_s in (0.0, 60.0):  # the second time, the past is not counted again
        with past_jobs.engine.connect() as conn:
            assert counter.by_status(conn, NOW + later_s, "ada") == dict(true)
            assert counter.by_status(conn, NOW + later_s, "nobody") == {}
