"""The row of a sweep in the queue."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.cli.jobs import sweep

SWEEPS: dict[int, Any] = {
    2: {"sweep_id": 2, "name": "grid", "size": 3, "counts": {"SUCCEEDED": 1, "FAILED": 2}, "cost_usd": 3.0},
    7: {"sweep_id": 7, "name": "wide", "size": 500, "counts": {"SUCCEEDED": 499, "RUNNING": 1}, "cost_usd": 1.0},
}


def page(*jobs: tuple[int, int | None]) -> Any:
    rows = [{"job_id": id, "sweep_id": of, "name": "x", "status": "PENDING", "cost_usd": 0.5} for id, of in jobs]
    return {"now": "", "jobs": rows, "counts": {}, "total": 9}


@pytest.fixture(autouse=True)
def sweeps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "fetch", lambda _client, sweep_id: SWEEPS[sweep_id])


def shown(pages: list[Any], limit: int | None) -> list[tuple[int, str, str]]:
    client: Any = None
    found = sweep.one_row_each(lambda rows: iter(pages if rows is None else pages[:1]), client, limit)
    return [(job["job_id"], job["name"], job["status"]) for one in found for job in one["jobs"]]


def test_sweep__is_one_row_over_all_pages() -> None:
    pages = [page((9, None), (8, 7)), page((7, 7), (4, 2)), page((3, 2), (2, 2), (1, None))]
    assert shown(pages, None) == [
        (9, "x", "PENDING"),
        (7, "wide ×500: 499 SUCCEEDED, 1 RUNNING", "RUNNING"),
        (2, "grid ×3: 2 FAILED, 1 SUCCEEDED", "FAILED"),
        (1, "x", "PENDING"),
    ]


def test_limit__counts_rows() -> None:
    pages = [page((9, 7), (8, 7)), page((7, 7), (4, 2)), page((1, None))]
    assert [row[0] for row in shown(pages, 2)] == [7, 2]


def test_page_without_sweeps__is_shown_as_it_is() -> None:
    assert [row[0] for row in shown([page((9, None), (8, None)), page((7, None))], 2)] == [9, 8]
