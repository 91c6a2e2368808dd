"""The rows of a page."""

from __future__ import annotations

import pytest
from sqlalchemy import insert

from perdure.controller.store.queries import job_listing as queries
from perdure.controller.store.records.jobs import TimelineEvent
from perdure.recovery.reasons import Reason
from support.helpers.past_jobs import NOW, PastJobs


@pytest.mark.parametrize("ids", [[], [7], [31, 30, 29, 28], [60, 58, 57, 55, 54], [50, 20, 3, 2]])
def test_describe__page_equals_its_jobs_one_by_one(past_jobs: PastJobs, ids: list[int]) -> None:
    with past_jobs.engine.connect() as conn:
        one_by_one = [task for id in ids for task in queries.describe(conn, [id], NOW)]
        assert queries.describe(conn, ids, NOW) == one_by_one
    assert [task["job_id"] for task in one_by_one] == [id for id in ids for _ in past_jobs.known[id][1]]


def test_waiting_task__gets_the_newest_answer_of_a_cloud(past_jobs: PastJobs) -> None:
    waits = queries._wait_text(Reason.BACKING_OFF, "", NOW)
    tasks = [{"job_id": 7, "task_index": index, "message": waits} for index in (0, 1)]
    tasks.append({"job_id": 20, "task_index": 0, "message": "runs"})
    event = {"job_id": 7, "task_index": 0, "kind": "attempt.refused", "at": NOW, "data": {}}
    with past_jobs.engine.connect() as conn:
        for text in ("no capacity", "Could not connect" + "!" * 500):
            conn.execute(insert(TimelineEvent).values(**event, message=text))
        queries._add_refusals(conn, tasks)
        conn.rollback()
    first, second, other = (str(task["message"]) for task in tasks)
    assert first.startswith(f"{waits}; the last answer: Could not connect!")
    assert len(first) < 400
    assert (second, other) == (waits, "runs"), "nothing is known of them"
