"""Mounts of a machine that was stopped with its disk, and is started again for another attempt."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from integration.storage.buckets import Bucket
from integration.storage.node import Node
from perdure.agent.paths import NodePaths

pytestmark = pytest.mark.fuse


def test_cache__is_uploaded_by_the_next_attempt(node: Node, bucket: Bucket) -> None:
    paths = NodePaths(node.state_dir)
    paths.create()
    paths.begin_attempt("first")
    spec = node.spec(bucket, options={"vfs_write_back": "1h"})
    mounts = node.mounts(spec)
    mounts.mount_all()
    body = os.urandom(300_000)
    Path(spec["path"], "model.pt").write_bytes(body)
    (pid,) = node.pids()
    os.kill(pid, signal.SIGKILL)  # the power is off
    mounts.unmount_all()
    assert bucket.read("model.pt") is None
    paths.begin_attempt("second")
    again = node.mounts(spec)
    again.mount_all()
    again.flush(None)
    assert bucket.read("model.pt") == body
