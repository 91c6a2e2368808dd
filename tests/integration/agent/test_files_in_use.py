"""A file that the workload keeps open is in the bucket while the workload runs, and whole after its end."""

from __future__ import annotations

from pathlib import Path

import pytest

from integration.agent.controller import Controller
from integration.agent.node import Node
from perdure.agent.storage.fuse import fuse_problem
from perdure.controller.clouds.bootstrap.artifacts import build_artifacts, find_rclone
from perdure.controller.runtime.clock import SystemClock
from support.helpers.timing import wait_until

now = SystemClock().now

pytestmark = [
    pytest.mark.fuse,
    pytest.mark.skipif(fuse_problem() is not None or find_rclone() is None, reason="needs FUSE and rclone"),
]

WRITE_EVENTS = """
import itertools, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
with open(sys.argv[1], "w") as events:
    for number in itertools.count():
        events.write(f"{number}\\n")
        events.flush()
        time.sleep(0.02)
"""


@pytest.mark.parametrize("has_agent_restarted", [False, True])
def test_file_in_use__is_in_the_bucket_while_the_workload_runs(
    controller: Controller, node: Node, tmp_path: Path, has_agent_restarted: bool
) -> None:
    bucket, artifacts_dir = tmp_path / "bucket", tmp_path / "artifacts"
    bucket.mkdir()
    controller.spec["artifacts"] = {"rclone": build_artifacts(artifacts_dir)["rclone"].digest}
    node.env["PERDURE_ARTIFACTS_DIR"] = str(artifacts_dir)
    (node.home / "train.py").write_text(WRITE_EVENTS)
    mount = {
        "path": f"{tmp_path}/mnt", "mode": "MOUNT_CACHED", "bucket": str(bucket), "prefix": "", "read_only": False,
        "rclone": {"type": "local"}, "options": {"flush_every": "1s"},
    }  # fmt: skip
    controller.spec.update(run=f"python3 ~/train.py {tmp_path}/mnt/events", mounts=[mount])
    controller.directive.update(target="run", node_ips=["10.0.0.1"])
    node.start()
    events = bucket / "events"
    wait_until(events.exists, "the first copy", 60)
    if has_agent_restarted:
        node.kill_agent()
        node.start()
    seen = events.stat().st_size
    wait_until(lambda: events.stat().st_size > seen, "a later copy", 60)
    assert node.workload() != []
    written = (tmp_path / "mnt" / "events").read_text()
    assert written.startswith(events.read_text())
    controller.direct("drain", deadline=now() + 30)
    assert controller.until_phase("ended", 60)["failed_stage"] is None
    lines = events.read_text().splitlines()
    assert lines == [str(number) for number in range(len(lines))]
    assert len(lines) >= len(written.splitlines())
