"""The stream of the checkpoint journal: what it sends, and when it reports growth."""

from __future__ import annotations

import json
import queue
import threading
from pathlib import Path
from typing import Any, cast

import pytest

from perdure.agent.link.checkpoint_stream import DISCONNECTED_POLL_S, CheckpointStream
from perdure.agent.link.websocket import WebSocket
from support.helpers.timing import pause, scaled, wait_until


class Connection:
    def __init__(self) -> None:
        self.frames: queue.Queue[dict[str, Any]] = queue.Queue()

    def send_text(self, text: str) -> None:
        self.frames.put(json.loads(text))


def line(step: int, state: str = "committed") -> str:
    fields = {"step": step, "state": state, "path": f"/c/{step}", "at": 1.5, "directory": "/c", "files": ["a"]}
    return json.dumps(fields) + "\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints.jsonl"


def test_stream__sends_the_lines_after_the_acknowledged_one(path: Path) -> None:
    path.write_text(line(1) + "torn\n" + line(2) + line(2, "durable"))
    stream, connection = CheckpointStream(path), Connection()
    stream.start()
    stream.attach(cast(WebSocket, connection), {"checkpoint_seq": 1})
    frames = [connection.frames.get(timeout=scaled(10)) for _ in range(2)]
    assert frames == [
        {"type": "checkpoint", "seq": 2, "step": 2, "state": "committed", "path": "/c/2", "at": 1.5},
        {"type": "checkpoint", "seq": 3, "step": 2, "state": "durable", "path": "/c/2", "at": 1.5},
    ]
    assert stream.wait_sent(10)
    assert stream.newest_seq() == 3
    stream.detach()


@pytest.mark.parametrize("is_connected", [True, False])
def test_on_growth__is_called_for_every_change_also_without_a_controller(path: Path, is_connected: bool) -> None:
    grown = threading.Semaphore(0)
    stream = CheckpointStream(path, on_growth=grown.release)
    stream.start()
    if is_connected:
        stream.attach(cast(WebSocket, Connection()), {"checkpoint_seq": 0})
    assert not grown.acquire(timeout=0.2), "there is no journal yet"
    for step in (1, 2):
        with path.open("a") as file:
            file.write(line(step))
        assert grown.acquire(timeout=scaled(10))
    assert not grown.acquire(timeout=0.2)
    stream.detach()


class CountingPath(type(Path())):  # type: ignore[misc]  # Path chooses its own subclass
    """A path that counts how often it was looked up."""

    lookups = 0

    def __fspath__(self) -> str:
        type(self).lookups += 1
        return str(self)


def test_stream__polls_rarely_until_a_connection_is_open(path: Path) -> None:
    path.write_text(line(1))
    stream, connection = CheckpointStream(CountingPath(path)), Connection()
    stream.start()
    before = wait_until(lambda: CountingPath.lookups, "the first look at the journal")
    pause(1.0)
    assert CountingPath.lookups - before <= 1.0 / DISCONNECTED_POLL_S + 2
    stream.attach(cast(WebSocket, connection), {"checkpoint_seq": 0})
    assert connection.frames.get(timeout=scaled(10))["step"] == 1
    stream.detach()


HOSTILE = ("[" * 200_000, '{"a":' * 100_000, line(1).strip() + "\r" + line(2).strip(), line(1).replace("/c", "\\ud800"))


@pytest.mark.parametrize("hostile", HOSTILE)
def test_stream__sends_what_stands_beside_a_hostile_line(path: Path, hostile: str) -> None:
    path.write_text(line(1) + hostile.strip() + "\n" + line(2), newline="")
    stream, connection = CheckpointStream(path), Connection()
    assert stream.newest_seq() == 2
    stream.start()
    stream.attach(cast(WebSocket, connection), {"checkpoint_seq": 0})
    frames = [connection.frames.get(timeout=scaled(10)) for _ in range(2)]
    assert [(frame["seq"], frame["step"]) for frame in frames] == [(1, 1), (2, 2)]
    assert stream.wait_sent(10)
    stream.detach()


def test_newest_seq__does_not_count_a_line_that_is_not_complete(path: Path) -> None:
    path.write_text(line(1) + line(2).strip())
    assert CheckpointStream(path).newest_seq() == 1
