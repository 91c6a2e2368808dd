"""A program saves no more often than its bucket can take what it saves, as a real rclone mounts it."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np
import pytest

from integration.storage.buckets import S3Bucket
from integration.storage.node import Node
from perdure.agent.state_file import write_json
from perdure.checkpoint import Checkpointer
from perdure.checkpoint.durability.rclone_rc import Rc
from perdure.checkpoint.save.interval import UPTIME

pytestmark = [pytest.mark.fuse, pytest.mark.slow]

BANDWIDTH, STATE_BYTES, SECONDS = 2 * 2**20, 3 * 2**20, 12.0


def test_should_save__does_not_queue_uploads(node: Node, s3_bucket: S3Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interruptions are so frequent that a save would pay every half second, and an upload takes three times as
    long."""
    mounts = node.mounts(node.spec(s3_bucket, options={"vfs_write_back": "100ms"}))
    mounts.mount_all()
    (described,) = mounts.describe()
    write_json(node.directory / "mounts.json", mounts.describe())
    monkeypatch.setenv("PERDURE_RUN_DIR", str(node.directory))
    monkeypatch.setenv(UPTIME, "2")
    Rc(str(described["rc_socket"])).call("core/bwlimit", rate=f"{BANDWIDTH}B")
    waiting: list[int] = []
    with Checkpointer(Path(described["path"]), keep=None) as checkpointer:
        began, step = time.monotonic(), 0
        while time.monotonic() - began < SECONDS:
            step += 1
            if step == 1 or checkpointer.should_save(step):
                waiting.append(sum(one.durable is False for one in checkpointer.steps()))
                checkpointer.save(step, {"w": np.random.default_rng(step).random(STATE_BYTES // 8)})
            threading.Event().wait(0.01)  # a step of training
        assert checkpointer.wait_durable(timeout_s=60)
    assert len(waiting) >= 3
    assert len(waiting) <= 2 + SECONDS * BANDWIDTH / STATE_BYTES
    assert max(waiting) == 0
