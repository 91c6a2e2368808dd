"""Settings of the daemon's process: limits, garbage collection, and imports to avoid."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import importlib.metadata
import os
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

from perdure.controller.runtime.config.errors import CannotStart

_MAX_OPEN_FILES = 65_536
_SWITCH_INTERVAL_S = 0.0005


@contextlib.contextmanager
def block_import(module: str) -> Iterator[None]:
    """Make imports of `module` fail within the context, as if it were not installed, unless it is loaded already."""
    if module in sys.modules:
        yield
        return
    sys.modules[module] = None  # type: ignore[assignment]  # the import system's convention
    try:
        yield
    finally:
        del sys.modules[module]


def load_structlog() -> None:
    """Load structlog without rich, which it imports for consoles if installed: 5 MiB that a daemon does not need."""
    with block_import("rich"):
        import structlog  # noqa: F401


@contextlib.contextmanager
def quick_imports() -> Iterator[None]:
    """Import a daemon's modules within this context: after a crash, users and nodes wait for it.

    It collects no garbage: imports create next to none, and searching for it takes a tenth of their time. What was
    imported is never searched. It leaves out pydantic.v1, where FastAPI looks for models of that version, which Perdure
    has none of, and the plugins of APScheduler and pydantic.
    """
    gc.disable()
    try:
        with block_import("pydantic.v1"), _without_plugins():
            yield
    finally:
        gc.freeze()
        gc.enable()


@contextlib.contextmanager
def _without_plugins() -> Iterator[None]:
    """Let no import search for plugins: each search reads the metadata of every installed package."""
    real = importlib.metadata.entry_points
    importlib.metadata.entry_points = lambda **_: ()  # type: ignore[assignment]
    try:
        yield
    finally:
        importlib.metadata.entry_points = real


@contextlib.contextmanager
def private_files() -> Iterator[None]:
    """Within the context, files and folders that this process creates are readable only by their owner."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def tune_process() -> None:
    """Prepare this process for thousands of connections, each of which holds an open file.

    Full garbage collections become rare: with ten thousand connections each takes a second. Collections of young
    objects stay small, since they block the event loop, and imported modules are never scanned. The switch interval is
    short, because the event loop may have to wait for it at each event.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = _MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _MAX_OPEN_FILES)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    gc.freeze()
    gc.set_threshold(10_000, 5, 200)
    sys.setswitchinterval(_SWITCH_INTERVAL_S)


@contextlib.contextmanager
def single_instance_lock(home: Path) -> Iterator[None]:
    """Lock the home for this process: a second daemon on the same SQLite database would consider itself the only one.

    Raises CannotStart.
    """
    with (home / "controller.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise CannotStart(
                f"a controller already runs on {home}; see `perdure controller status`, or give another --home"
            ) from error
        yield
