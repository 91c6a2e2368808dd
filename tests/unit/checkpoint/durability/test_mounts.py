"""The mounts of this node, and directories whose mount is missing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from perdure.checkpoint import CheckpointUnavailable, latest, load_checkpoint, save_checkpoint, steps


def list_mount(run_dir: Path, path: Path, **fields: str) -> None:
    row = {"path": str(path), "mode": "MOUNT_CACHED", "cache_dir": None, "rc_socket": None, **fields}
    (run_dir / "mounts.json").write_text(json.dumps([row]))


def test_require_mounted__directory_under_an_absent_mount_is_not_used(tmp_path: Path, run_dir: Path) -> None:
    """Without the check a save would go to the machine's own disk, and a load would start from scratch."""
    mountpoint = tmp_path / "mnt"
    (mountpoint / "run").mkdir(parents=True)
    list_mount(run_dir, mountpoint)
    calls = []
    for act in (
        save_checkpoint(mountpoint / "run")(lambda step: calls.append(step) or 1),
        load_checkpoint(mountpoint / "run")(lambda step: calls.append(step) or 1),
        lambda step: latest(mountpoint / "run"),
        lambda step: steps(mountpoint),
    ):
        with pytest.raises(CheckpointUnavailable, match="nothing is mounted there"):
            act(1)
    assert calls == []
    beside = save_checkpoint(tmp_path / "mnt2")(lambda step: (tmp_path / "mnt2" / f"{step}").write_text("x"))
    beside(1)


def test_require_mounted__dangling_link_is_an_absent_mount(tmp_path: Path, run_dir: Path) -> None:
    (tmp_path / "mnt").symlink_to(tmp_path / "gone")
    list_mount(run_dir, tmp_path / "mnt")
    with pytest.raises(CheckpointUnavailable):
        load_checkpoint(tmp_path / "mnt" / "run")(lambda step: step)()


@pytest.mark.parametrize("content", ["{", '{"a": 1}', "[1]", '[{"mode": "MOUNT"}]'])
def test_mount_snapshot__unreadable_list_is_reported(tmp_path: Path, run_dir: Path, content: str) -> None:
    (run_dir / "mounts.json").write_text(content)
    with pytest.raises(CheckpointUnavailable, match=r"mounts\.json"):
        load_checkpoint(tmp_path)(lambda step: step)()
