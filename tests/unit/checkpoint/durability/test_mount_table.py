"""Mounts that no agent made, by the kernel's table and the command line of a process, as /proc shows them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import pytest

from perdure.checkpoint import is_durable
from perdure.checkpoint.durability import mount_table, mounts


class MountWorld(Protocol):
    """Writes what the kernel shows of a mount and of a process; returns the path of a file on the mount."""

    def __call__(self, kind: str, *words: str | Path, environment: Sequence[str] = ()) -> str: ...


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MountWorld:
    mountpoint, proc = tmp_path / "mnt", tmp_path / "proc"
    mountpoint.mkdir()
    (mountpoint / "a").write_text("x")
    monkeypatch.setattr(mount_table, "_TABLE", str(tmp_path / "mountinfo"))
    monkeypatch.setattr(mount_table, "_PROC", str(proc))
    monkeypatch.setattr(mount_table, "_servers", {})

    def world(kind: str, *words: str | Path, environment: Sequence[str] = ()) -> str:
        (tmp_path / "mountinfo").write_text(
            f"1 0 8:1 / / rw - ext4 /dev/root rw\n44 1 0:41 / {mountpoint} rw - {kind} store:folder rw\n"
        )
        (proc / "77").mkdir(parents=True)
        (proc / "77" / "cmdline").write_bytes(b"\0".join(str(word).encode() for word in words) + b"\0")
        (proc / "77" / "environ").write_bytes(b"\0".join(line.encode() for line in environment))
        (proc / "77" / "stat").write_text("77 (rclone) S " + "0 " * 18 + "4711 0\n")
        (proc / "77" / "cwd").symlink_to(tmp_path)
        return str(mountpoint / "a")

    return world


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("ext4", True),
        ("nfs4", True),
        ("overlay", True),
        ("fuse.gcsfuse", True),
        ("fuse.s3fs", None),
        ("fuse", None),
    ],
)
def test_mount_entry__durability_of_a_closed_file(world: MountWorld, kind: str, expected: bool | None) -> None:
    assert is_durable([world(kind)]) is expected


@pytest.mark.parametrize("name", ["absolute", "relative"])
def test_find_server__rclone_with_a_cache(world: MountWorld, tmp_path: Path, name: str) -> None:
    mountpoint = tmp_path / "mnt" if name == "absolute" else "mnt"
    words = ("/usr/bin/rclone", "mount", "store:folder", mountpoint, "--vfs-cache-mode", "full")
    path = world("fuse.rclone", *words, f"--cache-dir={tmp_path / 'cache'}", "--rc-addr", "unix:///run/rc")
    assert mounts.find_mount(path) == mounts.Mount(
        str(tmp_path / "mnt"), "fuse.rclone", str(tmp_path / "cache"), "/run/rc"
    )
    note = tmp_path / "cache" / "vfsMeta" / "store" / "folder" / "a"
    note.parent.mkdir(parents=True)
    for dirty, expected in ((True, False), (False, True)):
        note.write_text(json.dumps({"Dirty": dirty, "Fingerprint": "1"}))
        assert is_durable([path]) is expected


def test_find_server__reads_flags_from_the_environment(world: MountWorld, tmp_path: Path) -> None:
    path = world(
        *("fuse.rclone", "rclone", "mount", "store:folder", tmp_path / "mnt"),
        environment=["RCLONE_VFS_CACHE_MODE=writes", "HOME=/home/me"],
    )
    mount = mounts.find_mount(path)
    assert mount is not None
    assert mount.cache_dir == "/home/me/.cache/rclone"


def test_find_server__rclone_without_a_cache_is_durable_at_close(world: MountWorld, tmp_path: Path) -> None:
    assert is_durable([world("fuse.rclone", "rclone", "mount", "store:folder", tmp_path / "mnt")]) is True


@pytest.mark.parametrize("words", [("sshd",), ("rclone", "mount", "store:other", "/elsewhere"), ("rclone", "rcd")])
def test_find_server__invisible_process_is_unknown(world: MountWorld, words: tuple[str, ...]) -> None:
    assert is_durable([world("fuse.rclone", *words)]) is None


CACHED = ("--cache-dir", "/cache", "--vfs-cache-mode")


@pytest.mark.parametrize("mode", ["full", "FULL", "Writes", "mInimal", "2"])
def test_find_server__ignores_the_case_of_a_cache_mode(world: MountWorld, tmp_path: Path, mode: str) -> None:
    path = world("fuse.rclone", "rclone", "mount", "store:folder", tmp_path / "mnt", *CACHED, mode)
    mount = mounts.find_mount(path)
    assert mount is not None
    assert mount.cache_dir == "/cache"


@pytest.mark.parametrize("mode", ["OFF", "off", "0"])
def test_find_server__without_a_cache(world: MountWorld, tmp_path: Path, mode: str) -> None:
    assert is_durable([world("fuse.rclone", "rclone", "mount", "store:folder", tmp_path / "mnt", *CACHED, mode)])


@pytest.mark.parametrize("flags", [("newest",), ("full", "--no-modtime"), ("full", "--no-modtime=true")])
def test_find_server__is_unknown_with_flags_that_it_does_not_know(
    world: MountWorld, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    path = world("fuse.rclone", "rclone", "mount", "store:folder", tmp_path / "mnt", *CACHED, *flags)
    assert is_durable([path]) is None


def test_find_server__notices_a_mount_that_was_made_again(world: MountWorld, tmp_path: Path) -> None:
    """At the same path, within the time for which a server is cached. The kernel uses numbers of mounts again."""
    path = world("fuse.rclone", "rclone", "mount", "store:folder", tmp_path / "mnt")
    assert is_durable([path]) is True
    process = tmp_path / "proc" / "77"
    words = ["rclone", "mount", "store:folder", str(tmp_path / "mnt"), *CACHED, "writes"]
    (process / "cmdline").write_bytes(b"\0".join(word.encode() for word in words) + b"\0")
    (process / "stat").write_text("77 (rclone) S " + "0 " * 18 + "4712 0\n")
    mount = mounts.find_mount(path)
    assert mount is not None
    assert mount.cache_dir == "/cache"


def test_find_server__is_unknown_if_two_processes_may_be_it(world: MountWorld, tmp_path: Path) -> None:
    path = world("fuse.rclone", "rclone", "mount", "store:folder", tmp_path / "mnt")
    shutil.copytree(tmp_path / "proc" / "77", tmp_path / "proc" / "78", symlinks=True)
    assert is_durable([path]) is True, "both serve it in the same way"
    mount_table._servers.clear()
    words = ["rclone", "mount", "store:folder", str(tmp_path / "mnt"), *CACHED, "writes"]
    (tmp_path / "proc" / "78" / "cmdline").write_bytes(b"\0".join(word.encode() for word in words) + b"\0")
    assert is_durable([path]) is None
