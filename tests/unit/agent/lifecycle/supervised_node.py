"""A supervisor with real scripts, and storage that fails on demand."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import perdure.agent
from perdure.agent.lifecycle.desired_state import DesiredState
from perdure.agent.lifecycle.supervisor import Supervisor
from perdure.agent.link.outbox import Outbox, Report
from perdure.agent.node_spec import NodeSpec
from perdure.agent.paths import NodePaths
from perdure.agent.state_file import StateFile
from perdure.agent.storage.node_storage import StorageFailed
from support.helpers.timing import scaled

LIBRARY = Path(perdure.agent.__path__[0]).parent.parent


class Storage:
    """Stands in for `NodeStorage`, with faults: failure messages, and an event that flushing waits for."""

    def __init__(self, home: Path) -> None:
        self.prepare_fails = ""
        self.refresh_fails = ""
        self.flush_fails = ""
        self.flush_waits_for: threading.Event | None = None
        self.flushing = threading.Event()
        self.deadlines: list[float | None] = []
        self.unmounted = 0
        self.lost: list[str] = []
        self.replaced: list[str] = []
        self.check_waits_for: threading.Event | None = None
        self.last_snapshot: list[dict[str, Any]] = []
        self.changed: Callable[[list[dict[str, Any]], list[str]], None] | None = None
        self.home = home
        self.refreshed: tuple[bool, bool] | None = None

    def prepare(self, *, with_files: bool) -> None:
        (self.home / "sky_workdir").mkdir(parents=True, exist_ok=True)
        if self.prepare_fails:
            raise StorageFailed(self.prepare_fails)

    def refresh(self) -> None:
        self.refreshed = (self.home / "setup-ran").exists(), (self.home / "run-ran").exists()
        if self.refresh_fails:
            raise StorageFailed(self.refresh_fails)

    def cancel_prepare(self) -> None:
        pass

    def watch(self, changed: Callable[[list[dict[str, Any]], list[str]], None]) -> None:
        self.changed = changed

    def find_lost_mounts(self) -> list[str]:
        if self.check_waits_for is not None:
            self.check_waits_for.wait(scaled(20))
        return self.lost

    def new_mounts(self) -> list[str]:
        return self.replaced

    def flush(self, deadline: float | None) -> None:
        self.deadlines.append(deadline)
        self.flushing.set()
        if self.flush_waits_for is not None:
            self.flush_waits_for.wait(scaled(20))
        if self.flush_fails:
            raise StorageFailed(self.flush_fails)

    def unmount(self) -> None:
        self.unmounted += 1


class Node:
    """A node of one supervisor, without its agent."""

    def __init__(self, root: Path) -> None:
        self.paths = NodePaths(root / "state")
        self.paths.create()
        self.storage = Storage(root / "home")
        self.desired = DesiredState(StateFile(self.paths.state), log=lambda _: None)
        self.outbox = Outbox(Report(), notices=[], sizes=lambda: {"logs": {"size": 0}})
        self.supervisor: Supervisor | None = None
        self.ended_sessions: list[str] = []

    def make(self, run: str | None = None, setup: str | None = None, **spec: Any) -> Supervisor:
        base = {"version": 1, "job_id": 1, "task_index": 0, "generation": 1, "rank": 0, "num_nodes": 1}
        parsed = NodeSpec.parse({**base, "run": run, "setup": setup, **spec})
        storage: Any = self.storage
        self.supervisor = Supervisor(
            parsed, self.desired, storage, self.outbox, paths=self.paths, library=LIBRARY,
            before_end=lambda: None, end_sessions=self.ended_sessions.append, log=lambda _: None,
        )  # fmt: skip
        return self.supervisor

    def live(self, **spec: Any) -> Report:
        self.make(**spec).run()
        return self.outbox.report

    def live_beside(self, **spec: Any) -> threading.Thread:
        thread = threading.Thread(target=self.make(**spec).run, daemon=True)
        thread.start()
        return thread

    def until(self, is_true: Callable[[], bool]) -> None:
        until = time.monotonic() + scaled(20)
        while not is_true():
            assert time.monotonic() < until
            threading.Event().wait(0.005)

    def until_printed(self, text: str) -> None:
        self.until(lambda: self.paths.log.exists() and text in self.paths.log.read_text())
