"""Mounts without FUSE or rclone: local buckets are linked, others are refused with the reason."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from perdure.agent.storage import fuse
from perdure.agent.storage.mounts import MountError, Mounts


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


def test_fuse_problem__names_the_package_to_install() -> None:
    assert fuse.fuse_problem() == "fusermount3 is not installed: install the package fuse3"


def test_link__replaces_the_mount_of_a_local_bucket(tmp_path: Path, bucket: Path, spec: dict[str, Any]) -> None:
    lines: list[str] = []
    mounts = _mounts(tmp_path, spec, log=lines)
    assert not mounts.needs_rclone
    mounts.mount_all()
    Path(spec["path"], "model.pt").write_bytes(b"weights")
    assert (bucket / "run-1/model.pt").read_bytes() == b"weights"
    mounts.flush(0.0)
    assert mounts.lost_paths() == []
    assert mounts.snapshot() == [{"path": spec["path"], "mode": "MOUNT_CACHED", "state": "linked", "pending": 0}]
    assert mounts.describe() == [{"path": spec["path"], "mode": "MOUNT_CACHED", "cache_dir": None, "rc_socket": None}]
    assert len(lines) == 1
    assert "install the package fuse3" in lines[0]
    mounts.unmount_all()
    assert not os.path.lexists(spec["path"])
    assert (bucket / "run-1/model.pt").exists()


def test_link__is_adopted_and_removed_by_a_restarted_agent(tmp_path: Path, spec: dict[str, Any]) -> None:
    _mounts(tmp_path, spec).mount_all()
    second = _mounts(tmp_path, spec)
    second.mount_all()
    assert second.lost_paths() == []
    third = _mounts(tmp_path, spec)
    third.unmount_all()
    assert not os.path.lexists(spec["path"])


@pytest.mark.parametrize("harm", ["link", "bucket"])
def test_link__is_reported_when_lost(tmp_path: Path, bucket: Path, spec: dict[str, Any], harm: str) -> None:
    mounts = _mounts(tmp_path, spec)
    mounts.mount_all()
    if harm == "link":
        os.unlink(spec["path"])
    else:
        (bucket / "run-1").rmdir()
    assert mounts.lost_paths() == [spec["path"]]
    assert mounts.snapshot()[0]["state"] == "lost"


def test_link__is_not_made_over_files(tmp_path: Path, spec: dict[str, Any]) -> None:
    Path(spec["path"]).mkdir()
    Path(spec["path"], "precious").touch()
    with pytest.raises(MountError, match="not empty"):
        _mounts(tmp_path, spec).mount_all()
    assert Path(spec["path"], "precious").exists()


def test_link__to_another_target_is_refused(tmp_path: Path, spec: dict[str, Any]) -> None:
    os.symlink(tmp_path, spec["path"])
    mounts = _mounts(tmp_path, spec)
    with pytest.raises(MountError, match="it is a link to"):
        mounts.mount_all()
    mounts.unmount_all()
    assert os.readlink(spec["path"]) == str(tmp_path)


def test_mount_all__fails_without_the_local_bucket(tmp_path: Path, bucket: Path, spec: dict[str, Any]) -> None:
    bucket.rmdir()
    with pytest.raises(MountError, match="there is no bucket"):
        _mounts(tmp_path, spec).mount_all()
    assert not os.path.lexists(spec["path"])


@pytest.mark.parametrize("mode", ["MOUNT", "MOUNT_CACHED"])
def test_mount_all__explains_why_a_cloud_bucket_cannot_be_mounted(
    tmp_path: Path, spec: dict[str, Any], mode: str
) -> None:
    mounts = _mounts(tmp_path, {**spec, "mode": mode, "rclone": {"type": "s3"}})
    assert mounts.needs_rclone
    with pytest.raises(MountError, match="install the package fuse3"):
        mounts.mount_all()


def test_copy__of_a_cloud_bucket_needs_rclone(tmp_path: Path, spec: dict[str, Any]) -> None:
    with pytest.raises(MountError, match="install rclone"):
        _mounts(tmp_path, {**spec, "mode": "COPY", "rclone": {"type": "s3"}}).mount_all()


def test_copy__of_a_local_bucket_needs_no_rclone(tmp_path: Path, bucket: Path, spec: dict[str, Any]) -> None:
    (bucket / "run-1/sub").mkdir(parents=True)
    (bucket / "run-1/sub/a").write_bytes(b"a")
    mounts = _mounts(tmp_path, {**spec, "mode": "COPY"})
    assert not mounts.needs_rclone
    mounts.mount_all()
    assert Path(spec["path"], "sub/a").read_bytes() == b"a"
    mounts.unmount_all()
    assert Path(spec["path"], "sub/a").exists()


def test_mount_all__refuses_relative_paths(tmp_path: Path, spec: dict[str, Any]) -> None:
    with pytest.raises(MountError, match="relative"):
        _mounts(tmp_path, {**spec, "path": "checkpoint"}).mount_all()


def test_mount_all__refuses_an_unknown_mode(tmp_path: Path, spec: dict[str, Any]) -> None:
    with pytest.raises(MountError, match="unknown mode 'SYNC'"):
        _mounts(tmp_path, {**spec, "mode": "SYNC"}).mount_all()


def test_mount_all__expands_home(tmp_path: Path, spec: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    mounts = _mounts(tmp_path, {**spec, "path": "~/ckpt"})
    mounts.mount_all()
    assert (tmp_path / "home/ckpt").is_dir()
    assert mounts.describe()[0]["path"] == "~/ckpt"
