"""Where FUSE or rclone is missing: links to local buckets, words for the others. No FUSE is used here."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from perdure.agent import fuse
from perdure.agent.mounts import MountError, Mounts


@pytest.fixture(autouse=True)
def _no_fuse(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))


@pytest.fixture
def bucket(tmp_path: Path) -> Path:
    directory = tmp_path / "buckets" / "ckpt"
    directory.mkdir(parents=True)
    return directory


@pytest.fixture
def spec(tmp_path: Path, bucket: Path) -> dict[str, Any]:
    return {
        "path": str(tmp_path / "checkpoint"),
        "mode": "MOUNT_CACHED",
        "bucket": "ckpt",
        "prefix": "run-1",
        "read_only": False,
        "rclone": {"type": "local", "root": str(bucket.parent)},
        "options": {},
    }


def _mounts(tmp_path: Path, *specs: dict[str, Any], log: list[str] | None = None) -> Mounts:
    lines: list[str] = [] if log is None else log
    return Mounts(specs, state_dir=tmp_path / "state", rclone=None, log=lines.append)


def test_the_problem_names_what_to_install() -> None:
    assert fuse.fuse_problem() == "fusermount3 is not installed: install the package fuse3"


def test_a_local_bucket_becomes_a_link(tmp_path: Path, bucket: Path, spec: dict[str, Any]) -> None:
    lines: list[str] = []
    mounts = _mounts(tmp_path, spec, log=lines)
    assert not mounts.needs_rclone
    mounts.mount_all()
    Path(spec["path"], "model.pt").write_bytes(b"weights")
    assert (bucket / "run-1/model.pt").read_bytes() == b"weights"
    mounts.flush(0.0)
    assert mounts.check() == []
    assert mounts.snapshot() == [{"path": spec["path"], "mode": "MOUNT_CACHED", "state": "linked", "pending": 0}]
    assert mounts.describe() == [{"path": spec["path"], "mode": "MOUNT_CACHED", "cache_dir": None, "rc_socket": None}]
    assert len(lines) == 1
    assert "install the package fuse3" in lines[0]
    mounts.unmount_all()
    assert not os.path.lexists(spec["path"])
    assert (bucket / "run-1/model.pt").exists()


def test_restarted_agent_keeps_the_link_and_removes_it_in_the_end(tmp_path: Path, spec: dict[str, Any]) -> None:
    _mounts(tmp_path, spec).mount_all()
    second = _mounts(tmp_path, spec)
    second.mount_all()
    assert second.check() == []
    third = _mounts(tmp_path, spec)
    third.unmount_all()
    assert not os.path.lexists(spec["path"])


@pytest.mark.parametrize("harm", ["link", "bucket"])
def test_a_lost_link_is_reported(tmp_path: Path, bucket: Path, spec: dict[str, Any], harm: str) -> None:
    mounts = _mounts(tmp_path, spec)
    mounts.mount_all()
    if harm == "link":
        os.unlink(spec["path"])
    else:
        (bucket / "run-1").rmdir()
    assert mounts.check() == [spec["path"]]
    assert mounts.snapshot()[0]["state"] == "lost"


def test_a_link_is_not_made_over_files(tmp_path: Path, spec: dict[str, Any]) -> None:
    Path(spec["path"]).mkdir()
    Path(spec["path"], "precious").touch()
    with pytest.raises(MountError, match="not empty"):
        _mounts(tmp_path, spec).mount_all()
    assert Path(spec["path"], "precious").exists()


def test_a_link_to_elsewhere_is_refused_and_left_alone(tmp_path: Path, spec: dict[str, Any]) -> None:
    os.symlink(tmp_path, spec["path"])
    mounts = _mounts(tmp_path, spec)
    with pytest.raises(MountError, match="it is a link to"):
        mounts.mount_all()
    mounts.unmount_all()
    assert os.readlink(spec["path"]) == str(tmp_path)


def test_a_missing_local_bucket_is_an_error(tmp_path: Path, bucket: Path, spec: dict[str, Any]) -> None:
    bucket.rmdir()
    with pytest.raises(MountError, match="there is no bucket"):
        _mounts(tmp_path, spec).mount_all()
    assert not os.path.lexists(spec["path"])


@pytest.mark.parametrize("mode", ["MOUNT", "MOUNT_CACHED"])
def test_a_cloud_bucket_says_why_it_can_not_be_mounted(tmp_path: Path, spec: dict[str, Any], mode: str) -> None:
    mounts = _mounts(tmp_path, {**spec, "mode": mode, "rclone": {"type": "s3"}})
    assert mounts.needs_rclone
    with pytest.raises(MountError, match="install the package fuse3"):
        mounts.mount_all()


def test_a_cloud_bucket_can_not_be_copied_without_rclone(tmp_path: Path, spec: dict[str, Any]) -> None:
    with pytest.raises(MountError, match="install rclone"):
        _mounts(tmp_path, {**spec, "mode": "COPY", "rclone": {"type": "s3"}}).mount_all()


def test_a_local_bucket_is_copied_without_rclone(tmp_path: Path, bucket: Path, spec: dict[str, Any]) -> None:
    (bucket / "run-1/sub").mkdir(parents=True)
    (bucket / "run-1/sub/a").write_bytes(b"a")
    mounts = _mounts(tmp_path, {**spec, "mode": "COPY"})
    assert not mounts.needs_rclone
    mounts.mount_all()
    assert Path(spec["path"], "sub/a").read_bytes() == b"a"
    mounts.unmount_all()
    assert Path(spec["path"], "sub/a").exists()


def test_relative_paths_are_refused(tmp_path: Path, spec: dict[str, Any]) -> None:
    with pytest.raises(MountError, match="relative"):
        _mounts(tmp_path, {**spec, "path": "checkpoint"}).mount_all()


def test_an_unknown_mode_is_refused(tmp_path: Path, spec: dict[str, Any]) -> None:
    with pytest.raises(MountError, match="unknown mode 'SYNC'"):
        _mounts(tmp_path, {**spec, "mode": "SYNC"}).mount_all()


def test_a_home_path_is_expanded(tmp_path: Path, spec: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    mounts = _mounts(tmp_path, {**spec, "path": "~/ckpt"})
    mounts.mount_all()
    assert (tmp_path / "home/ckpt").is_dir()
    assert mounts.describe()[0]["path"] == "~/ckpt"
