"""No object is removed that the user has, and no file counts as uploaded that the bucket lacks."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perdure.agent import clock
from perdure.agent.storage.flush import FlushError
from perdure.agent.storage.mounts import Mounts
from perdure.agent.storage.rclone_mount import MountError
from perdure.agent.storage.synced import folder_tree, synced_folder
from perdure.agent.storage.synced.synced_folder import SyncedFolder
from support.helpers.timing import wait_until

RCLONE = Path(sys.executable).parent / "rclone"
Make = Callable[..., SyncedFolder]
pytestmark = pytest.mark.skipif(not RCLONE.exists(), reason="rclone is not installed")


def stop(folder: SyncedFolder) -> None:
    """End its thread, as if the agent was killed; passes are then made by hand."""
    folder._stopped.set()
    assert folder._thread is not None
    folder._thread.join()
    folder._thread = None
    folder._stopped.clear()


def write(folder: SyncedFolder, name: str, text: str) -> Path:
    path = Path(folder.path, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def objects(bucket: Path) -> set[str]:
    return {str(path.relative_to(bucket / "run-1")) for path in (bucket / "run-1").rglob("*") if path.is_file()}


def test_names_that_rclone_takes_for_others__stay_pending_and_remove_nothing(bucket: Path, make: Make) -> None:
    folder = make()
    folder.mount()
    names = ["model.bin", "a\nmodel2.bin", "cr\r", "q\u201b.bin", "x\nmodel.bin"]
    for name in names:
        write(folder, name, "data")
    with pytest.raises(FlushError, match="cannot have its name") as failed:
        folder.flush(None)
    assert {one.name for one in failed.value.pending[folder.path]} == set(names[1:])
    assert objects(bucket) == {"model.bin"}
    assert folder._records.cache.find_record("cr\r") is None
    for name in names[1:]:
        os.unlink(Path(folder.path, name))
    folder.flush(None)
    assert objects(bucket) == {"model.bin"}


def test_upload__counts_only_if_the_bucket_lists_it(bucket: Path, make: Make, tmp_path: Path) -> None:
    """rclone ignores names of a list that it does not find, and ends without an error."""
    script = tmp_path / "rclone"
    script.write_text(f'#!/bin/sh\ncase "$*" in copy*--files-from-raw*) exit 0;; esac\nexec {RCLONE} "$@"\n')
    script.chmod(0o755)
    folder = make(script)
    folder.mount()
    stop(folder)
    write(folder, "a", "a")
    assert folder._sync(final=True) == "a: after its upload, the bucket has no such object"
    assert folder._records.cache.find_record("a") is None


def test_new_empty_folder__does_not_empty_the_bucket(bucket: Path, make: Make) -> None:
    first = make()
    first.mount()
    write(first, "m.bin", "model")
    first.flush(None)
    stop(first)
    shutil.rmtree(first.path)
    os.mkdir(first.path)  # the disk is new after a reboot
    second = make()
    assert second.mount(), "it is filled again"
    second.flush(None)
    assert objects(bucket) == {"m.bin"}
    assert Path(second.path, "m.bin").read_text() == "model"


def test_folder_of_others_in_its_place__is_refused(bucket: Path, make: Make) -> None:
    first = make()
    first.mount()
    stop(first)
    shutil.rmtree(first.path)
    write(first, "other", "not ours")
    with pytest.raises(MountError, match="not empty"):
        make().mount()
    assert Path(first.path, "other").exists()


def test_folder_replaced_while_it_is_uploaded__removes_no_object(bucket: Path, make: Make) -> None:
    folder = make()
    folder.mount()
    write(folder, "old", "old")
    folder.flush(None)
    with folder._lock:
        shutil.rmtree(folder.path)
        write(folder, "new", "new")
    folder.flush(None)
    folder.flush(None)
    assert objects(bucket) == {"old", "new"}
    assert folder._records.cache.find_record("old") is None


def test_rename_during_a_walk__keeps_the_object_until_the_new_one_is_there(
    bucket: Path, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make()
    folder.mount()
    stop(folder)
    write(folder, "latest/model.bin", "model")
    folder.flush(None)
    folder._previous = None
    assert folder._sync(final=False) == ""
    scandir, renamed = os.scandir, []

    def scan(path: str) -> Any:
        if path.endswith("/latest") and not renamed:
            renamed.append(os.rename(path, path[: -len("latest")] + "previous"))
        return scandir(path)

    with monkeypatch.context() as patched:
        patched.setattr(folder_tree.os, "scandir", scan)
        assert folder._sync(final=False) == ""
    assert renamed
    assert objects(bucket) == {"latest/model.bin"}, "this walk has found it nowhere"
    assert folder._sync(final=False) == ""
    assert objects(bucket) == {"previous/model.bin"}


def test_removal__waits_while_the_renamed_file_cannot_be_uploaded(bucket: Path, make: Make) -> None:
    folder = make()
    folder.mount()
    stop(folder)
    path = write(folder, "model.bin", "model")
    folder.flush(None)
    path.rename(path.with_name("model\n.bin"))
    for _ in range(3):
        folder._sync(final=True)
    assert objects(bucket) == {"model.bin"}


def test_manifest_that_one_walk_alone_has_found__waits_for_the_next(bucket: Path, make: Make) -> None:
    folder = make()
    folder.mount()
    stop(folder)
    folder._sync(final=False)
    write(folder, ".perdure/m-1.json", "{}")
    folder._sync(final=False)
    assert objects(bucket) == set(), "its files may have been written after their folder was read"
    folder._sync(final=False)
    assert objects(bucket) == {".perdure/m-1.json"}


def test_root_that_vanishes_before_the_walk__is_an_error(
    bucket: Path, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make()
    folder.mount()
    write(folder, "a", "a")
    folder.flush(None)
    stop(folder)

    def vanish(*_args: object, **_more: object) -> None:
        raise FileNotFoundError(errno.ENOENT, "gone", folder.path)

    monkeypatch.setattr(synced_folder, "read_tree", vanish)
    for _ in range(3):
        assert "gone" in folder._sync(final=False)
    assert objects(bucket) == {"a"}


def test_link_in_place_of_a_file__is_uploaded_as_what_it_leads_to(bucket: Path, make: Make, tmp_path: Path) -> None:
    folder = make()
    folder.mount()
    path = write(folder, "m.bin", "model")
    folder.flush(None)
    path.rename(tmp_path / "m.bin")
    path.symlink_to(tmp_path / "m.bin")
    folder.flush(None)
    assert (bucket / "run-1/m.bin").read_text() == "model"
    (tmp_path / "m.bin").write_text("more of it")
    folder.flush(None)
    assert (bucket / "run-1/m.bin").read_text() == "more of it"
    path.unlink()
    path.symlink_to("nowhere")
    folder.flush(None)
    assert objects(bucket) == {"m.bin"}, "the user has not removed it"


def test_link_to_a_directory_elsewhere__is_pending(bucket: Path, make: Make, tmp_path: Path) -> None:
    folder = make()
    folder.mount()
    Path(folder.path, "data").symlink_to(tmp_path)
    with pytest.raises(FlushError, match=r"data \(it is a link to a directory elsewhere"):
        folder.flush(None)
    folder.unmount()
    assert Path(folder.path).exists()


def test_error_of_a_walk__ends_neither_the_uploads_nor_the_flush_in_another_form(
    bucket: Path, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, walks = make(), []

    def fail(*_args: object, **_more: object) -> None:
        walks.append(1)
        raise (OSError(errno.EIO, "input/output error") if len(walks) > 1 else RuntimeError("a mistake"))

    folder.mount()
    with monkeypatch.context() as patched:
        patched.setattr(synced_folder, "read_tree", fail)
        wait_until(lambda: walks, "a walk", 20)
        with pytest.raises(FlushError, match="input/output error"):
            folder.flush(clock.now() + 0.5)
    write(folder, "a", "a")
    wait_until((bucket / "run-1/a").exists, "the upload", 20)


def test_one_file_that_fails__holds_up_no_manifest_of_others_and_no_removal(bucket: Path, make: Make) -> None:
    folder = make()
    folder.mount()
    stop(folder)
    old = write(folder, "old", "old")
    folder.flush(None)
    old.unlink()
    (bucket / "run-1/conflict").mkdir()
    write(folder, "conflict", "the bucket has a directory there")
    write(folder, "step-1/w.bin", "w")
    write(folder, ".perdure/m-1.json", json.dumps({"files": [{"path": "step-1/w.bin"}]}))
    write(folder, ".perdure/m-2.json", json.dumps({"files": [{"path": "conflict"}]}))
    assert folder._sync(final=True) != ""
    assert objects(bucket) == {"step-1/w.bin", ".perdure/m-1.json"}


def test_manifest_of_a_file_that_cannot_be_uploaded__does_not_hold_the_flush_for_ever(bucket: Path, make: Make) -> None:
    folder = make()
    folder.mount()
    write(folder, "bad\n", "x")
    write(folder, ".perdure/m-1.json", json.dumps({"files": [{"path": "bad\n"}]}))
    with pytest.raises(FlushError, match="2 files did not reach"):
        folder.flush(None)
    assert objects(bucket) == set()


def test_folder_that_is_lost_at_the_flush__is_not_flushed(
    bucket: Path, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_path: object) -> None:
        raise OSError(errno.EIO, "input/output error")

    folder = make()
    folder.mount()
    stop(folder)
    with monkeypatch.context() as patched:
        patched.setattr(folder_tree.os, "stat", fail)
        with pytest.raises(FlushError, match="input/output error"):
            folder.flush(clock.now() + 0.2)
    write(folder, ".tmp-x", "x")
    folder._sync(final=False)  # a temporary file waits
    shutil.rmtree(folder.path)
    with pytest.raises(FlushError, match="the folder was removed before its upload"):
        folder.flush(None)


def test_odd_names_of_the_bucket__are_no_pending_files(bucket: Path, make: Make) -> None:
    (bucket / "run-1").mkdir()
    (bucket / "run-1/odd\n").write_text("odd")
    folder = make()
    folder.mount()
    folder.flush(None)
    os.unlink(Path(folder.path, "odd\n"))
    folder.flush(None)
    assert objects(bucket) == {"odd\n"}, "it cannot be removed by its name"


def test_flush_of_all_mounts__goes_on_after_one_has_failed(
    bucket: Path, spec: dict[str, Any], tmp_path: Path, make: Make
) -> None:
    (bucket.parent / "other").mkdir()
    folder = make()
    other = SyncedFolder(
        {**spec, "path": str(tmp_path / "work/other"), "bucket": "other"},
        home=tmp_path / "home-2",
        binary=RCLONE,
        reason="",
        log=print,
    )
    mounts = Mounts([], state_dir=tmp_path / "state", rclone=RCLONE, log=print, is_shared=False)
    mounts._buckets = [folder, other]
    for one in (folder, other):
        one.mount()
        stop(one)
    write(folder, "bad\n", "x")
    write(other, "model.pt", "weights")
    write(other, "also\r", "x")
    with pytest.raises(FlushError, match=r"bucket ckpt: 'bad\\n' .*bucket other: 'also\\r'") as failed:
        mounts.flush(None)
    assert failed.value.pending.keys() == {folder.path, other.path}
    assert (bucket.parent / "other/run-1/model.pt").read_text() == "weights"
    other.unmount()
