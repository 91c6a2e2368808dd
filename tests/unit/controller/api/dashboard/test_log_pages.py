"""Parts of a log over HTTP: lines, the summary, searches, and the stream that continues at a byte of a long log."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor, wait

import pytest

from perdure.controller.runtime.keys import AttemptKey
from perdure.controller.store.logs.protocol import Chunk
from support.helpers.timing import scaled
from unit.controller.api.dashboard.conftest import Dashboard
from unit.controller.api.dashboard.test_fleet import add_job


@pytest.fixture
def job_id(dashboard: Dashboard) -> int:
    """Attempt 1 has printed 500 lines and attempt 2 ten."""
    job_id = add_job(dashboard, ["GONE", "RUNNING"])
    logs = dashboard.daemon.api_context.logs
    logs.append((job_id, 0, 1), 0, 0, b"".join(b"number %d\n" % n for n in range(500)))
    logs.append((job_id, 0, 2), 0, 0, b"".join(b"Number %d\n" % n for n in range(500, 510)))
    return job_id


def test_log_summary__says_where_attempts_begin(dashboard: Dashboard, job_id: int) -> None:
    summary = dashboard.caller.get(f"/api/v1/jobs/{job_id}/logs/summary").json()
    assert summary["lines"] == 512
    assert summary["attempts"] == [[0, 1, 0], [0, 2, 501]]
    assert not summary["is_final"]
    whole = dashboard.caller.get(f"/api/v1/jobs/{job_id}/logs").content
    assert summary["bytes"] == len(whole)


def test_lines__are_any_of_the_log(dashboard: Dashboard, job_id: int) -> None:
    page = dashboard.caller.get(f"/api/v1/jobs/{job_id}/logs/lines?first=499&count=4")
    assert page.headers["perdure-lines"] == "512"
    lines = page.text.splitlines()
    assert lines[:2] == ["number 498", "number 499"]
    assert lines[2].startswith("--- attempt 2 on local/r/z")
    assert lines[3] == "Number 500"
    assert dashboard.caller.get(f"/api/v1/jobs/{job_id}/logs/lines?first=512").text == ""
    one = dashboard.caller.get(f"/api/v1/jobs/{job_id}/logs/lines?attempt=2&first=1&count=1").text
    assert one == "Number 500\n"


def test_search__goes_both_ways_and_continues(dashboard: Dashboard, job_id: int) -> None:
    url = f"/api/v1/jobs/{job_id}/logs/search"
    up = dashboard.caller.get(url, params={"text": "NUMBER 50", "before": 512, "limit": 3}).json()
    assert up == {"lines": [511, 510, 509], "continue_at": 509}
    rest = dashboard.caller.get(url, params={"text": "NUMBER 50", "before": 509, "limit": 100}).json()
    assert rest == {"lines": [508, 507, 506, 505, 504, 503, 502, 51], "continue_at": None}
    down = dashboard.caller.get(url, params={"text": "number 50", "first": 52, "limit": 1}).json()
    assert down == {"lines": [502], "continue_at": 503}


@pytest.mark.parametrize(
    ("query", "where"),
    [
        ("text=x", "first"),
        ("text=x&first=0&before=9", "first"),
        ("text=&first=0", "query.text"),
        ("first=0", "query.text"),
    ],
)
def test_search__says_what_is_missing(dashboard: Dashboard, job_id: int, query: str, where: str) -> None:
    refused = dashboard.caller.get(f"/api/v1/jobs/{job_id}/logs/search?{query}")
    assert (refused.status_code, refused.json()["error"]["where"]) == (400, where)


@pytest.mark.parametrize("part", ["lines", "summary", "search?text=x&first=0"])
def test_parts__of_a_job_or_attempt_that_does_not_exist_are_404(dashboard: Dashboard, job_id: int, part: str) -> None:
    missing = dashboard.caller.get(f"/api/v1/jobs/999/logs/{part}")
    assert (missing.status_code, missing.json()["error"]["message"]) == (404, "there is no job 999")
    separator = "&" if "?" in part else "?"
    other = dashboard.caller.get(f"/api/v1/jobs/{job_id}/logs/{part}{separator}attempt=7")
    assert other.status_code == 404
    assert "it has had 2" in other.json()["error"]["fix"]


@pytest.mark.parametrize("part", ["?task=1", "?task=1&tail=5", "/lines?task=1", "/summary?task=99999999999999999999"])
def test_log__of_a_task_that_the_job_does_not_have_is_404(dashboard: Dashboard, job_id: int, part: str) -> None:
    answer = dashboard.caller.get(f"/api/v1/jobs/{job_id}/logs{part}")
    assert (answer.status_code, answer.json()["error"]["where"]) == (404, "task")
    assert "has no task" in answer.json()["error"]["message"]
    assert dashboard.caller.get(f"/api/v1/jobs/{job_id}/logs/lines?task=0").status_code == 200


def test_tail__says_which_line_and_byte_it_begins_at(dashboard: Dashboard, job_id: int) -> None:
    whole = dashboard.caller.get(f"/api/v1/jobs/{job_id}/logs").content
    tail = dashboard.caller.get(f"/api/v1/jobs/{job_id}/logs?tail=11")
    assert tail.headers["perdure-line"] == "501"
    assert whole[int(tail.headers["perdure-offset"]) :] == tail.content
    assert tail.content.startswith(b"--- attempt 2 on")
    middle = dashboard.caller.get(f"/api/v1/jobs/{job_id}/logs?offset=100")
    assert middle.content == whole[100:]
    assert dashboard.caller.get(f"/api/v1/jobs/{job_id}/logs?offset={len(whole) + 5}").content == b""


@pytest.mark.parametrize("part", ["?offset=1", "?tail=3"])
def test_logs__that_take_long_to_read_leave_threads_to_others(
    dashboard: Dashboard, job_id: int, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs, can_read = dashboard.daemon.api_context.logs, threading.Event()
    read_chunk = logs.read_chunk

    def wait_and_read(key: AttemptKey, chunk: Chunk) -> bytes:
        assert can_read.wait(scaled(60))
        return read_chunk(key, chunk)

    monkeypatch.setattr(logs, "read_chunk", wait_and_read)
    url = f"/api/v1/jobs/{job_id}/logs{part}"
    with dashboard.caller as client, ThreadPoolExecutor(46) as threads:
        readers = [threads.submit(client.get, url) for _ in range(45)]
        try:
            wait(readers, timeout=0.2)
            assert threads.submit(client.get, "/api/v1/whoami").result(scaled(10)).status_code == 200
        finally:
            can_read.set()
        answers = [reader.result() for reader in readers]
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.content for answer in answers}) == 1


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        ("/summary", b'"lines":2,'),
        ("/lines?first=0", b"--- attempt 1 on local/r/z"),
        ("/search?text=number&first=0", b'{"lines":[],"continue_at":null}'),
        ("?tail=5", b"--- attempt 1 on local/r/z"),
        ("?offset=300", b""),
    ],
)
def test_log__that_was_deleted_is_short(dashboard: Dashboard, job_id: int, part: str, expected: bytes) -> None:
    url = f"/api/v1/jobs/{job_id}/logs"
    assert dashboard.caller.get(f"{url}/summary").json()["lines"] == 512
    dashboard.daemon.api_context.logs.remove(job_id)
    answer = dashboard.caller.get(url + part)
    assert answer.status_code == 200
    assert b"umber 1" not in answer.content
    assert expected in answer.content
