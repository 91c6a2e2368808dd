"""How a workload is brought to its end: drain, stop, notices, write-off, power off."""

from __future__ import annotations

import json
from typing import Any

import pytest

from perdure.controller.clock import SystemClock

now = SystemClock().now

SAVER = """
import json, os, signal, sys, time
def save(*_):
    time.sleep(0.3)
    notice = json.load(open(os.environ["PERDURE_RUN_DIR"] + "/notice.json"))
    print("saved, because", notice["reason"], flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("training", flush=True)
time.sleep(600)
"""


def start(controller: Any, node: Any, run: str, program: str = "", **spec: Any) -> None:
    (node.home / "program.py").write_text(program)
    controller.spec.update(run=run, **spec)
    controller.directive.update(want="run", node_ips=["10.0.0.1"])
    node.start()


@pytest.mark.parametrize(
    "run",
    [
        "python3 ~/program.py",
        "exec python3 ~/program.py",
        "python3 ~/program.py 2>&1 | tee ~/tee.log; touch ~/went-on",
        "(python3 ~/program.py; touch ~/went-on)",
        "python3 ~/program.py & wait",
        "setsid -w python3 ~/program.py",
        'python3 -c \'import subprocess, os; subprocess.run(["python3", os.environ["HOME"] + "/program.py"])\'',
    ],
)
def test_a_drain_lets_the_workload_save(controller: Any, node: Any, run: str) -> None:
    start(controller, node, run, SAVER)
    controller.until_log(b"training\n")
    controller.direct("drain", reason="preempted", deadline=now() + 600)
    report = controller.until_phase("ended")
    assert (report["interrupted"], report["failed_stage"]) == (True, None)
    controller.until_log(b"saved, because preempted\n")
    assert not (node.home / "went-on").exists()
    assert node.workload() == []


def test_workers_below_a_program_are_left_to_it(controller: Any, node: Any) -> None:
    """As a data loader's: their death would raise an error in the middle of saving."""
    program = """
import os, signal, subprocess, sys, time
worker = subprocess.Popen(["sleep", "600"])
def save(*_):
    time.sleep(0.3)
    print("worker alive:", worker.poll() is None, flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("training", flush=True)
time.sleep(600)
"""
    start(controller, node, "python3 ~/program.py", program)
    controller.until_log(b"training\n")
    controller.direct("drain")
    controller.until_phase("ended")
    controller.until_log(b"worker alive: True\n")
    assert node.workload() == []


def test_a_trap_of_the_script_may_work(controller: Any, node: Any) -> None:
    start(controller, node, "trap 'sleep 0.3; echo saved; exit 0' TERM; echo begun; while :; do sleep 0.05; done")
    controller.until_log(b"begun\n")
    controller.direct("drain")
    assert controller.until_phase("ended")["interrupted"] is True
    controller.until_log(b"saved\n")


def test_who_ignores_sigterm_is_killed_in_time(controller: Any, node: Any) -> None:
    start(controller, node, "trap '' TERM; echo begun; sleep 600 & sleep 600")
    controller.until_log(b"begun\n")
    deadline = now() + 2
    controller.direct("drain", deadline=deadline)
    report = controller.until_phase("ended")
    assert deadline - 1.0 < now() < deadline + 10
    assert (report["interrupted"], report["exit_code"]) == (True, 137)
    assert node.workload() == []


def test_a_later_deadline_that_is_nearer_counts(controller: Any, node: Any) -> None:
    start(controller, node, "trap '' TERM; echo begun; sleep 600 & sleep 600")
    controller.until_log(b"begun\n")
    controller.direct("drain", deadline=now() + 500)
    node.until_file(node.run_dir / "notice.json")
    controller.direct("drain", deadline=now() + 1)
    assert controller.until_phase("ended", 5)["interrupted"] is True


def test_a_drain_before_setup_ends_at_once(controller: Any, node: Any) -> None:
    node.start()
    controller.until(lambda: controller.hellos)
    controller.direct("drain")
    report = controller.until_phase("ended")
    assert (report["interrupted"], report["exit_code"], report["failed_stage"]) == (True, None, None)


def test_a_drain_in_setup(controller: Any, node: Any) -> None:
    start(controller, node, "echo never", setup="echo setting up; sleep 600")
    controller.until_log(b"setting up\n")
    controller.direct("drain")
    report = controller.until_phase("ended")
    assert (report["interrupted"], report["failed_stage"]) == (True, None)
    assert b"never" not in controller.log


def test_a_workload_that_ended_by_itself_was_not_interrupted(controller: Any, node: Any) -> None:
    start(controller, node, "exit 3")
    controller.until_phase("ended")
    controller.reports.clear()
    controller.direct("drain")
    controller.drop_connections()
    controller.until(lambda: controller.reports)
    assert (controller.reports[0]["interrupted"], controller.reports[0]["exit_code"]) == (False, 3)


def test_directives_never_move_back(controller: Any, node: Any) -> None:
    start(controller, node, "trap 'sleep 0.5; echo saved; exit 0' TERM; echo begun; while :; do sleep 0.05; done")
    controller.until_log(b"begun\n")
    controller.direct("drain")
    controller.direct("run")
    assert controller.until_phase("ended")["interrupted"] is True


def test_stop_kills_at_once_and_ends_the_agent(controller: Any, node: Any) -> None:
    start(controller, node, "trap '' TERM; echo begun; setsid sleep 600 & sleep 600", setup="(setsid sleep 600 &)")
    controller.until_log(b"begun\n")
    controller.direct("stop")
    assert node.wait_for_agent(5) == 0
    assert node.processes() == []


def test_an_unknown_token_kills_the_workload(controller: Any, node: Any) -> None:
    start(controller, node, "echo begun; sleep 600")
    controller.until_log(b"begun\n")
    controller.is_unknown_token = True
    controller.drop_connections()
    assert node.wait_for_agent(10) == 0
    assert node.processes() == []


def test_an_unknown_token_at_boot(controller: Any, node: Any) -> None:
    controller.is_unknown_token = True
    node.start()
    assert node.wait_for_agent(10) == 0


def test_an_ended_node_that_nobody_asks_for_powers_off(controller: Any, node: Any, tmp_path: Any) -> None:
    start(controller, node, "echo begun; sleep 1; exit 2", power_off_after_s=1.5)
    controller.until_log(b"begun\n")
    controller.stop()
    assert node.wait_for_agent(20) == 0
    assert (tmp_path / "powered-off").exists()
    assert json.loads((node.state_dir / "state.json").read_text())["ended"]["exit_code"] == 2
    controller.start()
