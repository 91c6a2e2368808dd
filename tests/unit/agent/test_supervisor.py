"""The node's state machine with real scripts and storage that fails on demand."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import perdure.agent
from perdure.agent.clock import now
from perdure.agent.orders import Orders, StopNow
from perdure.agent.places import Places
from perdure.agent.report import Outbox, Report
from perdure.agent.spec import NodeSpec
from perdure.agent.state import StateFile
from perdure.agent.storage import StorageFailed
from perdure.agent.supervisor import Supervisor

LIBRARY = Path(perdure.agent.__path__[0]).parent.parent


class Storage:
    """As `NodeStorage`, with faults: texts of failures, and an event that flushing waits for."""

    def __init__(self, home: Path) -> None:
        self.prepare_fails = ""
        self.flush_fails = ""
        self.flush_waits_for: threading.Event | None = None
        self.flushing = threading.Event()
        self.deadlines: list[float | None] = []
        self.unmounted = 0
        self.last_seen: list[dict[str, Any]] = []
        self.changed: Callable[[list[dict[str, Any]], list[str]], None] | None = None
        self._home = home

    def prepare(self, *, with_files: bool) -> None:
        (self._home / "sky_workdir").mkdir(parents=True, exist_ok=True)
        if self.prepare_fails:
            raise StorageFailed(self.prepare_fails)

    def abandon_preparing(self) -> None:
        pass

    def watch(self, changed: Callable[[list[dict[str, Any]], list[str]], None]) -> None:
        self.changed = changed

    def flush(self, deadline: float | None) -> None:
        self.deadlines.append(deadline)
        self.flushing.set()
        if self.flush_waits_for is not None:
            self.flush_waits_for.wait(20)
        if self.flush_fails:
            raise StorageFailed(self.flush_fails)

    def unmount(self) -> None:
        self.unmounted += 1


class Node:
    def __init__(self, root: Path) -> None:
        self.places = Places(root / "state")
        self.places.make()
        self.storage = Storage(root / "home")
        self.orders = Orders(StateFile(self.places.state), log=lambda _: None)
        self.outbox = Outbox(Report(), notices=[], sizes=lambda: {"logs": {"size": 0}})
        self.supervisor: Supervisor | None = None

    def make(self, run: str | None = None, setup: str | None = None, **spec: Any) -> Supervisor:
        base = {"version": 1, "job_id": 1, "task_index": 0, "generation": 1, "rank": 0, "num_nodes": 1}
        parsed = NodeSpec.parse({**base, "run": run, "setup": setup, **spec})
        storage: Any = self.storage
        self.supervisor = Supervisor(
            parsed, self.orders, storage, self.outbox, places=self.places, library=LIBRARY,
            before_end=lambda: None, log=lambda _: None,
        )  # fmt: skip
        return self.supervisor

    def live(self, **spec: Any) -> Report:
        self.make(**spec).live()
        return self.outbox.report

    def live_beside(self, **spec: Any) -> threading.Thread:
        thread = threading.Thread(target=self.make(**spec).live, daemon=True)
        thread.start()
        return thread

    def until(self, is_true: Callable[[], bool]) -> None:
        until = time.monotonic() + 20
        while not is_true():
            assert time.monotonic() < until
            threading.Event().wait(0.005)

    def until_printed(self, text: str) -> None:
        self.until(lambda: self.places.log.exists() and text in self.places.log.read_text())


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    node = Node(tmp_path)
    node.orders.direct({"want": "run", "node_ips": ["10.0.0.1"]})
    yield node
    if node.supervisor is not None:
        node.supervisor.kill()


def test_all_goes_well(node: Node) -> None:
    report = node.live(run="true", setup="true")
    assert (report.phase, report.exit_code, report.failed_stage, report.message) == ("ended", 0, None, "")
    assert node.storage.deadlines == [None]
    assert node.storage.unmounted == 0


def test_a_mount_that_fails(node: Node) -> None:
    node.storage.prepare_fails = "mounting at /x: no bucket b"
    report = node.live(run="true")
    assert (report.failed_stage, report.message, report.exit_code) == ("mounts", "mounting at /x: no bucket b", None)
    assert node.storage.deadlines == []


@pytest.mark.parametrize(
    ("run", "setup", "stage", "exit_code"),
    [("exit 0", "exit 0", "flush", 0), ("exit 3", "exit 0", "run", 3), ("exit 0", "exit 4", "setup", 4)],
)
def test_a_flush_that_fails(node: Node, run: str, setup: str, stage: str, exit_code: int) -> None:
    node.storage.flush_fails = "2 files did not reach bucket b"
    report = node.live(run=run, setup=setup)
    assert (report.failed_stage, report.exit_code) == (stage, exit_code)
    assert report.message.endswith("2 files did not reach bucket b")
    assert node.storage.unmounted == 1  # or it would write on after `ended`


def test_a_drain_flushes_by_its_deadline(node: Node) -> None:
    living = node.live_beside(run="echo up; sleep 600", mounts=[{"path": "/x"}])
    node.until_printed("up")
    deadline = now() + 8
    node.orders.direct({"want": "drain", "deadline": deadline})
    living.join(20)
    assert node.outbox.report.interrupted
    assert node.storage.deadlines == [deadline]


def test_what_flushing_needs_is_kept_from_the_workload(node: Node) -> None:
    living = node.live_beside(run="trap '' TERM; echo up; sleep 600 & wait; sleep 600", mounts=[{"path": "/x"}])
    node.until_printed("up")
    deadline = now() + 4
    node.orders.direct({"want": "drain", "deadline": deadline})
    assert node.storage.flushing.wait(20)
    assert 0.5 < deadline - now() <= 2.05
    living.join(20)


def test_a_deadline_that_comes_while_flushing(node: Node) -> None:
    """`run` has ended by itself, so it was not interrupted; what was not flushed by then is lost and said."""
    node.storage.flush_waits_for = threading.Event()
    living = node.live_beside(run="true")
    assert node.storage.flushing.wait(20)
    node.orders.direct({"want": "drain", "deadline": now() - 1})
    living.join(20)
    assert not living.is_alive()
    report = node.outbox.report
    assert (report.phase, report.failed_stage, report.interrupted, report.exit_code) == ("ended", "flush", False, 0)
    node.storage.flush_waits_for.set()


def test_a_stop_waits_for_no_flush(node: Node) -> None:
    node.storage.flush_waits_for = threading.Event()
    supervisor = node.make(run="true")
    stopped = threading.Event()

    def live() -> None:
        with pytest.raises(StopNow):
            supervisor.live()
        stopped.set()

    threading.Thread(target=live, daemon=True).start()
    assert node.storage.flushing.wait(20)
    node.orders.direct({"want": "stop"})
    assert stopped.wait(5)
    node.storage.flush_waits_for.set()


def test_a_lost_mount_is_said_and_stays_said(node: Node) -> None:
    living = node.live_beside(run="echo up; until [ -e ~/go ]; do sleep 0.01; done", mounts=[{"path": "/x"}])
    node.until_printed("up")
    assert node.storage.changed is not None
    node.storage.changed([{"path": "/x", "mode": "MOUNT", "state": "lost", "pending": 0}], ["/x"])
    assert (node.outbox.report.mount_lost, node.outbox.report.phase) == (True, "running")
    (Path(node.storage._home) / "go").touch()
    living.join(20)
    assert (node.outbox.report.mount_lost, node.outbox.report.message) == (True, "lost the mount at /x")


def test_bash_that_is_missing(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    report = node.live(run="true")
    assert (report.exit_code, report.failed_stage) == (127, "run")
    assert "bash can not be started" in node.places.log.read_text()


def test_a_runner_that_can_not_start(node: Node) -> None:
    supervisor = node.make(run="true")
    supervisor._run._library = Path("/nowhere")
    supervisor.live()
    assert node.outbox.report.failed_stage == "run"
    assert "ModuleNotFoundError" in node.outbox.report.message
