"""The lock that a command holds while it creates the process of the embedded controller, so that only one is created.

It is held for a moment, not until the controller answers, and nobody blocks on it: a command that is suspended while it
holds the lock must not suspend all others. The file names the command, and the controller that it created.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from perdure.sdk.connection.embedded import is_controller
from perdure.sdk.connection.endpoint import NoController

START_LOCK = "controller.start.lock"
_RECORD_BYTES = 64


class StartLock:
    """The start lock of `home`. Its methods raise OSError, and NoController if the file is no regular file."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._path = home / START_LOCK

    @contextlib.contextmanager
    def try_acquire(self) -> Iterator[HeldLock | None]:
        """The lock, until the end of the block; None at once if another command holds it."""
        lock = self._open(os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
        else:
            yield HeldLock(lock)
        finally:
            os.close(lock)

    def is_held(self) -> bool:
        """Whether a command is creating a controller at this moment."""
        if not self._path.exists():
            return False
        with self.try_acquire() as lock:
            return lock is None

    def holder(self) -> int:
        """The process of the command that took the lock last; 0 if unknown."""
        return self._record()[0]

    def starting_pid(self) -> int | None:
        """The controller that was created last, if it is alive. It may not have written its record yet."""
        pid = self._record()[1]
        return pid if is_controller(pid, self._home) else None

    def _record(self) -> tuple[int, int]:
        try:
            lock = self._open(os.O_RDONLY)
        except FileNotFoundError:
            return 0, 0
        try:
            pids = os.pread(lock, _RECORD_BYTES, 0).split()
        finally:
            os.close(lock)
        return (int(pids[0]), int(pids[1])) if len(pids) == 2 and all(map(bytes.isdigit, pids)) else (0, 0)

    def _open(self, flags: int) -> int:
        # Without O_NONBLOCK, opening a named pipe would wait for its other end.
        lock = os.open(self._path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
        if not stat.S_ISREG(os.fstat(lock).st_mode):
            os.close(lock)
            raise NoController("it is not a regular file", where=str(self._path), fix="remove it, and run this again")
        return lock


class HeldLock:
    """The start lock while this process holds it."""

    def __init__(self, lock: int) -> None:
        self._lock = lock

    def record(self, controller_pid: int = 0) -> None:
        """Write down this process, and the controller that it created. Later calls need no more room on the disk."""
        os.pwrite(self._lock, f"{os.getpid()} {controller_pid}".ljust(_RECORD_BYTES - 1).encode() + b"\n", 0)
