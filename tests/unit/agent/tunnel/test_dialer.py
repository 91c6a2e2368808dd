"""The sessions of a node: those that are being opened when the job ends, and what an earlier agent has left."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

from perdure.agent.tunnel.dialer import StreamDialer
from perdure.agent.tunnel.session import SessionContext

ID = "ab" * 16


class Connection:
    """The connection of a stream, on which the controller requests a command."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []

    def receive(self, _timeout_s: float) -> str:
        return json.dumps({"type": "open", "kind": "exec", "argv": ["true"], "tty": False})

    def send_text(self, text: str) -> None:
        self.sent.append(json.loads(text))

    def abort(self) -> None:
        """Nothing waits for it."""

    close = abort


class Client:
    """Opens the connection once the test releases it."""

    def __init__(self) -> None:
        self.connection = Connection()
        self.is_asked, self.released = threading.Event(), threading.Event()

    def open_stream(self, _id: str) -> Connection:
        self.is_asked.set()
        assert self.released.wait(30)
        return self.connection


def dialer_of(client: Any, folder: Path) -> StreamDialer:
    return StreamDialer(client, SessionContext(dict, ("/",), folder, folder / "sessions"), log=lambda _: None)


def test_session__that_is_being_opened_when_the_job_ends_does_not_begin(tmp_path: Path) -> None:
    client = Client()
    dialer = dialer_of(client, tmp_path)
    dialer.handle_message({"type": "open_stream", "id": ID})
    assert client.is_asked.wait(30)
    dialer.end_all("the job has ended")
    client.released.set()
    dialer.wait_ended(30)
    assert client.connection.sent == [{"type": "error", "message": "the job has ended", "fix": ""}]


def test_folders__of_an_agent_that_was_killed_are_removed(tmp_path: Path) -> None:
    left = tmp_path / "sessions" / ID
    left.mkdir(parents=True)
    (left / "host_key").write_text("secret")
    dialer_of(Client(), tmp_path)
    assert not left.exists()
