"""Starts the embedded controller, and waits as long as its start makes progress. Nothing here ever ends a controller.

A start can take minutes: a busy computer, the migration of a large database, a database server that is not up yet.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from time import monotonic

from perdure.sdk.connection.embedded import RECORD, STDERR_LOG, recorded_pid, running, stderr_tail
from perdure.sdk.connection.endpoint import Endpoint, NoController
from perdure.sdk.connection.installation import install_command
from perdure.sdk.connection.private_home import make_private
from perdure.sdk.connection.start_lock import StartLock

_POLL_S = 0.05
_MIN_FREE_BYTES = 1_000_000  # with less, a controller that wrote nothing most likely had no room to write
_RESTART = "perdure controller stop && perdure controller start"


@dataclass(frozen=True)
class StartTimeouts:
    """How long to wait, in seconds."""

    answer_s: float = 30.0  # for a controller that has started, but does not answer
    progress_s: float = 60.0  # for any progress of one that is starting
    lock_s: float = 30.0  # for another command that holds the start lock
    silence_s: float = 5.0  # until the first line that says what is awaited
    repeat_s: float = 30.0  # between the later ones


TIMEOUTS = StartTimeouts()


def start(home: Path, timeouts: StartTimeouts = TIMEOUTS) -> Endpoint:
    """The embedded controller of `home`; creates its process unless there is one. Raises NoController."""
    _require_daemon()
    try:
        make_private(home)
        endpoint = _Start(home, timeouts, may_create=True).wait()
    except (FileExistsError, NotADirectoryError) as error:
        path = str(error.filename or home)
        raise NoController("is not a folder", where=path, fix="set PERDURE_HOME to a folder, or unset it") from error
    except OSError as error:
        raise NoController(
            f"cannot be used: {error.strerror}",
            where=str(error.filename or home),
            fix="free some space and make the folder writable for you, or set PERDURE_HOME to another folder",
        ) from error
    assert endpoint is not None
    return endpoint


def await_start(home: Path, timeouts: StartTimeouts = TIMEOUTS) -> Endpoint | None:
    """The controller that another command is starting; None if no command is. Raises NoController."""
    return _Start(home, timeouts, may_create=False).wait()


class _Start:
    """Waits for one thing at a time: an answer, the progress of a start, or the start lock."""

    def __init__(self, home: Path, timeouts: StartTimeouts, *, may_create: bool) -> None:
        self._home, self._timeouts, self._may_create = home, timeouts, may_create
        self._lock = StartLock(home)
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0
        self._began_at = monotonic()
        self._say_at = self._began_at + timeouts.silence_s
        self._awaited: object = None  # what is awaited, and how far it has come
        self._since = self._began_at  # when that last changed

    def wait(self) -> Endpoint | None:
        try:
            while (endpoint := running(self._home)) is None:
                self._check_own()
                if pid := recorded_pid(self._home):
                    self._await_answer(pid)
                elif pid := self._lock.starting_pid():
                    self._await_progress(pid)
                elif self._process is not None:
                    pass  # it is ending, which takes long on a busy computer: `_check_own` will say why
                elif self._may_create:
                    self._create()
                elif self._lock.is_held():
                    self._await_lock()
                else:
                    return running(self._home)
                Event().wait(_POLL_S)
            return endpoint
        finally:
            if self._process is not None and self._process.returncode is None:
                self._process.returncode = 0  # it outlives us on purpose; avoids the ResourceWarning of Popen

    def _check_own(self) -> None:
        if self._process is not None and self._process.poll() is not None:
            raise _start_failed(self._home, self._log_start, self._process.returncode)

    def _await_answer(self, pid: int) -> None:
        waited_s = self._waited_s(("answer", pid))
        self._say(f"waiting for the controller (process {pid}) to answer")
        if waited_s > self._timeouts.answer_s:
            raise NoController(
                f"the controller (process {pid}) does not answer",
                where=str(self._home),
                fix=f"read {self._home / STDERR_LOG}, then run: {_RESTART}",
            )

    def _await_progress(self, pid: int) -> None:
        waited_s = self._waited_s(("progress", pid, _cpu_ticks(pid), _last_change(self._home)))
        self._say(f"the controller is starting ({monotonic() - self._began_at:.0f} s); its process is {pid}")
        if waited_s > self._timeouts.progress_s:
            raise NoController(
                f"the controller (process {pid}) is still starting, but has made no progress for {waited_s:.0f} s",
                where=str(self._home),
                fix=f"it was left running; read {self._home / STDERR_LOG}; to give it up, run: kill -9 {pid}",
            )

    def _await_lock(self) -> None:
        holder = self._lock.holder()
        name = f"another command (process {holder})"
        waited_s = self._waited_s(("lock", holder))
        self._say(f"waiting for {name}, which is about to start the controller")
        if waited_s > self._timeouts.lock_s:
            raise NoController(
                f"{name} has been about to start the controller for {waited_s:.0f} s",
                where=str(self._home),
                fix=f"if it is suspended, run: kill -CONT {holder}; to give it up, run: kill -9 {holder}",
            )

    def _create(self) -> None:
        with self._lock.try_acquire() as lock:
            if lock is None:
                self._await_lock()
            elif recorded_pid(self._home) is None and self._lock.starting_pid() is None:
                lock.record()
                # Its process is dead, so no client may use its address while ours starts.
                (self._home / RECORD).unlink(missing_ok=True)
                self._process = self._launch()
                lock.record(self._process.pid)

    def _launch(self) -> subprocess.Popen[bytes]:
        with open(self._home / STDERR_LOG, "ab", opener=_open_privately) as log:
            self._log_start = log.tell()
            return subprocess.Popen(
                [sys.executable, "-P", "-m", "perdure.controller", "serve", "--home", str(self._home)],
                cwd=self._home,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _waited_s(self, awaited: object) -> float:
        if awaited != self._awaited:
            self._awaited, self._since = awaited, monotonic()
        return monotonic() - self._since

    def _say(self, text: str) -> None:
        if monotonic() >= self._say_at:
            self._say_at = monotonic() + self._timeouts.repeat_s
            clear_line = "\r\x1b[K" if sys.stderr.isatty() else ""  # a command may show an animation
            sys.stderr.write(f"{clear_line}{text} …\n")
            sys.stderr.flush()


def _open_privately(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _cpu_ticks(pid: int) -> int:
    """The CPU time of a process and its descendants, in clock ticks. 0 if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return 0
    return sum(map(int, fields[11:15])) + sum(_cpu_ticks(int(child)) for child in children)


def _last_change(home: Path) -> int:
    """When a file in `home` last changed: a migration that waits for the disk uses no CPU time, but writes."""
    changed_at = 0
    with os.scandir(home) as entries:
        for entry in entries:
            try:
                changed_at = max(changed_at, entry.stat(follow_symlinks=False).st_mtime_ns)
            except FileNotFoundError:
                continue
    return changed_at


def _require_daemon() -> None:
    from importlib.util import find_spec

    if find_spec("fastapi") is None or find_spec("sqlmodel") is None:
        raise NoController(
            "the controller is not installed on this computer",
            fix=f"run: {install_command('controller')}; or set PERDURE_ENDPOINT to one that runs elsewhere",
        )


def _start_failed(home: Path, log_start: int, exit_code: int) -> NoController:
    what = f"the controller ended with exit code {exit_code} while it started"
    tail = stderr_tail(home, since=log_start)
    if lack := shortage(home):
        return NoController(
            f"{what}: {lack}" + (f"; its last output:\n{tail}" if tail else ""),
            where=str(home),
            fix="free some space there, and run this again; nothing in the folder needs to be removed or moved",
        )
    return NoController(
        f"{what}; its last output:\n{tail or '(it wrote nothing)'}", fix=f"all of its output: {home / STDERR_LOG}"
    )


def shortage(home: Path) -> str:
    """What the file system of `home` has run out of; empty if there is enough of everything."""
    room = os.statvfs(home)
    free_bytes = room.f_bavail * room.f_frsize
    if free_bytes < _MIN_FREE_BYTES:
        return f"the disk is full ({free_bytes / 1000:.0f} KB free)"
    return "the disk has no free inodes" if room.f_files and not room.f_favail else ""
