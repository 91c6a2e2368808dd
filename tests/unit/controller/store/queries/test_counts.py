"""Counts of tasks by status: exact, and read along an index."""

from __future__ import annotations

from collections import Counter

from sqlalchemy import delete

from perdure.controller.store.queries import counts
from perdure.controller.store.queries.counts import MARGIN_S, RENEW_S, TaskCounter
from perdure.controller.store.records.jobs import Task
from support.helpers.past_jobs import FULL_SCAN, KINDS, NOW, PastJobs, query_plans


def test_task_counter__is_exact_at_any_time(past_jobs: PastJobs) -> None:
    counter = TaskCounter()
    assert past_jobs.counts(NOW, counter) == past_jobs.true_counts()
    for passed_s in (0.0, 60.0, MARGIN_S, RENEW_S, 3 * RENEW_S):
        # One task ends now, one ended a while ago and is committed late, and one starts.
        past_jobs.add("new", [KINDS[5], KINDS[3]], NOW + passed_s)
        past_jobs.add("late", [KINDS[7]], NOW + passed_s - 0.9 * MARGIN_S)
        assert past_jobs.counts(NOW + passed_s, counter) == past_jobs.true_counts()


def test_task_counter__subtracts_what_retention_deleted(past_jobs: PastJobs) -> None:
    """Also what retention of another daemon deleted, before and after the past was counted."""
    one, other = TaskCounter(), TaskCounter()
    past_jobs.counts(NOW, one)
    long_ago = NOW - 2 * MARGIN_S
    for round in range(2):
        with past_jobs.engine.begin() as conn:
            expired = Task.c.ended_at < long_ago - MARGIN_S / 2 * (1 - round)
            deleted = Counter(conn.execute(delete(Task).where(expired).returning(Task.c.status)).scalars())
            counts.record_purged(conn, deleted)
        assert sum(deleted.values()) > 0
        assert past_jobs.counts(NOW, one) == past_jobs.counts(NOW, other) == past_jobs.true_counts()


def test_task_counter__is_exact_after_the_clock_was_set_back(past_jobs: PastJobs) -> None:
    counter = TaskCounter()
    past_jobs.counts(NOW + 10 * RENEW_S, counter)
    past_jobs.add("then", [KINDS[5]], NOW)
    assert past_jobs.counts(NOW, counter) == past_jobs.true_counts()


def test_task_counter__reads_only_an_index(past_jobs: PastJobs) -> None:
    counter = TaskCounter()
    plans = query_plans(past_jobs.engine, lambda: [past_jobs.counts(NOW, counter), past_jobs.counts(NOW, counter)])
    assert len(plans) == 3, "the past is counted once"
    for plan in plans:
        # Without statistics, PostgreSQL may take the index that begins with the status.
        assert "ix_task_ended" in plan or "ix_task_status_job" in plan, plan
        assert not FULL_SCAN.search(plan), plan
