"""One stream from its opening to its end: what every kind of session has in common."""

from __future__ import annotations

import os
import select
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perdure.agent.link.stream_copy import receive_all, send_control
from perdure.agent.link.websocket import Disconnected, WebSocket

CLOSE_TIMEOUT_S = 5.0
HANG_UP_S = 2.0
_POLL_S = 0.05


class SessionRefused(Exception):
    """The session cannot be opened on this node, or cannot go on. `fix`: what the user can do."""

    def __init__(self, message: str, fix: str = "") -> None:
        super().__init__(message)
        self.fix = fix


@dataclass(frozen=True)
class SessionContext:
    """What sessions share with the job: its environment and folders, and where the agent may write.

    `env`: returns the environment of `run`. `folders`: a command starts in the first one that exists. `library`: the
    folder of the package `perdure`. `directory`: a folder of the agent that other users cannot read. `enter`: returns
    the beginning of a command that runs in the job's container; empty if the job has none. `node_ip`: the address of
    the node.
    """

    env: Callable[[], Mapping[str, str]]
    folders: tuple[str, ...]
    library: Path
    directory: Path
    enter: Callable[[], Sequence[str]] = tuple
    node_ip: str = ""


def change_folder(folders: Sequence[str]) -> str:
    """The shell command that changes to the first of the folders that exists."""
    return f'for folder in {shlex.join(folders)}; do cd "$folder" 2>/dev/null && break; done; '


class Session:
    """An open stream. One thread serves it; a second one receives what the user sends.

    `wake` becomes readable when the session must end: the user has gone, or `end` was called.
    """

    def __init__(self, ws: WebSocket) -> None:
        self.ws = ws
        self.wake, self._wake_writer = os.pipe()
        self._used_at = 0.0
        self._must_end = threading.Event()
        self._end_reason = ""
        self._has_reported_end = False
        self._lock = threading.Lock()
        self._is_closed = False
        self._descriptors: set[int] = set()
        self._cleanup: list[Callable[[], object]] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._receiver: threading.Thread | None = None

    @property
    def used_at(self) -> float:
        """When bytes last passed, if the session calls `touch` (monotonic seconds); else now, since it is open."""
        return self._used_at or time.monotonic()

    def touch(self) -> None:
        """Bytes pass. Of a kind of session that is no use of the machine by being open."""
        self._used_at = time.monotonic()

    @property
    def must_end(self) -> bool:
        return self._must_end.is_set()

    def accept(self) -> None:
        """Report that the session is open. Raises Disconnected."""
        send_control(self.ws, {"type": "opened"})

    def refuse(self, refused: SessionRefused) -> None:
        """Report why the session cannot be opened or go on."""
        with suppress(Disconnected):
            send_control(self.ws, {"type": "error", "message": str(refused), "fix": refused.fix})

    def receive(self, on_data: Callable[[bytes], None], on_control: Callable[[Mapping[str, Any]], None]) -> None:
        """Hand on what the user sends, in a thread of its own. When the user has gone, the session must end."""

        def run() -> None:
            with suppress(Disconnected, OSError, ValueError, KeyError, TypeError):
                receive_all(self.ws, on_data, on_control)
            self.ws.abort()  # the other thread may wait for the user to read
            self._wake()

        self._receiver = threading.Thread(target=run, name="stream input", daemon=True)
        self._receiver.start()

    def end(self, reason: str) -> None:
        """End the session, from any thread. The user gets `reason`."""
        self._end_reason = self._end_reason or reason
        self._wake()

    def owns(self, process: subprocess.Popen[bytes]) -> None:
        """This process ends with the session."""
        self._process = process

    def closes(self, *descriptors: int) -> None:
        """These descriptors are closed with the session, unless `close_descriptor` closes them before."""
        self._descriptors.update(descriptors)

    def close_descriptor(self, descriptor: int) -> None:
        with self._lock:
            if descriptor in self._descriptors:
                self._descriptors.remove(descriptor)
                os.close(descriptor)

    def at_end(self, clean: Callable[[], object]) -> None:
        """Call `clean` once nothing of the session runs any more."""
        self._cleanup.append(clean)

    def await_process(self) -> int:
        """The exit code of the process, once it has ended or, if the session must end, was killed."""
        process = self._process
        assert process is not None
        self._report_end()
        poll = select.poll()
        poll.register(self.wake, select.POLLIN)
        while process.poll() is None:
            if poll.poll(_POLL_S * 1000):
                self._report_end()
                self._hang_up()
        return 128 - process.returncode if process.returncode < 0 else process.returncode

    def finish(self, exit_code: int) -> None:
        """Report how the session ended, and wait a moment until the controller has closed the stream."""
        if self._end_reason:
            self._report_end()
            return
        with suppress(Disconnected):
            send_control(self.ws, {"type": "exit", "code": exit_code})
            self._must_end.wait(CLOSE_TIMEOUT_S)

    def close(self) -> None:
        """Kill what is left, and close everything. From the thread that serves the session."""
        self._hang_up()
        self.ws.abort()
        if self._receiver is not None:
            self._receiver.join()
        self.ws.close()
        with self._lock:
            self._is_closed = True
            for descriptor in (*self._descriptors, self.wake, self._wake_writer):
                os.close(descriptor)
            self._descriptors.clear()
        for clean in self._cleanup:
            clean()

    def _report_end(self) -> None:
        """Report the reason of `end`, if it was called, before the command is killed."""
        if self._end_reason and not self._has_reported_end:
            self._has_reported_end = True
            self.refuse(SessionRefused(self._end_reason))

    def _wake(self) -> None:
        with self._lock:
            if not self._must_end.is_set() and not self._is_closed:
                self._must_end.set()
                os.write(self._wake_writer, b"!")

    def _hang_up(self) -> None:
        """SIGHUP to the process group, and SIGKILL if its leader is still there after a while."""
        process = self._process
        if process is None:
            return
        give_up_at = time.monotonic() + HANG_UP_S
        for number in (signal.SIGHUP, signal.SIGCONT):
            _signal_group(process, number)
        while process.poll() is None and time.monotonic() < give_up_at:
            time.sleep(_POLL_S)
        _signal_group(process, signal.SIGKILL)
        process.wait()


def _signal_group(process: subprocess.Popen[bytes], number: int) -> None:
    """Signal the processes of a session that `process` leads or, if it has ended, has left behind."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
