"""Locks on files that last exactly as long as somebody has them open.

An open-file-description lock belongs to the open file: it is inherited across fork and exec, ends when the last holder
closes or dies, and can be asked about without being taken. So a lock tells who lives, and no reused process id lies.
"""

from __future__ import annotations

import fcntl
import os
import struct
import threading
import time

_FLOCK = "hhqqi4x"  # struct flock with 64-bit offsets: type, whence, start, length, pid


def hold(path: str, *, wait: bool = True) -> int:
    """Open `path` (made if missing) and lock it; the file descriptor holds the lock.

    Raises BlockingIOError if somebody holds it and `wait` is false.
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
    """Whether anybody holds the lock. A file that does not exist is not held."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return False
    try:
        answer = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, struct.pack(_FLOCK, fcntl.F_WRLCK, 0, 0, 0, 0))
    finally:
        os.close(fd)
    return bool(struct.unpack(_FLOCK, answer)[0] != fcntl.F_UNLCK)


def wait_until_free(path: str, timeout_s: float) -> bool:
    """Wait until nobody holds the lock, or the file is gone; whether that came in time."""
    until = time.monotonic() + timeout_s
    pause = threading.Event()
    while is_held(path):
        if time.monotonic() >= until:
            return False
        pause.wait(0.005)
    return True
