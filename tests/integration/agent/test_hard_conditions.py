"""The agent under hard conditions: shutdowns, full disks, wrong clocks, hiding processes, no controller."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from integration.agent.controller import Controller
from integration.agent.node import Node
from support.helpers.timing import scaled

SAVER = 'trap "sleep 0.3; echo saved; exit 0" TERM; echo begun; while :; do sleep 0.05; done'

# Every way to hide: another session, another parent, ignoring SIGTERM, another name.
HIDERS = r"""
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.setsid()
            os.execvp("sleep", ["kworker", "600"])
        os._exit(0)
subprocess.Popen(["bash", "-c", "trap '' TERM; (setsid sleep 600 &) ; while :; do sleep 1; done"])
print("begun", flush=True)
while True:
    time.sleep(1)
"""


def start(controller: Controller, node: Node, run: str, **spec: Any) -> None:
    controller.spec.update(run=run, **spec)
    controller.directive.update(target="run", node_ips=["10.0.0.1"])
    node.start()


def seconds_until_dead(node: Node, *, within_s: float) -> float:
    began = time.monotonic()
    while node.workload():
        assert time.monotonic() - began < scaled(within_s), f"still there: {node.workload()}"
        threading.Event().wait(0.01)
    return time.monotonic() - began


def test_sigterm__is_a_notice_and_ends_the_agent(controller: Controller, node: Node) -> None:
    start(controller, node, SAVER)
    controller.until_log(b"begun\n")
    node.terminate_agent()
    report = controller.until_phase("ended")
    assert (report["interrupted"], report["exit_code"]) == (True, 0)
    assert [notice["action"] for notice in controller.notices] == ["shutdown"]
    controller.until_log(b"saved\n")
    assert node.wait_for_agent() == 0


@pytest.mark.long
def test_sigterm__does_not_extend_the_clouds_deadline(controller: Controller, node: Node) -> None:
    controller.spec["drain_s"] = 60.0
    start(controller, node, 'trap "" TERM; echo begun; while :; do sleep 0.05; done')
    controller.until_log(b"begun\n")
    controller.direct("drain", deadline=controller.now() + 2, reason="preempted")
    node.until_file(node.run_dir / "notice.json")
    began = time.monotonic()
    node.terminate_agent()
    controller.until_phase("ended")
    assert time.monotonic() - began < scaled(10)


@pytest.mark.parametrize("ahead_s", [3600.0, pytest.param(-3600.0, marks=pytest.mark.long)])
def test_drain__does_not_depend_on_the_controllers_clock(controller: Controller, node: Node, ahead_s: float) -> None:
    controller.clock_is_ahead_s = ahead_s
    start(controller, node, 'trap "sleep 1; echo saved" TERM; echo begun; sleep 600 & wait; trap "" TERM; sleep 600')
    controller.until_log(b"begun\n")
    began = time.monotonic()
    controller.direct("drain", deadline=controller.now() + 4, reason="preempted")
    controller.until_phase("ended")
    assert 2 < time.monotonic() - began < scaled(15), "what remained of the 4 s was used, and no more"
    controller.until_log(b"saved\n")


@pytest.mark.parametrize("is_hung", [False, True], ids=["runner", "hung-runner"])
def test_stop__kills_everything_within_5_s(controller: Controller, node: Node, is_hung: bool) -> None:
    (node.home / "hiders.py").write_text(HIDERS)
    start(controller, node, "python3 ~/hiders.py")
    controller.until_log(b"begun\n")
    runner = next(p for p in node.processes() if "perdure.agent.workload.runner_process" in " ".join(p.cmdline()))
    if is_hung:
        runner.suspend()
    assert len(node.workload()) >= 6
    controller.direct("stop")
    took_s = seconds_until_dead(node, within_s=5)
    print(f"dead {took_s:.2f} s after stop")
    assert node.wait_for_agent() == 0
    assert not runner.is_running()


def test_orphaned_node__powers_off_while_it_waits(controller: Controller, node: Node) -> None:
    controller.spec.update(
        setup="nohup sleep 600 >/dev/null 2>&1 & echo ready", run="echo never", power_off_after_s=1.5
    )
    controller.directive.update(target="setup", node_ips=["10.0.0.1"])
    node.start()
    controller.until_phase("ready")
    controller.stop()
    assert node.wait_for_agent() == 0
    assert (node.home.parent / "powered-off").exists()
    assert node.workload() == []
    controller.start()


@pytest.mark.long
def test_orphaned_node__keeps_running_its_task(controller: Controller, node: Node) -> None:
    start(controller, node, "echo begun; sleep 3; echo over; exit 4", power_off_after_s=0.5)
    controller.until_log(b"begun\n")
    controller.stop()
    assert node.wait_for_agent() == 0
    assert (node.home.parent / "powered-off").exists()
    assert (node.state_dir / "log").read_bytes() == b"begun\nover\n", "the end is stored for a later request"
    assert '"exit_code": 4' in (node.state_dir / "state.json").read_text()
    controller.start()


@pytest.fixture
def small_disk(node: Node) -> Path:
    """The agent's folder is a disk of 1 MiB."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    node.state_dir.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", node.state_dir], check=True)
    return node.state_dir  # `node` unmounts it


def fill(disk: Path) -> None:
    with open(disk / "filler", "ab", buffering=0) as file:
        try:
            while file.write(b"x" * 4096):
                pass
        except OSError:
            return


def test_full_disk__workload_continues_and_its_end_is_reported(
    controller: Controller, node: Node, small_disk: Path
) -> None:
    start(controller, node, "echo begun; until [ -e ~/go ]; do sleep 0.02; done; head -c 300000 /dev/zero; exit 7")
    controller.until_log(b"begun\n")
    fill(small_disk)
    (node.home / "go").touch()
    report = controller.until_phase("ended")
    assert (report["exit_code"], report["failed_stage"]) == (7, "run")
    assert "bytes of output were lost: the node's disk was full" in report["message"]


@pytest.mark.parametrize("target", ["drain", "stop"])
def test_full_disk__directives_are_obeyed(controller: Controller, node: Node, small_disk: Path, target: str) -> None:
    start(controller, node, f"touch ~/begun; {SAVER.replace('echo saved', 'touch ~/saved')}")
    controller.until_log(b"begun\n")
    fill(small_disk)
    controller.direct(target, reason="preempted")
    seconds_until_dead(node, within_s=10)
    if target == "drain":
        assert controller.until_phase("ended")["interrupted"] is True
        assert (node.home / "saved").exists()
        node.kill_agent()
        node.start()  # with the state for which there was space
        controller.direct("stop")
    assert node.wait_for_agent() == 0
