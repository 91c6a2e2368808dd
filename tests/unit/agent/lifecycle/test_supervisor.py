"""The node's state machine with real scripts and storage that fails on demand."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import perdure.agent
from perdure.agent.clock import now
from perdure.agent.lifecycle.desired_state import DesiredState, StopNow
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

    def prepare(self, *, with_files: bool) -> None:
        (self.home / "sky_workdir").mkdir(parents=True, exist_ok=True)
        if self.prepare_fails:
            raise StorageFailed(self.prepare_fails)

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


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    node = Node(tmp_path)
    node.desired.apply_directive({"target": "run", "node_ips": ["10.0.0.1"]})
    yield node
    if node.supervisor is not None:
        node.supervisor.kill()


def test_sessions__end_before_the_flush(node: Node) -> None:
    node.live(run="true")
    assert node.ended_sessions == ["the job has ended on this machine"]


def test_what_a_session_left_behind__ends_before_the_flush(node: Node) -> None:
    """It has the environment of the job, and could write to a mount after the node has reported its end."""
    environ = {**os.environ, "PERDURE_RUN_DIR": str(node.paths.run_dir)}
    with subprocess.Popen(["sleep", "600"], env=environ, start_new_session=True) as left_behind:
        node.live(run="true")
        assert left_behind.wait(scaled(10)) == -signal.SIGKILL


def test_supervisor__reports_a_successful_run(node: Node) -> None:
    report = node.live(run="true", setup="true")
    assert (report.phase, report.exit_code, report.failed_stage, report.message) == ("ended", 0, None, "")
    assert node.storage.deadlines == [None]
    assert node.storage.unmounted == 0


def test_prepare__failure_ends_the_node(node: Node) -> None:
    node.storage.prepare_fails = "mounting at /x: no bucket b"
    report = node.live(run="true")
    assert (report.failed_stage, report.message, report.exit_code) == ("mounts", "mounting at /x: no bucket b", None)
    assert node.storage.deadlines == []


@pytest.mark.parametrize(
    ("run", "setup", "stage", "exit_code"),
    [("exit 0", "exit 0", "flush", 0), ("exit 3", "exit 0", "run", 3), ("exit 0", "exit 4", "setup", 4)],
)
def test_flush__failure_is_reported_and_unmounts(node: Node, run: str, setup: str, stage: str, exit_code: int) -> None:
    node.storage.flush_fails = "2 files did not reach bucket b"
    report = node.live(run=run, setup=setup)
    assert (report.failed_stage, report.exit_code) == (stage, exit_code)
    assert report.message.endswith("2 files did not reach bucket b")
    assert node.storage.unmounted == 1  # otherwise it would write after `ended`


def test_drain__flushes_by_its_deadline(node: Node) -> None:
    living = node.live_beside(run="echo up; sleep 600", mounts=[{"path": "/x"}])
    node.until_printed("up")
    deadline = now() + 8
    node.desired.apply_directive({"target": "drain", "deadline": deadline})
    living.join(scaled(20))
    assert node.outbox.report.interrupted
    assert node.storage.deadlines == [deadline]


def test_drain__reserves_time_for_flushing(node: Node) -> None:
    living = node.live_beside(run="trap '' TERM; echo up; sleep 600 & wait; sleep 600", mounts=[{"path": "/x"}])
    node.until_printed("up")
    deadline = now() + 4
    node.desired.apply_directive({"target": "drain", "deadline": deadline})
    assert node.storage.flushing.wait(scaled(20))
    assert 0.5 < deadline - now() <= 2.05
    living.join(scaled(20))


def test_flush__ends_at_a_deadline_that_arrives_meanwhile(node: Node) -> None:
    """`run` ended by itself, so it was not interrupted; the unflushed files are lost, and the report says so."""
    node.storage.flush_waits_for = threading.Event()
    living = node.live_beside(run="true")
    assert node.storage.flushing.wait(scaled(20))
    node.desired.apply_directive({"target": "drain", "deadline": now() - 1})
    living.join(scaled(20))
    assert not living.is_alive()
    report = node.outbox.report
    assert (report.phase, report.failed_stage, report.interrupted, report.exit_code) == ("ended", "flush", False, 0)
    node.storage.flush_waits_for.set()


def test_stop__does_not_wait_for_a_flush(node: Node) -> None:
    node.storage.flush_waits_for = threading.Event()
    supervisor = node.make(run="true")
    stopped = threading.Event()

    def live() -> None:
        with pytest.raises(StopNow):
            supervisor.run()
        stopped.set()

    threading.Thread(target=live, daemon=True).start()
    assert node.storage.flushing.wait(scaled(20))
    node.desired.apply_directive({"target": "stop"})
    assert stopped.wait(scaled(5))
    node.storage.flush_waits_for.set()


def hook(run: str, *events: str, timeout_s: float = 60.0) -> dict[str, Any]:
    return {"run": run, "events": list(events), "timeout_s": timeout_s}


TRAPPING = "trap 'echo saved; exit 0' TERM; echo up; while :; do sleep 0.05; done"


def lines(node: Node) -> list[str]:
    """The job's log without bash's message about its killed `sleep`."""
    return [line for line in node.paths.log.read_text().splitlines() if line != "Terminated"]


def test_preemption_hook__runs_before_the_workload_is_stopped_and_before_the_flush(node: Node) -> None:
    script = "echo hook of $SKYPILOT_NODE_RANK; [ -e $PERDURE_RUN_DIR/notice.json ] && echo announced"
    hooks = [hook(script, "preemption"), hook("echo never", "down")]
    node.storage.flush_waits_for = threading.Event()
    living = node.live_beside(run=TRAPPING, hooks=hooks)
    node.until_printed("up")
    node.desired.apply_directive({"target": "drain", "deadline": now() + 30, "reason": "PREEMPTION_NOTICE"})
    assert node.storage.flushing.wait(scaled(20))
    assert lines(node) == ["up", "perdure: running hook-1 (preemption)", "hook of 0", "announced", "saved"]
    node.storage.flush_waits_for.set()
    living.join(scaled(20))
    assert node.outbox.report.interrupted
    assert node.outbox.report.failed_stage is None


def test_preemption_hook__that_fails_is_logged_and_not_fatal(node: Node) -> None:
    living = node.live_beside(run=TRAPPING, hooks=[hook("exit 7", "preemption"), hook("echo second", "preemption")])
    node.until_printed("up")
    node.desired.apply_directive({"target": "drain", "deadline": now() + 30})
    living.join(scaled(20))
    assert lines(node)[1:] == [
        "perdure: running hook-1 (preemption)",
        "perdure: hook-1 (preemption) exited with code 7",
        "perdure: running hook-2 (preemption)",
        *("second", "saved"),
    ]
    report = node.outbox.report
    assert (report.interrupted, report.exit_code, report.failed_stage) == (True, 0, None)


def test_preemption_hook__leaves_half_of_the_time_to_the_workload(node: Node) -> None:
    hooks = [hook("trap '' TERM; sleep 600", "preemption"), hook("echo never", "preemption")]
    living = node.live_beside(run=TRAPPING, hooks=hooks)
    node.until_printed("up")
    deadline = now() + 4
    node.desired.apply_directive({"target": "drain", "deadline": deadline})
    node.until_printed("saved")
    assert now() < deadline
    living.join(scaled(20))
    text = node.paths.log.read_text()
    assert "hook-1 (preemption) was stopped: its time was over" in text
    assert "hook-2 (preemption) was not run: no time was left" in text
    assert node.outbox.report.exit_code == 0


def test_hook__ends_at_its_own_timeout(node: Node) -> None:
    report = node.live(run="true", hooks=[hook("sleep 600", "down", timeout_s=0.2)])
    assert lines(node)[-1] == "perdure: hook-1 (down) was stopped: its time was over"
    assert (report.exit_code, report.failed_stage) == (0, None)


@pytest.mark.parametrize(("run", "exit_code"), [("echo done", 0), ("echo done; exit 3", 3)])
def test_down_hook__runs_after_the_workload_has_ended(node: Node, run: str, exit_code: int) -> None:
    report = node.live(run=run, hooks=[hook("echo never", "preemption"), hook("echo down", "preemption", "down")])
    assert lines(node) == ["done", "perdure: running hook-2 (down)", "down"]
    assert (report.exit_code, report.interrupted) == (exit_code, False)


def test_down_hook__runs_after_a_cancel_has_stopped_the_workload(node: Node) -> None:
    living = node.live_beside(run=TRAPPING, hooks=[hook("echo down", "down"), hook("echo never", "preemption")])
    node.until_printed("up")
    node.desired.apply_directive({"target": "drain", "deadline": now() + 30, "reason": "USER_CANCELLED"})
    living.join(scaled(20))
    assert lines(node) == ["up", "saved", "perdure: running hook-1 (down)", "down"]


def test_hook__that_a_restarted_agent_finds_is_not_run_again(node: Node) -> None:
    hooks = [hook("echo down", "down")]
    node.live(run="true", hooks=hooks)
    node.desired.update(ended=None)
    node.live(run="true", hooks=hooks)
    assert lines(node).count("down") == 1


def test_stop__kills_a_running_hook(node: Node) -> None:
    supervisor = node.make(run="true", hooks=[hook("echo hooked; sleep 600", "down")])
    stopped = threading.Event()

    def live() -> None:
        with pytest.raises(StopNow):
            supervisor.run()
        supervisor.kill()
        stopped.set()

    threading.Thread(target=live, daemon=True).start()
    node.until_printed("hooked")
    node.desired.apply_directive({"target": "stop"})
    assert stopped.wait(scaled(10))
    assert not any(stage.is_alive() for stage in supervisor._hooks.stages)


def test_lost_mount__is_reported_until_the_end(node: Node) -> None:
    living = node.live_beside(run="echo up; until [ -e ~/go ]; do sleep 0.01; done", mounts=[{"path": "/x"}])
    node.until_printed("up")
    assert node.storage.changed is not None
    node.storage.changed([{"path": "/x", "mode": "MOUNT", "state": "lost", "pending": 0}], ["/x"])
    assert (node.outbox.report.mount_lost, node.outbox.report.phase) == (True, "running")
    (node.storage.home / "go").touch()
    living.join(scaled(20))
    assert (node.outbox.report.mount_lost, node.outbox.report.message) == (True, "lost the mount at /x")


@pytest.mark.parametrize(("stage", "scripts"), [("run", {"run": "exit 3"}), ("setup", {"setup": "exit 3", "run": ""})])
def test_lost_mount__is_found_when_a_stage_fails_of_it(node: Node, stage: str, scripts: dict[str, str]) -> None:
    node.storage.lost = ["/x"]
    report = node.live(mounts=[{"path": "/x"}], **scripts)
    assert (report.failed_stage, report.exit_code, report.mount_lost) == (stage, 3, True)
    assert report.message == f"{stage} exited with code 3; lost the mount at /x"


def test_failed_stage__with_its_mounts_is_the_users(node: Node) -> None:
    report = node.live(run="exit 3", mounts=[{"path": "/x"}])
    assert (report.failed_stage, report.mount_lost, report.message) == ("run", False, "run exited with code 3")


def test_failed_stage__does_not_wait_for_a_mount_that_hangs(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.agent.lifecycle.supervisor.MOUNT_CHECK_S", 0.05)
    node.storage.check_waits_for = threading.Event()
    node.storage.lost = ["/x"]  # returned once the mount answers
    report = node.live(run="exit 3", mounts=[{"path": "/x"}])
    assert (report.phase, report.failed_stage, report.mount_lost) == ("ended", "run", False)
    node.storage.check_waits_for.set()


def test_lost_mount__that_a_restarted_agent_replaced_counts_for_a_stage_that_had_begun(node: Node) -> None:
    node.storage.prepare(with_files=True)
    node.desired.update(prepared=True)
    script = "echo up; until [ -e go ]; do sleep 0.01; done; exit 3"
    node.make(run=script)._run_stage.start(script, env=dict(os.environ), cwd=node.storage.home)
    node.until_printed("up")
    node.storage.replaced = ["/x"]
    living = node.live_beside(run=script, mounts=[{"path": "/x"}])
    node.until(lambda: node.storage.changed is not None)
    (node.storage.home / "go").touch()
    living.join(scaled(20))
    assert (node.outbox.report.exit_code, node.outbox.report.mount_lost) == (3, True)


def test_replaced_mount__does_not_excuse_a_stage_that_began_afterwards(node: Node) -> None:
    node.storage.replaced = ["/x"]
    node.desired.update(prepared=True)
    report = node.live(run="exit 3", mounts=[{"path": "/x"}])
    assert (report.exit_code, report.mount_lost) == (3, False)


def test_run__fails_without_bash(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    report = node.live(run="true")
    assert (report.exit_code, report.failed_stage) == (127, "run")
    assert "bash cannot be started" in node.paths.log.read_text()


def test_run__fails_when_the_runner_cannot_start(node: Node) -> None:
    supervisor = node.make(run="true")
    supervisor._run_stage._library = Path("/nowhere")
    supervisor.run()
    assert node.outbox.report.failed_stage == "run"
    assert "ModuleNotFoundError" in node.outbox.report.message
