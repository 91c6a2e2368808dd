"""The rows of a page."""

from __future__ import annotations

import pytest

from perdure.controller.store.queries import job_listing as queries
from support.helpers.past_jobs import NOW, PastJobs


@pytest.mark.parametrize("ids", [[], [7], [31, 30, 29, 28], [60, 58, 57, 55, 54], [50, 20, 3, 2]])
def test_describe__page_equals_its_jobs_one_by_one(past_jobs: PastJobs, ids: list[int]) -> None:
    with past_jobs.engine.connect() as conn:
        one_by_one = [task for id in ids for task in queries.describe(conn, [id], NOW)]
        assert queries.describe(conn, ids, NOW) == one_by_one
    assert [task["job_id"] for task in one_by_one] == [id for id in ids for _ in past_jobs.known[id][1]]
