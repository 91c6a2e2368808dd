"""One piece of work at a time, in a background thread. Its error is raised by the next call, never lost."""

from __future__ import annotations

import atexit
import logging
import threading
from collections.abc import Callable
from typing import Any

from perdure.checkpoint.save.handle import SaveHandle

logger = logging.getLogger("perdure.checkpoint")


class Background:
    """Runs one piece of work at a time. The interpreter's exit waits for it too, and logs an error that was not
    raised."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._handle: SaveHandle[Any] | None = None

    def start(self, work: Callable[[], None], handle: SaveHandle[Any]) -> None:
        """Start `work` once the previous work has ended. Raises the error of the previous work.

        `handle`: of the save that the work belongs to; an error that it has raised is not raised again.
        """
        self.wait()
        self._handle = handle

        def run() -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001 - raised by `wait`
                self._error = error

        self._thread = threading.Thread(target=run, name="perdure-save")
        self._thread.start()
        atexit.register(self._at_exit)

    def wait(self) -> None:
        """Return when no work is running. Raises the error of the last work, once."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()
            atexit.unregister(self._at_exit)
        error, self._error = self._error, None
        if error is not None and not (self._handle is not None and self._handle.was_raised):
            raise error

    def _at_exit(self) -> None:
        try:
            self.wait()
        except BaseException as error:
            # The program has ended: there is no caller to raise it to.
            logger.error("the last save failed: %s", error, exc_info=error)
