"""Checkpoints that are folders of any library's files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from perdure.checkpoint import preemption
from perdure.checkpoint.durability import mounts, status
from perdure.checkpoint.durability.mounts import MountSnapshot
from perdure.checkpoint.errors import CheckpointError, NoUsableCheckpoint
from perdure.checkpoint.folders import Folders
from perdure.checkpoint.save import finish_step
from perdure.checkpoint.save.save_directory import SaveDirectory


def save(folders: Folders, step: int, **files: bytes) -> Path:
    with folders.saving(step) as path:
        for name, content in files.items():
            target = Path(path, name.replace("_", "/"))
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
    return Path(path)


def test_folders__newest_whole_folder(tmp_path: Path) -> None:
    folders = Folders(tmp_path)
    assert folders.newest() is None
    for step in (9, 10, 100):
        save(folders, step, a=b"a" * step, sub_b=b"b")
    newest = folders.newest()
    assert newest is not None
    assert (newest.step, newest.path, newest.skipped) == (100, str(tmp_path / "checkpoint-100"), ())


@pytest.mark.parametrize("how", ["changed", "short", "missing", "all gone"])
def test_folders__fall_back_past_a_damaged_folder(tmp_path: Path, how: str) -> None:
    folders = Folders(tmp_path)
    save(folders, 1, a=b"one")
    path = save(folders, 2, a=b"two", b=b"two")
    if how == "changed":
        (path / "a").write_bytes(b"twi")
    elif how == "short":
        (path / "a").write_bytes(b"tw")
    else:
        (path / "a").unlink()
        if how == "all gone":
            (path / "b").unlink()
            path.rmdir()
    newest = folders.newest()
    assert newest is not None
    assert newest.step == 1
    assert [step for step, _ in newest.skipped] == [2]
    (tmp_path / "checkpoint-1" / "a").unlink()
    with pytest.raises(NoUsableCheckpoint):
        folders.newest()


def test_folders__unfinished_folder_does_not_count(tmp_path: Path) -> None:
    folders = Folders(tmp_path)
    save(folders, 1, a=b"one")
    with pytest.raises(KeyError), folders.saving(2) as path:  # noqa: PT012
        Path(path, "a").write_bytes(b"half")
        raise KeyError
    assert folders.newest().step == 1  # type: ignore[union-attr]
    with pytest.raises(CheckpointError, match="nothing was written"):
        folders.commit(3)


def test_folders__step_that_is_written_again_counts_until_it_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be the only one: a program that found nothing would begin anew."""

    def content() -> bytes:
        newest = Folders(tmp_path, keep=1).newest()
        assert newest is not None
        assert newest.step == 2
        return Path(newest.path, "a").read_bytes()

    folders = Folders(tmp_path, keep=1)
    save(folders, 2, a=b"old", b=b"old")
    with pytest.raises(KeyError), folders.saving(2) as path:  # noqa: PT012
        Path(path, "a").write_bytes(b"half")
        raise KeyError
    assert [path.name for path in tmp_path.glob(".tmp-*")] == [".tmp-new-checkpoint-2"]
    assert content() == b"old"
    assert not list(tmp_path.glob(".tmp-*"))
    with folders.saving(2) as path:
        Path(path, "a").write_bytes(b"old")
        assert folders.newest() is not None  # while it is being written

    def die(*_: object) -> None:
        raise SystemExit

    with monkeypatch.context() as killed:
        killed.setattr(os, "rename", die)
        with pytest.raises(SystemExit):
            save(folders, 2, a=b"newer")
    assert content() == b"old"
    with monkeypatch.context() as killed:
        killed.setattr(finish_step, "build_manifest", die)
        with pytest.raises(SystemExit):
            save(folders, 2, a=b"newer")
    assert content() == b"old"
    with monkeypatch.context() as killed:
        killed.setattr(SaveDirectory, "delete", die)
        with pytest.raises(SystemExit):
            save(folders, 2, a=b"newest", b=b"new")
    assert content() in (b"old", b"newest")
    save(folders, 2, a=b"last")
    assert content() == b"last"
    assert sorted(path.name for path in tmp_path.iterdir()) == [".perdure", "checkpoint-2"]
    assert [path.name for path in (tmp_path / "checkpoint-2").iterdir()] == ["a"]
    assert len(list(tmp_path.glob(".perdure/*"))) == 1


def test_folders__remove_surplus_folders(tmp_path: Path) -> None:
    folders = Folders(tmp_path, keep=2)
    for step in range(1, 6):
        save(folders, step, a=b"x", sub_b=b"y")
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != ".perdure") == [
        "checkpoint-4",
        "checkpoint-5",
    ]


def test_folders__protected_step_stays_while_it_is_protected(tmp_path: Path) -> None:
    folders = Folders(tmp_path, keep=1)
    for step in range(1, 6):
        folders.protected_steps.clear()
        folders.protected_steps.add(2 if step < 5 else 4)
        save(folders, step, a=b"x")
        if step == 4:
            assert sorted(path.name for path in tmp_path.glob("checkpoint-*")) == ["checkpoint-2", "checkpoint-4"]
    assert sorted(path.name for path in tmp_path.glob("checkpoint-*")) == ["checkpoint-4", "checkpoint-5"]


def test_folders__forget_folders_that_their_library_removed(tmp_path: Path) -> None:
    folders = Folders(tmp_path)
    path = save(folders, 1, a=b"x")
    save(folders, 2, a=b"x")
    (path / "a").unlink()
    path.rmdir()
    save(folders, 3, a=b"x")
    newest = folders.newest()
    assert newest is not None
    assert len(list((tmp_path / ".perdure").glob("*.json"))) == 2


def test_folders__upload_before_the_deadline_of_a_notice(
    tmp_path: Path, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uploads: list[list[str]] = []
    monkeypatch.setattr(MountSnapshot, "find", lambda *_: mounts.Mount(str(tmp_path), "MOUNT_CACHED", None))
    monkeypatch.setattr(MountSnapshot, "require_mounted", lambda *_: None)
    monkeypatch.setattr(status, "wait_durable", lambda paths, **_: uploads.append(sorted(paths)) or True)
    folders = Folders(tmp_path / "c")
    save(folders, 1, a=b"x")
    uploads.clear()  # the very first is waited for
    (run_dir / "notice.json").write_text("{}")
    monkeypatch.setattr(preemption._cache, "checked_at_s", float("-inf"))
    save(folders, 2, a=b"x")
    ((manifest, data),) = uploads
    assert Path(manifest).match("c/.perdure/checkpoint-*2-*.json")
    assert Path(data) == tmp_path / "c" / "checkpoint-2" / "a"
