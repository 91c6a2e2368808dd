"""When the node's state machine runs the hooks of a task, and for how long."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from perdure.agent.clock import now
from perdure.agent.lifecycle.desired_state import StopNow
from support.helpers.timing import scaled
from unit.agent.lifecycle.supervised_node import Node


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
