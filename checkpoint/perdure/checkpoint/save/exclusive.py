"""One save at a time in a directory, also between programs on one machine.

What a function wrote is found by comparing the directory before and after its call, so another program that saves into
the directory meanwhile must wait. On different machines, the manifests tell the files of the other one
(`function_save._is_of_another_series`).
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import time
from collections.abc import Iterator

from perdure.checkpoint.load.directory_cache import DirectoryCache

logger = logging.getLogger("perdure.checkpoint")

LIMIT_S = 120.0
_POLL_S = 0.05
_RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
_HOLDER = "PERDURE_SAVING"  # the directory that this process, or the one that started it, is saving into


@contextlib.contextmanager
def exclusive(root: str, cache: DirectoryCache) -> Iterator[None]:
    """Hold `cache.lock`, and keep other programs from saving into `root`, which must exist.

    After `LIMIT_S` it goes on with a warning. Ranks other than 0 do not wait for each other: a function that all ranks
    call may exchange data between them.
    """
    with cache.lock:
        if os.environ.get(_HOLDER) == root or any(os.environ.get(name, "0") != "0" for name in _RANKS):
            yield
            return
        try:
            descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:  # the save itself will find out why
            yield
            return
        before = os.environ.get(_HOLDER)
        try:
            _lock(descriptor, root)
            os.environ[_HOLDER] = root
            yield
        finally:
            os.environ.pop(_HOLDER, None)
            if before is not None:
                os.environ[_HOLDER] = before
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)


def _lock(descriptor: int, root: str) -> None:
    ends_at = time.monotonic() + LIMIT_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= ends_at:
                logger.warning("another program has been saving into %s for %.0f s; not waiting for it", root, LIMIT_S)
                return
        except OSError:
            return  # the file system has no locks
        time.sleep(_POLL_S)
