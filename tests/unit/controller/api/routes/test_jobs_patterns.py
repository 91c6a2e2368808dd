"""Patterns of job names in the API."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from perdure.controller.api.app import create_app
from perdure.controller.daemon import Daemon
from perdure.controller.runtime.clock import ManualClock
from perdure.controller.runtime.config.settings import Settings

RequestApi = Callable[..., tuple[int, Any]]  # (method, path, **options of the HTTP client) → (status, body)


@pytest.fixture
def request_api(tmp_path: Path, database_url: str) -> Iterator[RequestApi]:
    """Calls the API of a controller with jobs 1 to 6. Returns the status and the body."""
    url = "" if database_url.startswith("sqlite") else database_url
    daemon = Daemon(Settings(tmp_path, database_url=url), ManualClock())
    headers = {"Authorization": f"Bearer {daemon.api_context.keyring.user_token}"}
    client = TestClient(create_app(daemon.api_context), base_url="http://127.0.0.1", headers=headers)

    def call(method: str, path: str, **more: Any) -> tuple[int, Any]:
        response = client.request(method, f"/api/v1{path}", **more)
        return response.status_code, response.json()

    for name in ("train-1", "bert-eval", "train-2", "train-3", "gpt-eval", "train-4"):
        assert call("POST", "/jobs", json={"name": name, "tasks": [{"run": "true"}], "user": "ada"})[0] == 201
    yield call
    daemon.socket.close()
    daemon.close()


def test_list_jobs__filters_by_pattern_and_counts_all_jobs(request_api: RequestApi) -> None:
    def ids(**query: Any) -> list[int]:
        status, page = request_api("GET", "/jobs", params=query)
        assert status == 200
        assert page["total"] == 6, "the counts are over all jobs"
        return [job["job_id"] for job in page["jobs"]]

    assert ids(name="train-*", limit=3) == [6, 4, 3]
    assert ids(name="train-*", limit=3, before=3) == [1]
    assert ids(name="*-eval", skip_finished=1) == [5, 2]
    assert ids(name="train-[!1-2]") == [6, 4]
    assert ids(name="train-*", ids="1,2,3") == [3, 1]
    assert ids(name="train-*", status="SUCCEEDED") == []
    assert ids(name="train-") == [], "a text without a wildcard is a whole name"
    assert ids(name="bert-eval") == [2]


def test_jobs__invalid_pattern_is_rejected_and_patterns_cancel_nothing(request_api: RequestApi) -> None:
    status, body = request_api("GET", "/jobs", params={"name": "train-[12"})
    assert (status, body["error"]["where"]) == (400, "name")
    status, body = request_api("POST", "/jobs/cancel", json={"name": "train-*"})
    assert (status, body["error"]["where"]) == (400, "name")
    assert "jobs queue --skip-finished --name 'train-*'" in body["error"]["fix"]
    assert request_api("GET", "/jobs")[1]["counts"] == {"PENDING": 6}


def test_jobs__empty_selection_is_no_job(request_api: RequestApi) -> None:
    empty = {"cancelled": [], "finished": [], "unknown": []}
    assert request_api("POST", "/jobs/cancel", json={"ids": []}) == (200, empty)
    for method, path, given in (
        ("POST", "/jobs/cancel", {"json": {"name": ""}}),
        ("GET", "/jobs", {"params": {"name": ""}}),
        ("GET", "/jobs", {"params": {"name": "", "skip_finished": 1}}),
    ):
        status, body = request_api(method, path, **given)
        assert (status, body["error"]["where"], body["error"]["message"]) == (400, "name", "the name is empty")
    page = request_api("GET", "/jobs", params={"ids": ""})[1]
    assert (page["jobs"], page["counts"]) == ([], {"PENDING": 6}), "nothing was cancelled"
