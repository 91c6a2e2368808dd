"""A bucket's mount that dies under the workload is reported as lost, also by a program that ends at its first error."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest

from integration.agent.controller import Controller
from integration.agent.node import Node
from perdure.agent.storage.fuse import fuse_problem
from perdure.controller.clouds.bootstrap.artifacts import build_artifacts, find_rclone
from support.helpers.timing import wait_until

pytestmark = pytest.mark.fuse

# Ends with 1 at the first error, as most programs do.
WRITER = """
import itertools, sys, time
for i in itertools.count(1):
    with open(f"{sys.argv[1]}/{i}", "w") as file:
        file.write(str(i))
    if i == 5:
        print("writes", flush=True)
    time.sleep(0.005)
"""


@pytest.fixture(autouse=True)
def _rclone(controller: Controller, node: Node, tmp_path: Path) -> None:
    """The controller offers rclone, as it does for real mounts."""
    if fuse_problem() is not None or find_rclone() is None:
        pytest.skip("needs FUSE and rclone")
    controller.spec["artifacts"] = {"rclone": build_artifacts(tmp_path / "artifacts")["rclone"].digest}
    node.env["PERDURE_ARTIFACTS_DIR"] = str(tmp_path / "artifacts")


@pytest.fixture
def mount(tmp_path: Path) -> str:
    return f"{tmp_path}/mnt"


def start(controller: Controller, node: Node, mount: str, mode: str, **scripts: str) -> None:
    """Start an agent whose `scripts` run with `mount`, and wait until WRITER writes there."""
    bucket = node.home.parent / "bucket"
    bucket.mkdir()
    (node.home / "writer.py").write_text(WRITER)
    spec = {
        "path": mount, "mode": mode, "bucket": str(bucket), "prefix": "", "read_only": False,
        "rclone": {"type": "local"}, "options": {},
    }  # fmt: skip
    controller.spec.update(mounts=[spec], **scripts)
    controller.directive.update(target="run", node_ips=["10.0.0.1"])
    node.start()
    controller.until_log(b"writes\n", 60)


def kill_rclone(mount: str) -> None:
    """Kill it as the kernel does when memory runs out."""
    commands = {one.pid: one.info["cmdline"] or [] for one in psutil.process_iter(["cmdline"])}
    (rclone,) = [pid for pid, command in commands.items() if command[1:2] == ["mount"] and mount in command]
    os.kill(rclone, signal.SIGKILL)


@pytest.mark.parametrize("mode", ["MOUNT_CACHED", "MOUNT"])
@pytest.mark.parametrize("stage", ["setup", "run"])
def test_lost_mount__is_reported_with_the_end_of_a_program_that_failed_of_it(
    controller: Controller, node: Node, mount: str, stage: str, mode: str
) -> None:
    start(controller, node, mount, mode, **{stage: f"python3 ~/writer.py {mount}"})
    kill_rclone(mount)
    report = controller.until_phase("ended", 60)
    assert (report["failed_stage"], report["exit_code"], report["mount_lost"]) == (stage, 1, True)
    assert report["message"].endswith(f"; lost the mount at {mount}")
    controller.until_log(f"the mount at {mount} is lost".encode())
    assert node.workload() == []


def test_lost_mount__is_reported_by_an_agent_that_was_killed_with_it(
    controller: Controller, node: Node, mount: str
) -> None:
    """The next agent mounts the bucket again before it sees how the program ended."""
    start(controller, node, mount, "MOUNT_CACHED", run=f"python3 ~/writer.py {mount}")
    node.kill_agent()
    kill_rclone(mount)
    wait_until(lambda: not node.workload(), "the program's end", 20)
    node.start()
    report = controller.until_phase("ended", 60)
    assert (report["failed_stage"], report["exit_code"], report["mount_lost"]) == ("run", 1, True)


def test_failed_program__on_a_living_mount_is_not_excused(controller: Controller, node: Node, mount: str) -> None:
    start(controller, node, mount, "MOUNT_CACHED", run=f"timeout 2 python3 ~/writer.py {mount}; exit 7")
    report = controller.until_phase("ended", 60)
    assert (report["failed_stage"], report["exit_code"], report["mount_lost"]) == ("run", 7, False)
