"""The time limit of a whole exchange with a receiver: a socket's own timeout begins again with every byte."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from types import TracebackType
from typing import Self


class ExchangeLimit:
    """Shuts the connection down when `limit_s` are over. As a context, it ends with the exchange.

    What then waits for the receiver gets an end of the stream or an OSError; `is_over` says why.
    """

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self._deadline = time.monotonic() + limit_s
        self._lock = threading.Lock()
        self._watched: list[socket.socket] = []
        self._timer = threading.Timer(limit_s, self._shut_down)
        self._timer.daemon = True

    @property
    def left_s(self) -> float:
        """At least a moment, since a timeout of 0 means something else."""
        return max(0.01, self._deadline - time.monotonic())

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self._deadline

    def watch(self, connected: socket.socket) -> None:
        """Shut this down at the deadline, also if it becomes the socket of a TLS session."""
        duplicate = socket.socket(fileno=os.dup(connected.fileno()))
        with self._lock:
            self._watched.append(duplicate)
        if self.is_over:
            self._shut_down()

    def __enter__(self) -> Self:
        self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._timer.cancel()
        with self._lock:
            for one in self._watched:
                one.close()
            self._watched.clear()

    def _shut_down(self) -> None:
        with self._lock:
            for one in self._watched:
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
