"""The home of a cluster's node in buckets of every store: saved, restored on another machine, replaced."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from integration.storage.buckets import Bucket
from perdure.agent.lifecycle.saved_home import SavedHome
from perdure.agent.storage.node_storage import HomeNotKept

LARGE = 40 * 2**20  # more than one part of an upload


def machine(root: Path, rclone: Path, state: str) -> tuple[Path, SavedHome]:
    home = root / state / "home"
    home.mkdir(parents=True)
    saved = SavedHome(home, 0, baseline=root / state / "home.json", excluded=[], rclone=lambda: rclone)
    saved.record_baseline()
    return home, saved


def test_home__is_the_same_on_another_machine(tmp_path: Path, rclone: Path, bucket: Bucket) -> None:
    mount: dict[str, Any] = {"path": "~", "bucket": bucket.name, "prefix": "", "rclone": bucket.backend}
    content = os.urandom(LARGE)
    first, saved = machine(tmp_path, rclone, "first")
    assert saved.restore(mount) == 0, "nothing was saved yet"
    (first / "large.bin").write_bytes(content)
    (first / "small").write_text("1")
    assert saved.save(mount) == 2
    second, saved = machine(tmp_path, rclone, "second")
    assert saved.restore(mount) == 2
    assert (second / "large.bin").read_bytes() == content
    (second / "small").write_text("2")
    (second / "large.bin").unlink()
    assert saved.save(mount) == 1
    third, saved = machine(tmp_path, rclone, "third")
    assert saved.restore(mount) == 1
    assert (third / "small").read_text() == "2"


def test_bucket_that_is_gone__is_an_error_and_not_an_empty_home(tmp_path: Path, rclone: Path, bucket: Bucket) -> None:
    mount: dict[str, Any] = {"path": "~", "bucket": bucket.name, "prefix": "", "rclone": bucket.backend}
    home, saved = machine(tmp_path, rclone, "first")
    (home / "x").write_text("1")
    bucket.remove()
    if bucket.kind != "local":  # a folder is made again
        with pytest.raises(HomeNotKept, match="rank 0"):
            saved.save(mount)
