"""What can go wrong with a checkpoint, and the patience with which a bucket's mount is read.

Three answers that must never be mixed up: it is broken (`NoUsableCheckpoint`), it can not be read now
(`CheckpointUnavailable`), and the save did not happen (`CheckpointError`). "Nothing saved yet" is no error.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")

RETRY_DELAYS_S: tuple[float, ...] = (0.1, 0.3, 1.0)

# What a network mount answers while it is being restarted or its bucket can not be reached.
TRANSIENT_ERRNOS = frozenset(
    {
        errno.EIO,
        errno.ENOTCONN,
        errno.ESTALE,
        errno.ETIMEDOUT,
        errno.EAGAIN,
        errno.ECONNABORTED,
        errno.ECONNREFUSED,
        errno.ECONNRESET,
        errno.EHOSTUNREACH,
        errno.ENETUNREACH,
    }
)
ABSENT_ERRNOS = frozenset({errno.ENOENT, errno.ENOTDIR})


class CheckpointError(Exception):
    """A checkpoint could not be saved or loaded. The message says why and what to do."""


class CheckpointUnavailable(CheckpointError):
    """The place that holds the checkpoints can not be read now; nothing is known about what it holds.

    Never a reason to start from scratch: run again when the mount, the disk or the permissions are back.
    """


class NoUsableCheckpoint(CheckpointError):
    """Checkpoints exist, and every one of them was refused. `skipped` holds (step, reason), newest first."""

    def __init__(self, message: str, skipped: Sequence[tuple[int, str]] = ()) -> None:
        super().__init__(message)
        self.skipped = tuple(skipped)


def patiently(read: Callable[[], T], what: str) -> T:
    """Call `read`, again after a short while when the error is a passing one.

    Raises FileNotFoundError or NotADirectoryError when `what` does not exist, and CheckpointUnavailable for every other
    OSError, passing ones after the last retry: a file that can not be read is not a damaged one.
    """
    delays = iter(RETRY_DELAYS_S)
    while True:
        try:
            return read()
        except OSError as error:
            if error.errno in ABSENT_ERRNOS:
                raise
            delay_s = next(delays, None) if error.errno in TRANSIENT_ERRNOS else None
            if delay_s is None:
                raise CheckpointUnavailable(
                    f"reading {what}: {error.strerror or error}. It may be whole: nothing was skipped or removed. "
                    "Bring the disk or the bucket's mount back and run again."
                ) from error
            time.sleep(delay_s)
