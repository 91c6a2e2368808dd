"""Work that may block for long, done beside the thread that must stay able to hear."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Work:
    """`work` on a thread of its own, begun at once. It can not be cancelled, only not waited for."""

    def __init__(self, name: str, work: Callable[[], None]) -> None:
        self._work = work
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._do, name=name, daemon=True)
        self._thread.start()

    def is_done(self) -> bool:
        return not self._thread.is_alive()

    def wait(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)

    def result(self) -> None:
        """Raise what the work raised. Only for work that is done."""
        if self._error is not None:
            raise self._error

    def _do(self) -> None:
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001 (raised again by `result`)
            self._error = error
