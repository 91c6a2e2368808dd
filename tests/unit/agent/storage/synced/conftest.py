"""A folder that is uploaded to a bucket, which is a directory of this machine, with a real rclone."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from perdure.agent.storage.synced.synced_folder import SyncedFolder

RCLONE = Path(sys.executable).parent / "rclone"


@pytest.fixture
def bucket(tmp_path: Path) -> Path:
    folder = tmp_path / "buckets" / "ckpt"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def spec(tmp_path: Path, bucket: Path) -> dict[str, Any]:
    return {
        "path": str(tmp_path / "work" / "ckpt"),
        "mode": "MOUNT_CACHED",
        "bucket": "ckpt",
        "prefix": "run-1",
        "read_only": False,
        "rclone": {"type": "local", "root": str(bucket.parent)},
        "options": {},
    }


Make = Callable[..., SyncedFolder]


@pytest.fixture
def make(tmp_path: Path, spec: dict[str, Any]) -> Iterator[Make]:
    made: list[SyncedFolder] = []

    def new(binary: Path = RCLONE, **changes: Any) -> SyncedFolder:
        one = SyncedFolder({**spec, **changes}, home=tmp_path / "home", binary=binary, reason="no FUSE", log=print)
        made.append(one)
        return one

    yield new
    for one in made:
        one.unmount()
