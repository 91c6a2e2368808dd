"""Work that may block for long, on its own thread, so that the supervisor can still react to directives."""

from __future__ import annotations

import threading
from collections.abc import Callable


class BackgroundTask:
    """Runs `work` on a new thread, at once. It cannot be cancelled; the caller can only stop waiting for it."""

    def __init__(self, name: str, work: Callable[[], None]) -> None:
        self._work = work
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def is_done(self) -> bool:
        return not self._thread.is_alive()

    def wait(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)

    def result(self) -> None:
        """Raise the exception that the work raised, if any. Call it only once `is_done`."""
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001 (raised again by `result`)
            self._error = error
