"""How a workload ends: drain, stop, revoked token, power off."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from integration.agent.controller import Controller
from integration.agent.node import Node
from perdure.controller.runtime.clock import SystemClock
from support.helpers.timing import scaled

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


def start(controller: Controller, node: Node, run: str, program: str = "", **spec: Any) -> None:
    (node.home / "program.py").write_text(program)
    controller.spec.update(run=run, **spec)
    controller.directive.update(target="run", node_ips=["10.0.0.1"])
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
def test_drain__lets_the_workload_save(controller: Controller, node: Node, run: str) -> None:
    start(controller, node, run, SAVER)
    controller.until_log(b"training\n")
    controller.direct("drain", reason="preempted", deadline=now() + 600)
    report = controller.until_phase("ended")
    assert (report["interrupted"], report["failed_stage"]) == (True, None)
    controller.until_log(b"saved, because preempted\n")
    assert not (node.home / "went-on").exists()
    assert node.workload() == []


def test_drain__leaves_workers_to_their_program(controller: Controller, node: Node) -> None:
    """Workers like a data loader's: their death would raise an error during the save."""
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


def test_drain__lets_a_trap_of_the_script_run(controller: Controller, node: Node) -> None:
    start(controller, node, "trap 'sleep 0.3; echo saved; exit 0' TERM; echo begun; while :; do sleep 0.05; done")
    controller.until_log(b"begun\n")
    controller.direct("drain")
    assert controller.until_phase("ended")["interrupted"] is True
    controller.until_log(b"saved\n")


def test_drain__kills_a_workload_that_ignores_sigterm(controller: Controller, node: Node) -> None:
    start(controller, node, "trap '' TERM; echo begun; sleep 600 & sleep 600")
    controller.until_log(b"begun\n")
    deadline = now() + 2
    controller.direct("drain", deadline=deadline)
    report = controller.until_phase("ended")
    assert deadline - 1.0 < now() < deadline + scaled(10)
    assert (report["interrupted"], report["exit_code"]) == (True, 137)
    assert node.workload() == []


def test_drain__uses_a_later_directives_nearer_deadline(controller: Controller, node: Node) -> None:
    start(controller, node, "trap '' TERM; echo begun; sleep 600 & sleep 600")
    controller.until_log(b"begun\n")
    controller.direct("drain", deadline=now() + 500)
    node.until_file(node.run_dir / "notice.json")
    controller.direct("drain", deadline=now() + 1)
    assert controller.until_phase("ended", 5)["interrupted"] is True


def test_drain__before_setup_ends_at_once(controller: Controller, node: Node) -> None:
    node.start()
    controller.until(lambda: controller.hellos)
    controller.direct("drain")
    report = controller.until_phase("ended")
    assert (report["interrupted"], report["exit_code"], report["failed_stage"]) == (True, None, None)


def test_drain__interrupts_setup(controller: Controller, node: Node) -> None:
    start(controller, node, "echo never", setup="echo setting up; sleep 600")
    controller.until_log(b"setting up\n")
    controller.direct("drain")
    report = controller.until_phase("ended")
    assert (report["interrupted"], report["failed_stage"]) == (True, None)
    assert b"never" not in controller.log


def test_drain__after_the_end_does_not_count_as_interruption(controller: Controller, node: Node) -> None:
    start(controller, node, "exit 3")
    controller.until_phase("ended")
    controller.reports.clear()
    controller.direct("drain")
    controller.drop_connections()
    controller.until(lambda: controller.reports)
    assert (controller.reports[0]["interrupted"], controller.reports[0]["exit_code"]) == (False, 3)


def test_directive__never_moves_back(controller: Controller, node: Node) -> None:
    start(controller, node, "trap 'sleep 0.5; echo saved; exit 0' TERM; echo begun; while :; do sleep 0.05; done")
    controller.until_log(b"begun\n")
    controller.direct("drain")
    controller.direct("run")
    assert controller.until_phase("ended")["interrupted"] is True


def test_stop__kills_at_once_and_ends_the_agent(controller: Controller, node: Node) -> None:
    start(controller, node, "trap '' TERM; echo begun; setsid sleep 600 & sleep 600", setup="(setsid sleep 600 &)")
    controller.until_log(b"begun\n")
    controller.direct("stop")
    assert node.wait_for_agent(5) == 0
    assert node.processes() == []


def test_revoked_token__kills_the_workload(controller: Controller, node: Node) -> None:
    start(controller, node, "echo begun; sleep 600")
    controller.until_log(b"begun\n")
    controller.is_unknown_token = True
    controller.drop_connections()
    assert node.wait_for_agent(10) == 0
    assert node.processes() == []


def test_revoked_token__at_boot_ends_the_agent(controller: Controller, node: Node) -> None:
    controller.is_unknown_token = True
    node.start()
    assert node.wait_for_agent(10) == 0


def test_ended_node__powers_off_without_a_controller(controller: Controller, node: Node, tmp_path: Path) -> None:
    start(controller, node, "echo begun; sleep 1; exit 2", power_off_after_s=1.5)
    controller.until_log(b"begun\n")
    controller.stop()
    assert node.wait_for_agent(20) == 0
    assert (tmp_path / "powered-off").exists()
    assert json.loads((node.state_dir / "state.json").read_text())["ended"]["exit_code"] == 2
    controller.start()
