"""The upload of a process's last save, for saves that would only wait behind it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from perdure.checkpoint.durability import status
from perdure.checkpoint.errors import CheckpointUnavailable

_POLL_S = 1.0


class PendingUpload:
    """The files that this process has saved last, until the bucket has them.

    `begin` may be called in another thread.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._paths: Sequence[str] = ()
        self._polled_at = float("-inf")

    def begin(self, paths: Sequence[str]) -> None:
        """`paths` on a bucket's mount were written."""
        self._paths = list(paths)
        self._polled_at = float("-inf")

    @property
    def was_pending(self) -> bool:
        """What `is_pending` returned last; True after `begin`."""
        return bool(self._paths)

    def is_pending(self) -> bool:
        """Whether they are known not to be in the bucket; at most a second old. False once the upload has ended."""
        if self._paths and self._clock() - self._polled_at >= _POLL_S:
            self._polled_at = self._clock()
            paths = self._paths
            try:
                if status.is_durable(paths) is not False and paths is self._paths:
                    self._paths = ()
            except CheckpointUnavailable:
                self._paths = ()
        return bool(self._paths)
