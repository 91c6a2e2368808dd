"""Removes folders that nothing needs any more on a thread of its own: gigabytes take minutes."""

from __future__ import annotations

import secrets
import shutil
import threading
from contextlib import suppress
from pathlib import Path

from perdure.agent.lifecycle.background_task import BackgroundTask

_PREFIX = ".removed-"


def is_removed(folder: Path) -> bool:
    """Whether the folder has this name because it is about to be removed."""
    return folder.name.startswith(_PREFIX)


class FolderRemovals:
    """The folders that are about to be removed. What an agent leaves that dies meanwhile is found by `resume`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[Path] = []
        self._task: BackgroundTask | None = None

    def add(self, folder: Path) -> None:
        """Rename a folder, so that its name is free at once, and remove it. Returns at once.

        A folder that does not exist, or that cannot be renamed, is left alone.
        """
        hidden = folder.with_name(f"{_PREFIX}{secrets.token_hex(8)}")
        with suppress(OSError):
            folder.rename(hidden)
            self._enqueue([hidden])

    def resume(self, parent: Path) -> None:
        """Remove what an earlier agent has renamed in `parent`. Call it before the first `add`."""
        if parent.is_dir():
            self._enqueue([folder for folder in parent.iterdir() if is_removed(folder)])

    def _enqueue(self, folders: list[Path]) -> None:
        with self._lock:
            self._waiting += folders
            if self._waiting and self._task is None:
                self._task = BackgroundTask("folder-removals", self._run)

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._task = None
                    return
                folder = self._waiting.pop(0)
            shutil.rmtree(folder, ignore_errors=True)
