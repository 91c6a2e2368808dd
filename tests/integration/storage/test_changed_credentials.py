"""A bucket mounted again with other credentials: rclone derives the name of its cache from all its options."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from integration.storage.buckets import S3Bucket
from integration.storage.conditions import Until
from integration.storage.node import Node

pytestmark = pytest.mark.fuse


def test_changed_credentials__upload_the_pending_cache(node: Node, s3_bucket: S3Bucket, until: Until) -> None:
    first = node.mounts(node.spec(s3_bucket, options={"vfs_write_back": "1h"}))
    first.mount_all()
    path = Path(node.spec(s3_bucket)["path"])
    (path / "sub").mkdir()
    body = os.urandom(300_000)
    (path / "sub/model.pt").write_bytes(body)
    (pid,) = node.pids()
    os.kill(pid, signal.SIGKILL)
    until(first.lost_paths)
    second = node.mounts(node.spec(s3_bucket, rclone={**s3_bucket.backend, "session_token": "another"}))
    second.mount_all()
    assert second.lost_paths() == []
    existing = Path("/proc/self/mountinfo").read_text().count(f" {path} ")
    assert existing == (2 if os.geteuid() == 0 else 1), "the guard lies under it still"
    second.flush(None)
    assert s3_bucket.read("sub/model.pt") == body
    assert (path / "sub/model.pt").read_bytes() == body
