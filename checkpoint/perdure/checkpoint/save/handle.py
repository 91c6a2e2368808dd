"""`SaveHandle`: what `Checkpointer.save` returns."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class SaveHandle(Generic[T]):
    """One save, which may still be in progress. From any thread.

    `step`: what is saved. A failure that `result` has raised is not raised by the Checkpointer again.
    """

    def __init__(self, step: int, is_durable: Callable[[], bool | None]) -> None:
        self.step = step
        self._is_durable = is_durable
        self._done = threading.Event()
        self._error: BaseException | None = None
        self.was_raised = False  # whether `result` has raised the failure

    def run(self, commit: Callable[[], T]) -> T:
        """Do the save, and end with its outcome."""
        try:
            return commit()
        except BaseException as error:
            self._error = error
            raise
        finally:
            self._done.set()

    def done(self) -> bool:
        """Whether the save is committed, or has failed."""
        return self._done.is_set()

    def result(self, timeout: float | None = None) -> None:
        """Return once the step is committed: on the disk, with its manifest.

        Raises the failure of the save, and TimeoutError if it is not done after `timeout` seconds.
        """
        if not self._done.wait(timeout):
            raise TimeoutError(f"step {self.step} is not committed after {timeout} s; the save goes on")
        if self._error is not None:
            self.was_raised = True
            raise self._error

    @property
    def durable(self) -> bool | None:
        """Whether the step is where it outlives this machine now (on a mount: in the bucket). None: it cannot be known.

        Raises CheckpointUnavailable when the directory cannot be read.
        """
        return self._is_durable() if self.done() and self._error is None else False
