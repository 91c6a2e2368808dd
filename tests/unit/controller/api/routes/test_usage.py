# ruff: noqa: F811 - `dashboard` is a fixture
"""What the API returns of a job's metrics."""

from __future__ import annotations

import pytest

from perdure.controller.api.routes import usage as routes
from perdure.controller.store.logs.series import node_metrics
from perdure.controller.store.logs.series.metric_series import MACHINE, merged
from unit.controller.api.dashboard.conftest import Dashboard, dashboard  # noqa: F401
from unit.controller.nodes.test_node_usage import BUSY, frame

TASK = {"name": "x", "run": "true", "resources": {"infra": "local"}}


@pytest.fixture
def job(dashboard: Dashboard) -> int:
    answer = dashboard.caller.post("/api/v1/jobs", json={"name": "x", "tasks": [TASK]})
    assert answer.status_code == 201, answer.text
    return int(answer.json()["job_ids"][0])


def test_metrics__are_those_of_all_attempts_and_of_this_minute(dashboard: Dashboard, job: int) -> None:
    context = dashboard.daemon.api_context
    first, second = ((job, 0, 1), 0), ((job, 0, 2), 0)
    old = merged(None, [(60.0 * n, {"cpu": 0.25, "step": n, ".loss": 1 / (n + 1)}) for n in range(3)])
    with context.database.begin() as conn:
        node_metrics.save_all(conn, [node_metrics.encoded_row(first, old, 200.0)])
    context.sessions.usage.on_usage(second, frame(BUSY))
    answer = dashboard.caller.get(f"/api/v1/jobs/{job}/metrics")
    assert answer.status_code == 200, answer.text
    body = answer.json()
    one, two = body["series"]
    assert (one["generation"], one["at"], one["values"]["cpu"]) == (1, [0.0, 60.0, 120.0], [0.25] * 3)
    assert one["values"]["step"] == [0.0, 1.0, 2.0]
    assert one["reported"] == {"loss": [1.0, 0.5, 0.333333]}
    assert (two["generation"], two["values"]["gpu"], two["reported"]) == (2, [0.9], {})
    assert two["values"]["gpu_temperature_c"] == [0.0]
    assert body["omitted"] == 0


def test_metrics_of_many_nodes__are_bounded(
    dashboard: Dashboard,
    job: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(routes, "MAX_SERIES", 5)
    monkeypatch.setattr(routes, "MAX_POINTS", 100)
    full = merged(None, [(60.0 * n, dict.fromkeys(MACHINE, 0.5)) for n in range(300)])
    with dashboard.daemon.database.begin() as conn:
        rows = [node_metrics.encoded_row(((job, 0, generation), 0), full, 1.0) for generation in range(1, 9)]
        node_metrics.save_all(conn, rows)
    body = dashboard.caller.get(f"/api/v1/jobs/{job}/metrics").json()
    assert ([one["generation"] for one in body["series"]], body["omitted"]) == ([4, 5, 6, 7, 8], 3)
    assert sum(len(one["at"]) for one in body["series"]) <= 100


def test_unknown_job__is_an_error(dashboard: Dashboard) -> None:
    assert dashboard.caller.get("/api/v1/jobs/99/metrics").status_code == 404
