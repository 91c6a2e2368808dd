"""File locks that last exactly as long as some process has the file open.

An open-file-description lock belongs to the open file. It is inherited across fork and exec, it ends when the last
holder closes the file or dies, and it can be queried without being taken. So a lock proves that its holder lives, which
a process id, which may be reused, does not.
"""

from __future__ import annotations

import fcntl
import os
import struct
import threading
import time

_FLOCK = "hhqqi4x"  # struct flock with 64-bit offsets: type, whence, start, length, pid


def hold(path: str, *, wait: bool = True) -> int:
    """Open `path` (created if missing) and lock it. The returned file descriptor holds the lock.

    Raises BlockingIOError if another process holds the lock and `wait` is false.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.fcntl(
            fd, fcntl.F_OFD_SETLKW if wait else fcntl.F_OFD_SETLK, struct.pack(_FLOCK, fcntl.F_WRLCK, 0, 0, 0, 0)
        )
    except BaseException:
        os.close(fd)
        raise
    return fd


def is_held(path: str) -> bool:
    """Whether any process holds the lock. False if the file does not exist."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return False
    try:
        result = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, struct.pack(_FLOCK, fcntl.F_WRLCK, 0, 0, 0, 0))
    finally:
        os.close(fd)
    return bool(struct.unpack(_FLOCK, result)[0] != fcntl.F_UNLCK)


def wait_until_free(path: str, timeout_s: float) -> bool:
    """Wait until the lock is free or the file is gone. False if that takes longer than `timeout_s`."""
    until = time.monotonic() + timeout_s
    pause = threading.Event()
    while is_held(path):
        if time.monotonic() >= until:
            return False
        pause.wait(0.005)
    return True
