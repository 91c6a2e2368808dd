"""The node's state machine with real scripts and storage that fails on demand."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from pathlib import Path

import pytest

from perdure.agent.clock import now
from perdure.agent.lifecycle.desired_state import StopNow
from support.helpers.timing import scaled
from unit.agent.lifecycle.supervised_node import Node


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


def test_folders__are_refreshed_between_setup_and_run(node: Node) -> None:
    node.live(run="touch ~/run-ran", setup="touch ~/setup-ran")
    assert node.storage.refreshed == (True, False)


def test_refresh__failure_ends_the_node_before_run(node: Node) -> None:
    node.storage.refresh_fails = "copying bucket b to /x: rclone says: no"
    report = node.live(run="touch ~/run-ran")
    assert (report.failed_stage, report.message) == ("mounts", "copying bucket b to /x: rclone says: no")
    assert not (node.storage.home / "run-ran").exists()


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
