"""Parts of saves that were never committed go from the bucket, too."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from integration.storage.buckets import S3Bucket
from integration.storage.conditions import Until
from integration.storage.node import Node
from perdure.agent.state_file import write_json
from perdure.checkpoint import Checkpointer
from perdure.checkpoint.format import part_names
from perdure.checkpoint.save.retention.leftovers import ABANDONED_S

pytestmark = pytest.mark.fuse


def test_leftovers__of_another_node_go_from_the_bucket(
    node: Node, s3_bucket: S3Bucket, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts = node.mounts(node.spec(s3_bucket, options={"vfs_write_back": "100ms"}))
    mounts.mount_all()
    path = Path(mounts.describe()[0]["path"])
    write_json(node.directory / "mounts.json", mounts.describe())
    monkeypatch.setenv("PERDURE_RUN_DIR", str(node.directory))
    with Checkpointer(path) as checkpointer:
        checkpointer.save(1, {"w": np.ones(1000)})
    killed, running = (part_names.new_name("checkpoint", step, 0, 2) for step in (2, 3))
    for name in (killed, running):
        (path / name).write_bytes(b"part")
    seen = os.stat(path / killed)
    os.utime(path / killed, ns=(seen.st_atime_ns, seen.st_mtime_ns - int((ABANDONED_S + 60) * 1e9)))
    mounts.flush(None)
    assert s3_bucket.read(killed) == s3_bucket.read(running) == b"part"
    with Checkpointer(path) as checkpointer:  # the next attempt
        assert checkpointer.load()["w"].sum() == 1000
        checkpointer.save(4, {"w": np.ones(1000)})
    until(lambda: s3_bucket.read(killed) is None)
    assert s3_bucket.read(running) == b"part"
