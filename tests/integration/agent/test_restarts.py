"""The agent is killed and started again: the workload does not notice, and nothing is lost."""

from __future__ import annotations

from typing import Any

from integration.agent.controller import Controller
from integration.agent.node import Node

TICKER = """
import os, time
print("pid", os.getpid(), flush=True)
for i in range(60):
    print(i, flush=True)
    time.sleep(0.03)
raise SystemExit(5)
"""


def start(controller: Controller, node: Node, run: str, **spec: Any) -> None:
    controller.spec.update(run=run, **spec)
    controller.directive.update(target="run", node_ips=["10.0.0.1"])
    node.start()


def test_restart__during_run_keeps_the_workload(controller: Controller, node: Node) -> None:
    (node.home / "ticker.py").write_text(TICKER)
    start(controller, node, "python3 ~/ticker.py")
    for needle in (b"\n5\n", b"\n15\n", b"\n25\n"):
        controller.until_log(needle)
        node.kill_agent()
        controller.reports.clear()
        node.start()
    report = controller.until_phase("ended")
    assert controller.phases()[0] == "running"
    assert (report["exit_code"], report["failed_stage"]) == (5, "run")
    controller.until_log(b"\n59\n")
    lines = controller.log.splitlines()
    assert lines[1:] == [b"%d" % i for i in range(60)]
    assert lines[0].startswith(b"pid ")


def test_restart__reports_an_end_that_no_agent_saw(controller: Controller, node: Node) -> None:
    start(controller, node, "echo begun; until [ -e ~/go ]; do sleep 0.02; done; echo over; exit 4")
    controller.until_log(b"begun\n")
    node.kill_agent()
    (node.home / "go").touch()
    node.until_file(node.state_dir / "stages/run/result.json")
    node.start()
    report = controller.until_phase("ended")
    assert (report["exit_code"], report["failed_stage"]) == (4, "run")
    controller.until_log(b"over\n")
    assert bytes(controller.log) == b"begun\nover\n"


def test_restart__during_setup_continues_it(controller: Controller, node: Node) -> None:
    setup = "echo x >> ~/setups; until [ -e ~/go ]; do sleep 0.02; done"
    start(controller, node, "cat ~/setups", setup=setup)
    controller.until_phase("setup")
    node.until_file(node.home / "setups")
    node.kill_agent()
    node.start()
    (node.home / "go").touch()
    assert controller.until_phase("ended")["exit_code"] == 0
    controller.until_log(b"x\n")
    assert bytes(controller.log) == b"x\n"


def test_restart__after_the_end_reports_it_again(controller: Controller, node: Node) -> None:
    start(controller, node, "echo once >> ~/runs; exit 6")
    controller.until_phase("ended")
    node.kill_agent()
    controller.reports.clear()
    node.start()
    controller.until(lambda: controller.reports)
    assert controller.reports[0]["phase"] == "ended"
    assert controller.reports[0]["exit_code"] == 6
    assert (node.home / "runs").read_text() == "once\n"


def test_restart__during_a_drain_continues_it(controller: Controller, node: Node) -> None:
    start(controller, node, "trap 'sleep 0.5; echo saved; exit 0' TERM; echo begun; while :; do sleep 0.05; done")
    controller.until_log(b"begun\n")
    controller.direct("drain", reason="test")
    node.until_file(node.state_dir / "stages/run/stop.json")
    node.kill_agent()
    node.start()
    report = controller.until_phase("ended")
    assert report["interrupted"] is True
    controller.until_log(b"saved\n")


def test_runner__killed_ends_the_workload(controller: Controller, node: Node) -> None:
    start(controller, node, "echo begun; setsid sleep 600 & sleep 600")
    controller.until_log(b"begun\n")
    runner = next(p for p in node.processes() if "perdure.agent.workload.runner_process" in " ".join(p.cmdline()))
    runner.kill()
    report = controller.until_phase("ended")
    assert (report["exit_code"], report["failed_stage"]) == (137, "run")
    assert node.workload() == []
