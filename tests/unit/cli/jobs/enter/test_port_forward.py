"""Connections to a forwarded port are accepted until the command ends."""

from __future__ import annotations

import errno
import os
import socket
import threading
from typing import Any

import pytest

from perdure.cli.jobs.enter import port_forward


class Listener:
    """Runs out of descriptors, then accepts one connection, then is closed."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._is_closed = False
        self._answers: list[Any] = [OSError(errno.EMFILE, os.strerror(errno.EMFILE)), connection]

    def accept(self) -> tuple[socket.socket, str]:
        answer = self._answers.pop(0) if self._answers else OSError(errno.EBADF, "closed")
        self._is_closed = not self._answers and answer is not self._connection
        if isinstance(answer, OSError):
            raise answer
        return answer, ""

    def fileno(self) -> int:
        return -1 if self._is_closed else 3


def test_port__accepts_again_after_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(port_forward, "_PAUSE_S", 0.0)
    served: list[Any] = []
    done = threading.Event()

    def serve(_client: Any, _name: str, connection: Any, _remote: int, slots: threading.BoundedSemaphore) -> None:
        served.append(connection)
        slots.release()
        done.set()

    monkeypatch.setattr(port_forward, "_forward", serve)
    connection, other = socket.socketpair()
    slots = threading.BoundedSemaphore(1)
    with connection, other:
        listener: Any = Listener(connection)
        port_forward._accept_all(None, "job-7", listener, 8888, slots)  # type: ignore[arg-type]
        assert done.wait(30)
    assert served == [connection]
    assert "port 8888: a connection cannot be accepted: Too many open files" in capsys.readouterr().err
    assert slots.acquire(blocking=False), "no slot is lost"
