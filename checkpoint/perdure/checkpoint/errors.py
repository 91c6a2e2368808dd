"""The errors of this library, and the retries for a bucket's mount.

    Exception
    ├── CheckpointError               a save or a load failed
    │   ├── CheckpointUnavailable     the checkpoints cannot be read now
    │   │   └── PeersMissing          other processes did not respond (`ranks.group`)
    │   ├── NoUsableCheckpoint        checkpoints exist, and all of them are damaged
    │   ├── ForeignCheckpoint         not saved by a Checkpointer (`load.part_files`)
    │   └── ManifestDamaged           internal: the manifest is not valid (`format.manifest`)
    ├── TypeError
    │   └── UnsupportedValue          a part of the state cannot be saved (`state.tree`)
    └── ValueError
        ├── DamagedFile               internal: the bytes are not those that were committed (`load.block_compare`)
        ├── InvalidStateFile          internal: the file is not a state of this version (`state.container`)
        └── UnknownAlgorithm          internal: a digest of an unknown kind (`format.digest`)

Three cases must never be confused: all checkpoints are damaged (`NoUsableCheckpoint`), they cannot be read now
(`CheckpointUnavailable`), and a save did not happen (`CheckpointError`). "Nothing saved yet" is not an error.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")

RETRY_DELAYS_S: tuple[float, ...] = (0.1, 0.3, 1.0)

# Errors of a network mount that is being restarted, or that cannot reach its bucket.
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
FULL_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT})
ABSENT_ERRNOS = frozenset({errno.ENOENT, errno.ENOTDIR})


class CheckpointError(Exception):
    """A checkpoint could not be saved or loaded. The message says why and what to do."""


class CheckpointUnavailable(CheckpointError):
    """The directory of the checkpoints cannot be read now, so nothing is known about its content.

    Never a reason to start from scratch: run again when the mount, the disk or the permissions are restored.
    """


class NoUsableCheckpoint(CheckpointError):
    """Checkpoints exist, and every one of them was refused. `skipped`: (step, reason) of each, newest first."""

    def __init__(self, message: str, skipped: Sequence[tuple[int, str]] = ()) -> None:
        super().__init__(message)
        self.skipped = tuple(skipped)


def retry_transient(operation: Callable[[], T], what: str) -> T:
    """Call `operation`, and retry it after short delays when its error is transient.

    Raises FileNotFoundError or NotADirectoryError when `what` does not exist, and CheckpointUnavailable for every other
    OSError, after the last retry if it is transient: a file that cannot be read is not a damaged one.
    """
    delays = iter(RETRY_DELAYS_S)
    while True:
        try:
            return operation()
        except OSError as error:
            if error.errno in ABSENT_ERRNOS:
                raise
            delay_s = next(delays, None) if error.errno in TRANSIENT_ERRNOS else None
            if delay_s is None:
                raise CheckpointUnavailable(
                    f"reading {what}: {error.strerror or error}. It may be whole: nothing was skipped or removed. "
                    "Restore the disk or the bucket's mount and run again."
                ) from error
            time.sleep(delay_s)
