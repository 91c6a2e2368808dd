"""Keeps the thread of a loop alive: an exception ends one pass of the loop, never its thread."""

from __future__ import annotations

import threading
from types import TracebackType

import structlog

log = structlog.get_logger(__name__)

_INITIAL_PAUSE_S = 0.05
_MAX_PAUSE_S = 5.0


class LoopGuard:
    """A context manager for one pass of a loop, used by its thread alone.

    An exception in the body is logged and followed by a pause, which doubles up to 5 s with each failure in a row.
    `ended`: cuts the pause short.
    """

    def __init__(self, thread: str, ended: threading.Event | None = None) -> None:
        self._thread = thread
        self._ended = ended or threading.Event()
        self._failures = 0

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is None:
            self._failures = 0
            return False
        if not isinstance(error, Exception):
            return False
        self._failures += 1
        log.error("thread.failed", thread=self._thread, failures=self._failures, exc_info=error)
        self._ended.wait(min(_MAX_PAUSE_S, _INITIAL_PAUSE_S * 2.0 ** min(self._failures - 1, 10)))
        return True
