"""Following the log of a job across broken connections."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from perdure.sdk import jobs, logs
from perdure.sdk.connection.client import Client, ConnectionLost
from support.helpers.timing import scaled
from unit.sdk.contract_server import Controller

T = TypeVar("T")


ALL = b"".join(b"line %d of many\n" % number for number in range(2000))


def in_thread(call: Callable[[], T]) -> tuple[threading.Thread, list[T]]:
    """Run `call` beside the test; returns (thread, results), where results gets what it returned."""
    results: list[T] = []
    thread = threading.Thread(target=lambda: results.append(call()), daemon=True)
    thread.start()
    return thread, results


def test_follow__log_is_complete_across_broken_connections(controller: Controller, client: Client) -> None:
    job_id = controller.add("SUCCEEDED", printed=ALL)
    controller.cut_log_at = [1, 777, 20_000]
    received = io.BytesIO()
    lost: list[ConnectionLost] = []
    assert jobs.tail_logs(job_id, output_stream=received, on_lost=lost.append, client=client) == 0
    assert received.getvalue() == ALL
    assert controller.cut_log_at == []
    assert len(lost) == 3


def test_follow__growing_log(controller: Controller, client: Client) -> None:
    job_id = controller.add("RUNNING", printed=b"one\n")
    controller.cut_log_at = [6]
    received = io.BytesIO()
    thread, codes = in_thread(lambda: jobs.tail_logs(job_id, output_stream=received, client=client))
    controller.wait_for_call("GET .*/logs.*")
    controller.print(job_id, b"two\n")
    controller.wait_for_call("GET .*/logs.*offset=6.*")
    controller.print(job_id, b"three\n")
    controller.end(job_id, "FAILED")
    thread.join(scaled(20))
    assert codes == [100]
    assert received.getvalue() == b"one\ntwo\nthree\n"


def test_follow__reads_to_the_end_after_a_stream_ended_early(controller: Controller, client: Client) -> None:
    """The stream ends as if the job had ended; meanwhile, the job prints more and does end."""
    job_id = controller.add("RUNNING", printed=b"one\n")
    controller.close_log_at = [4]
    received = io.BytesIO()

    def write(chunk: bytes) -> None:
        received.write(chunk)
        if chunk == b"one\n":
            controller.print(job_id, b"two\n")
            controller.end(job_id)

    logs.follow(client, job_id, write)
    assert received.getvalue() == b"one\ntwo\n"


def test_follow__tail_continues_after_a_break(controller: Controller, client: Client) -> None:
    job_id = controller.add("SUCCEEDED", printed=ALL)
    controller.cut_log_at = [len(ALL) - 5]
    received = io.BytesIO()
    jobs.tail_logs(job_id, tail=2, output_stream=received, client=client)
    assert received.getvalue() == b"line 1998 of many\nline 1999 of many\n"


def test_follow__finds_a_restarted_controller(tmp_path: Path, controller: Controller, client: Client) -> None:
    """The embedded controller is replaced by one on another port, which controller.json names."""
    import dataclasses
    import json

    from perdure.sdk.connection.client import Client

    home = tmp_path / "home"
    home.mkdir()
    (home / "token").touch(0o600)
    (home / "token").write_text("user-token")
    job_id = controller.add("SUCCEEDED", printed=ALL)
    gone = Client(dataclasses.replace(client.endpoint, url="http://127.0.0.1:1", home=home))
    lost: list[ConnectionLost] = []

    def restarted(error: ConnectionLost) -> None:
        lost.append(error)
        (home / "controller.json").write_text(json.dumps({"endpoint": controller.url, "pid": 1}))

    received = io.BytesIO()
    assert jobs.tail_logs(job_id, output_stream=received, on_lost=restarted, client=gone) == 0
    assert received.getvalue() == ALL
    assert len(lost) == 1


def test_follow__gives_up_after_the_timeout(client: Client, controller: Controller) -> None:
    import dataclasses

    from perdure.sdk.connection.client import Client

    gone = Client(dataclasses.replace(client.endpoint, url="http://127.0.0.1:1"))
    with pytest.raises(ConnectionLost):
        logs.follow(gone, 1, lambda _: None, give_up_s=0)
