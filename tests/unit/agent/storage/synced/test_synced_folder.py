"""A bucket as a folder, with a real rclone on a bucket that is a directory of this machine."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from perdure.agent import clock
from perdure.agent.storage.checkpoint_journal import CommittedCheckpoint
from perdure.agent.storage.durability_watcher import PendingCheckpoint, Upload
from perdure.agent.storage.flush import FlushError
from perdure.agent.storage.mounts import Mounts
from perdure.agent.storage.rclone_mount import MountError
from perdure.agent.storage.synced.synced_folder import SyncedFolder
from perdure.checkpoint import CheckpointUnavailable, is_durable, latest, save_checkpoint
from perdure.checkpoint.durability.file_version import FileVersion
from support.helpers.timing import wait_until

RCLONE = Path(sys.executable).parent / "rclone"
Make = Callable[..., SyncedFolder]
pytestmark = pytest.mark.skipif(not RCLONE.exists(), reason="rclone is not installed")


def write(folder: SyncedFolder, name: str, text: str) -> Path:
    path = Path(folder.path, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_content_of_the_bucket__is_there_first(bucket: Path, make: Make) -> None:
    (bucket / "run-1/sub").mkdir(parents=True)
    (bucket / "run-1/sub/a").write_text("a")
    folder = make()
    assert folder.mount()
    assert Path(folder.path, "sub/a").read_text() == "a"
    assert not folder.is_lost()
    assert folder.pending_uploads() == 0


def test_file__is_uploaded_when_it_is_closed_and_removed_with_its_file(bucket: Path, make: Make) -> None:
    folder = make()
    folder.mount()
    path = write(folder, "step-1/model.pt", "weights")
    wait_until((bucket / "run-1/step-1/model.pt").exists, "the upload", 20)
    assert (bucket / "run-1/step-1/model.pt").read_text() == "weights"
    path.unlink()
    wait_until(lambda: not (bucket / "run-1/step-1/model.pt").exists(), "the removal", 20)


def test_refresh__copies_what_is_new_or_newer_and_spares_what_was_changed_here(bucket: Path, make: Make) -> None:
    (bucket / "run-1").mkdir()
    names = ("kept", "overwritten", "changed here", "removed here")
    for name in names:
        (bucket / "run-1" / name).write_text("old")
        os.utime(bucket / "run-1" / name, (1e9, 1e9))
    folder = make()
    folder.mount()
    folder._lock.acquire()  # no pass meanwhile
    write(folder, "changed here", "mine")
    Path(folder.path, "removed here").unlink()
    (bucket / "run-1/overwritten").write_text("new")  # as long as before
    (bucket / "run-1/changed here").write_text("theirs")
    (bucket / "run-1/step-2").mkdir()
    (bucket / "run-1/step-2/model.pt").write_text("weights")
    folder._lock.release()
    folder.refresh()
    files = [path for path in Path(folder.path).rglob("*") if path.is_file() and not path.name.startswith(".")]
    expected = {"kept": "old", "overwritten": "new", "changed here": "mine", "model.pt": "weights"}
    assert {path.name: path.read_text() for path in files} == expected
    folder.flush(None)
    assert (bucket / "run-1/changed here").read_text() == "mine"
    wait_until(lambda: not (bucket / "run-1/removed here").exists(), "the removal", 20)


def test_refresh__leaves_what_is_written_here_meanwhile_to_be_uploaded(bucket: Path, make: Make) -> None:
    (bucket / "run-1").mkdir()
    (bucket / "run-1/log").write_text("old")
    os.utime(bucket / "run-1/log", (1e9, 1e9))
    folder = make()
    folder.mount()
    (bucket / "run-1/log").write_text("new")
    os.utime(bucket / "run-1/log", (2e9, 2e9))
    download = folder._rclone.download_newer

    def download_beside_a_writer(at: str, names: Sequence[str]) -> None:
        download(at, names)
        write(folder, "log", "own")

    folder._rclone.download_newer = download_beside_a_writer  # type: ignore[method-assign]
    folder.refresh()
    folder.flush(None)
    assert (bucket / "run-1/log").read_text() == "own"


def test_file_of_an_earlier_attempt__can_be_removed(bucket: Path, make: Make) -> None:
    (bucket / "run-1").mkdir()
    (bucket / "run-1/old").write_text("old")
    folder = make()
    folder.mount()
    Path(folder.path, "old").unlink()
    folder.flush(None)
    assert not (bucket / "run-1/old").exists()


def test_open_and_temporary_files__wait_until_the_flush(bucket: Path, make: Make) -> None:
    folder = make()
    folder.mount()
    write(folder, ".tmp-x/part", "half")
    with open(write(folder, "log", "line"), "a") as log:
        log.flush()
        write(folder, "whole", "whole")
        wait_until((bucket / "run-1/whole").exists, "the upload", 20)
        assert sorted(os.listdir(bucket / "run-1")) == ["whole"]
        folder.flush(None)
    assert sorted(os.listdir(bucket / "run-1")) == [".tmp-x", "log", "whole"]


def test_file_in_use__is_uploaded_after_the_interval(bucket: Path, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make(options={"flush_every": "1s"})
    folder.mount()
    with open(write(folder, "log", "line"), "a"):
        wait_until((bucket / "run-1/log").exists, "the upload", 20)


def test_manifest__is_uploaded_last_and_removed_first(bucket: Path, make: Make, tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    script = tmp_path / "rclone"
    script.write_text(
        f'#!/bin/sh\n[ "$1" = lsjson ] ||\n'
        f'echo "$1 $(cat {tmp_path}/home/names 2>/dev/null | tr "\\n" " ")" >> {calls}\nexec {RCLONE} "$@"\n'
    )
    script.chmod(0o755)
    folder = make(script)
    folder.mount()
    with folder._lock:  # one pass sees all of it
        write(folder, ".perdure/m-1.json", "{}")
        write(folder, "step-1/model.pt", "weights")
    folder.flush(None)
    assert [line.strip() for line in calls.read_text().splitlines()][-2:] == [
        "copy step-1/model.pt",
        "copy .perdure/m-1.json",
    ]
    with folder._lock:
        shutil.rmtree(Path(folder.path, ".perdure"))
        shutil.rmtree(Path(folder.path, "step-1"))
    folder.flush(None)
    assert [line.strip() for line in calls.read_text().splitlines()][-2:] == [
        "delete .perdure/m-1.json",
        "delete step-1/model.pt",
    ]


def test_restarted_agent__copies_nothing_and_uploads_what_was_left(bucket: Path, make: Make) -> None:
    (bucket / "run-1").mkdir()
    (bucket / "run-1/old").write_text("old")
    first = make()
    first.mount()
    first._stopped.set()  # as if it was killed
    assert first._thread is not None
    first._thread.join()
    write(first, "new", "new")
    (bucket / "run-1/old").write_text("changed by another")
    second = make()
    assert not second.mount(), "it is adopted"
    assert Path(second.path, "old").read_text() == "old"
    second.flush(None)
    assert (bucket / "run-1/new").read_text() == "new"
    assert (bucket / "run-1/old").read_text() == "changed by another", "it did not change here"


def test_folder_that_lost_its_content_without_an_agent__removes_nothing_from_the_bucket(
    bucket: Path, make: Make
) -> None:
    """Such as a container whose own disk began anew, beside a volume with the agent's state."""
    (bucket / "run-1").mkdir()
    for name in ("a", "b"):
        (bucket / "run-1" / name).write_text(name)
    first = make()
    first.mount()
    first._stopped.set()  # as if it was killed
    assert first._thread is not None
    first._thread.join()
    Path(first.path, "a").unlink()
    second = make()
    assert not second.mount()
    second.flush(None)
    assert sorted(os.listdir(bucket / "run-1")) == ["a", "b"], "no agent saw who removed it"
    second._stopped.set()
    assert second._thread is not None
    second._thread.join()
    Path(first.path, "b").unlink()
    third = make()
    assert third.mount(), "it is filled again"
    assert sorted(os.listdir(third.path)) == ["a", "b"]


def test_interrupted_copy__is_continued(bucket: Path, make: Make, tmp_path: Path) -> None:
    (bucket / "run-1").mkdir()
    (bucket / "run-1/a").write_text("a")
    folder = make()
    (tmp_path / "home").mkdir()
    (tmp_path / "home/synced").write_text("copying")
    write(folder, "a", "half of a")
    folder.mount()
    assert Path(folder.path, "a").read_text() == "a"


def test_unmount__removes_the_folder_only_if_the_bucket_has_all_of_it(bucket: Path, make: Make) -> None:
    folder = make()
    folder.mount()
    write(folder, "a", "a")
    folder.flush(None)
    folder.unmount()
    assert not Path(folder.path).exists()
    folder.mount()
    shutil.rmtree(bucket)
    bucket.touch()  # nothing can be uploaded any more
    write(folder, "b", "b")
    folder.unmount()
    assert Path(folder.path, "b").read_text() == "b"


def test_flush__says_what_did_not_reach_the_bucket(bucket: Path, make: Make) -> None:
    folder = make()
    folder.mount()
    shutil.rmtree(bucket)
    bucket.touch()
    write(folder, "model.pt", "weights")
    with pytest.raises(FlushError, match=r"1 files did not reach bucket ckpt: model\.pt") as failed:
        folder.flush(clock.now() + 3.0)
    assert [one.name for one in failed.value.pending[folder.path]] == ["model.pt"]


def test_one_file_that_fails__holds_up_no_other(bucket: Path, make: Make) -> None:
    (bucket / "run-1").mkdir()
    folder = make()
    folder.mount()
    (bucket / "run-1/taken").mkdir()
    (bucket / "run-1/taken/by").touch()  # a directory with the name of a file
    write(folder, "taken", "x")
    write(folder, "free", "y")
    with pytest.raises(FlushError) as failed:
        folder.flush(clock.now() + 5.0)
    assert (bucket / "run-1/free").read_text() == "y"
    assert [one.name for one in failed.value.pending[folder.path]] == ["taken"]


def test_removed_folder__removes_nothing_from_the_bucket(bucket: Path, make: Make) -> None:
    folder = make()
    folder.mount()
    write(folder, "a", "a")
    folder.flush(None)
    shutil.rmtree(folder.path)
    assert folder.is_lost()
    with folder._lock:
        assert folder._sync(final=True) == "the folder was removed"
    assert (bucket / "run-1/a").exists()
    folder.mount()
    assert Path(folder.path, "a").read_text() == "a"


def test_missing_bucket__is_named(bucket: Path, make: Make) -> None:
    bucket.rmdir()
    with pytest.raises(MountError, match=r"copying bucket ckpt to .*directory not found"):
        make().mount()


def test_read_only_folder__uploads_nothing(bucket: Path, make: Make) -> None:
    folder = make(read_only=True)
    folder.mount()
    write(folder, "a", "a")
    folder.flush(None)
    assert not (bucket / "run-1").exists()


def test_checkpoint__is_durable_once_the_bucket_has_all_of_it(bucket: Path, make: Make) -> None:
    folder = make()
    folder.mount()
    with folder._lock:
        part, manifest = write(folder, "step-1/part", "p"), write(folder, ".perdure/m-1.json", "{}")
        version = FileVersion.from_stat(part.stat())
        committed = CommittedCheckpoint(path=str(manifest), step=1, files=(str(part),), versions=(version,))
        pending = PendingCheckpoint(committed, folder.as_bucket_mount())
        assert pending.poll() is Upload.PENDING, "the files are here, but not in the bucket"
    folder.flush(None)
    assert pending.poll() is Upload.DONE


def test_checkpoint__that_is_removed_before_it_is_durable_is_given_up(make: Make) -> None:
    folder = make()
    folder.mount()
    with folder._lock:
        part, manifest = write(folder, "step-1/part", "p"), write(folder, ".perdure/m-1.json", "{}")
        version = FileVersion.from_stat(part.stat())
        committed = CommittedCheckpoint(path=str(manifest), step=1, files=(str(part),), versions=(version,))
        pending = PendingCheckpoint(committed, folder.as_bucket_mount())
        manifest.unlink()
        assert pending.poll() is Upload.REMOVED


@pytest.mark.parametrize(("mode", "is_shared"), [("MOUNT", False), ("MOUNT_CACHED", True)])
def test_bucket_of_a_cloud__is_a_folder_for_cached_mounts_of_one_node_only(
    tmp_path: Path, spec: dict[str, Any], monkeypatch: pytest.MonkeyPatch, mode: str, is_shared: bool
) -> None:
    monkeypatch.setenv("PERDURE_NO_FUSE", "1")
    row = {**spec, "mode": mode, "rclone": {"type": "s3"}}
    mounts = Mounts([row], state_dir=tmp_path / "state", rclone=RCLONE, log=lambda _line: None, is_shared=is_shared)
    with pytest.raises(MountError, match="PERDURE_NO_FUSE is set"):
        mounts.mount_all()


def test_deadline_of_a_spot_node__leaves_no_torn_checkpoint(
    bucket: Path, spec: dict[str, Any], make: Make, tmp_path: Path
) -> None:
    """The store takes 300 KB/s, and the node has a second: the next node loads the last step that is whole."""
    slow = tmp_path / "rclone"
    slow.write_text(f'#!/bin/sh\nexec {RCLONE} "$@" --bwlimit 300k --buffer-size 0\n')
    slow.chmod(0o755)
    folder = make(slow)
    folder.mount()

    @save_checkpoint(save_dir=folder.path)
    def save(step: int, size: int) -> None:
        Path(folder.path, f"model_{step}.pt").write_bytes(os.urandom(size))

    folder._stopped.set()  # its thread would go on with the upload after the deadline
    assert folder._thread is not None
    folder._thread.join()
    folder._stopped.clear()
    save(1, 1000)
    folder.flush(None)
    save(2, 3_000_000)
    with pytest.raises(FlushError):
        folder.flush(clock.now() + 1.0)
    folder._stopped.set()  # the node is gone
    folder._rclone.end()
    assert folder._thread is not None
    folder._thread.join()
    following = SyncedFolder(
        {**spec, "path": str(tmp_path / "next")}, home=tmp_path / "home-2", binary=RCLONE, reason="", log=print
    )
    with folder._lock:
        following.mount()
    assert latest(following.path) == 1
    more_time = make()
    more_time.mount()
    more_time.flush(None)
    following.unmount()
    following.mount()
    assert latest(following.path) == 2, "with more time it is whole"
    following.unmount()


def test_library__knows_what_the_bucket_has(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make()
    folder.mount()
    row = {"path": folder.path, "mode": "MOUNT_CACHED", "cache_dir": str(folder.cache.directory), "rc_socket": None}
    (tmp_path / "mounts.json").write_text(json.dumps([row | {"source": folder.source}]))
    monkeypatch.setenv("PERDURE_RUN_DIR", str(tmp_path))
    with folder._lock:
        path = write(folder, "run/model.pt", "weights")
        version = {str(path): FileVersion.from_stat(path.stat())}
        assert is_durable([str(path)]) is False, "it is here, but not in the bucket"
        assert is_durable(version) is False
    folder.flush(None)
    assert is_durable([str(path)]) is True
    assert is_durable(version) is True
    with folder._lock:
        path.write_text("others!")
        os.utime(path, ns=(path.stat().st_mtime_ns + 10**9,) * 2)
        assert is_durable({str(path): FileVersion.from_stat(path.stat())}) is False, "an older content was uploaded"
    shutil.rmtree(folder.path)
    with pytest.raises(CheckpointUnavailable, match="nothing is mounted there"):
        latest(folder.path)


def test_records__use_the_form_of_rclone(make: Make) -> None:
    folder = make()
    folder.mount()
    path = write(folder, "a", "abc")
    folder.flush(None)
    record = folder.cache.find_record("a")
    assert record is not None
    assert (record.is_uploaded, record.size, record.mtime_ns) == (True, 3, path.stat().st_mtime_ns)
