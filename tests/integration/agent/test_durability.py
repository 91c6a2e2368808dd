"""The controller receives the durable event of a checkpoint while the workload runs."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from integration.agent.controller import Controller
from integration.agent.node import Node
from perdure.agent.storage.fuse import fuse_problem
from perdure.controller.clouds.bootstrap.artifacts import build_artifacts, find_rclone

SAVE_TWICE = """
import sys, time
from perdure.checkpoint import Checkpointer
with Checkpointer(sys.argv[1], total_steps=9) as checkpoints:
    for step in 1, 2:
        checkpoints.save(step, {"step": step, "w": bytes(1_000_000)})
        checkpoints.wait()
        print("saved", step, flush=True)
    time.sleep(600)
"""


@pytest.fixture
def bucket(tmp_path: Path) -> Path:
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    return bucket


def start(controller: Controller, node: Node, bucket: Path, **mount: Any) -> None:
    """Run `SAVE_TWICE` on a mount of `bucket`."""
    (node.home / "train.py").write_text(SAVE_TWICE)
    spec = {
        "path": f"{bucket.parent}/mnt", "mode": "MOUNT_CACHED", "bucket": str(bucket), "prefix": "", "read_only": False,
        "rclone": {"type": "local"}, "options": {}, **mount,
    }  # fmt: skip
    controller.spec.update(run=f"python3 ~/train.py {bucket.parent}/mnt/run", mounts=[spec])
    controller.directive.update(target="run", node_ips=["10.0.0.1"])
    node.start()
    controller.until_log(b"saved 2\n", 60)


def events(controller: Controller, state: str) -> list[dict[str, Any]]:
    return [message for message in controller.checkpoints if message["state"] == state]


def until_durable(controller: Controller, node: Node, *steps: int) -> None:
    controller.until(lambda: {message["step"] for message in events(controller, "durable")} == set(steps), 60)
    assert node.workload() != [], "no flush at the end was needed"


@pytest.fixture
def rclone(controller: Controller, node: Node, tmp_path: Path) -> None:
    """The controller offers rclone, as it does for real mounts."""
    if fuse_problem() is not None or find_rclone() is None:
        pytest.skip("needs FUSE and rclone")
    controller.spec["artifacts"] = {"rclone": build_artifacts(tmp_path / "artifacts")["rclone"].digest}
    node.env["PERDURE_ARTIFACTS_DIR"] = str(tmp_path / "artifacts")


@pytest.mark.fuse
@pytest.mark.usefixtures("rclone")
@pytest.mark.parametrize("mode", ["MOUNT_CACHED", "MOUNT"])
def test_durable_event__arrives_while_the_workload_runs(
    controller: Controller, node: Node, bucket: Path, mode: str
) -> None:
    start(controller, node, bucket, mode=mode)
    until_durable(controller, node, 1, 2)
    committed, durable = events(controller, "committed"), events(controller, "durable")
    assert {message["path"] for message in durable} == {message["path"] for message in committed}
    assert {message["total_steps"] for message in durable} == {9}
    assert len(durable) == 2


def test_durable_event__arrives_for_a_linked_bucket(controller: Controller, node: Node, bucket: Path) -> None:
    node.env["PERDURE_NO_FUSE"] = "1"
    start(controller, node, bucket)
    until_durable(controller, node, 1, 2)


@pytest.mark.fuse
@pytest.mark.usefixtures("rclone")
def test_durable_event__arrives_once_after_the_agent_was_killed(
    controller: Controller, node: Node, bucket: Path
) -> None:
    """Step 1 waits for its upload when it is saved, since it is the first; step 2 is uploaded without an agent."""
    start(controller, node, bucket, options={"vfs_write_back": "3s"})
    node.kill_agent()
    assert 2 not in {message["step"] for message in events(controller, "durable")}
    while len(list((bucket / "run" / ".perdure").glob("*.json"))) < 2:
        threading.Event().wait(0.05)
    node.start()
    until_durable(controller, node, 1, 2)
    journal = (node.run_dir / "checkpoints.jsonl").read_text().splitlines()
    assert sum('"durable"' in line for line in journal) == 2


def test_no_durable_event__for_the_machines_own_disk(controller: Controller, node: Node, bucket: Path) -> None:
    (node.home / "train.py").write_text(SAVE_TWICE)
    controller.spec.update(run="python3 ~/train.py ~/run & sleep 2; kill %1")
    controller.directive.update(target="run", node_ips=["10.0.0.1"])
    node.start()
    controller.until_phase("ended", 60)
    assert len(events(controller, "committed")) == 2
    assert events(controller, "durable") == []
