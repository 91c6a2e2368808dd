"""A bucket mounted anew with other credentials: rclone names its cache after all that it is told."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.fuse


def test_other_credentials_than_before_upload_what_was_written(node: Any, s3_bucket: Any, until: Any) -> None:
    first = node.mounts(node.spec(s3_bucket, options={"vfs_write_back": "1h"}))
    first.mount_all()
    path = Path(node.spec(s3_bucket)["path"])
    (path / "sub").mkdir()
    body = os.urandom(300_000)
    (path / "sub/model.pt").write_bytes(body)
    (pid,) = node.pids()
    os.kill(pid, signal.SIGKILL)
    until(first.check)
    second = node.mounts(node.spec(s3_bucket, rclone={**s3_bucket.backend, "session_token": "another"}))
    second.mount_all()
    assert second.check() == []
    standing = Path("/proc/self/mountinfo").read_text().count(f" {path} ")
    assert standing == (2 if os.geteuid() == 0 else 1), "the guard lies under it still"
    second.flush(None)
    assert s3_bucket.read("sub/model.pt") == body
    assert (path / "sub/model.pt").read_bytes() == body
