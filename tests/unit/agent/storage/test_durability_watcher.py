"""When a checkpoint is journaled as durable. rclone's records and the journal are real files; uploads are simulated."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from perdure.agent.storage import durability_watcher
from perdure.agent.storage.checkpoint_journal import CheckpointJournal
from perdure.agent.storage.durability_watcher import BucketMount, DurabilityWatcher, PendingCheckpoint
from perdure.agent.storage.vfs_cache import UploadState, VfsCache
from perdure.checkpoint.durability import journal, mount_table
from perdure.checkpoint.durability.file_version import FileVersion
from support.helpers.timing import scaled, wait_until
from unit.agent.storage.cached_bucket import CachedBucket, durable_steps


def test_poll__needs_every_file_and_the_manifest(path: Path, bucket: CachedBucket, watcher: DurabilityWatcher) -> None:
    bucket.commit(1, "1/a.pt", "1/b.pt")
    for name in ("1/a.pt", ".perdure/1.json", "1/b.pt"):
        watcher.poll()
        assert durable_steps(path) == []
        bucket.upload(name)
    watcher.poll()
    watcher.poll()
    assert durable_steps(path) == [1]


def test_poll__sees_steps_in_the_order_of_their_uploads(
    path: Path, bucket: CachedBucket, watcher: DurabilityWatcher
) -> None:
    bucket.commit(1, "1.pt")
    bucket.commit(2, "2.pt")
    bucket.upload("2.pt", ".perdure/2.json", "1.pt")
    watcher.poll()
    assert durable_steps(path) == [2]
    bucket.upload(".perdure/1.json")
    watcher.poll()
    assert durable_steps(path) == [2, 1]


def test_poll__takes_a_half_written_record_for_a_pending_upload(
    path: Path, bucket: CachedBucket, watcher: DurabilityWatcher
) -> None:
    bucket.commit(1, "1.pt")
    bucket.upload(".perdure/1.json")
    bucket.tear_record("1.pt")
    watcher.poll()
    assert durable_steps(path) == []


def test_poll__counts_evicted_files_as_uploaded(path: Path, bucket: CachedBucket, watcher: DurabilityWatcher) -> None:
    bucket.commit(1, "1.pt")
    bucket.evict("1.pt")
    bucket.evict(".perdure/1.json")
    watcher.poll()
    assert durable_steps(path) == [1]


def test_poll__forgets_a_checkpoint_that_was_removed(
    path: Path, bucket: CachedBucket, watcher: DurabilityWatcher
) -> None:
    bucket.commit(1, "1.pt")
    bucket.remove("1.pt")
    bucket.remove(".perdure/1.json")
    watcher.poll()
    assert durable_steps(path) == []
    assert watcher._pending == {}


def test_poll__keeps_waiting_while_the_mount_is_lost(
    path: Path, bucket: CachedBucket, watcher: DurabilityWatcher
) -> None:
    bucket.commit(1, "1.pt")
    bucket.evict("1.pt")
    manifest, aside = bucket.path / ".perdure", bucket.path.parent / "aside"
    bucket.evict(".perdure/1.json")
    manifest.rename(aside)
    bucket.lost = True
    watcher.poll()
    assert durable_steps(path) == []
    aside.rename(manifest)
    bucket.lost = False
    watcher.poll()
    assert durable_steps(path) == [1]


def test_poll__claims_nothing_where_the_cache_keeps_no_records(
    tmp_path: Path, path: Path, bucket: CachedBucket
) -> None:
    elsewhere = BucketMount((str(bucket.path),), VfsCache(tmp_path / "other-cache", "bucket"), lambda: False)
    bucket.commit(1, "1.pt")
    DurabilityWatcher(CheckpointJournal(path), lambda: [elsewhere]).poll()
    assert durable_steps(path) == []


def test_poll__is_durable_at_once_without_write_back(path: Path, bucket: CachedBucket) -> None:
    bucket.commit(1, "1.pt")
    uncached = BucketMount((str(bucket.path),), None, lambda: False)
    DurabilityWatcher(CheckpointJournal(path), lambda: [uncached]).poll()
    assert durable_steps(path) == [1]


def test_poll__ignores_checkpoints_on_the_machines_own_disk(path: Path, bucket: CachedBucket) -> None:
    bucket.commit(1, "1.pt")
    watcher = DurabilityWatcher(CheckpointJournal(path), lambda: [])
    watcher.poll()
    assert durable_steps(path) == []
    assert watcher._pending == {}


def test_poll__finds_the_mount_through_a_symbolic_link(
    tmp_path: Path, path: Path, bucket: CachedBucket, watcher: DurabilityWatcher
) -> None:
    (tmp_path / "link").symlink_to(bucket.path)
    bucket.write("1.pt")
    journal.record(1, journal.COMMITTED, str(tmp_path / "link" / "1.pt"))
    watcher.poll()
    assert durable_steps(path) == []
    bucket.upload("1.pt")
    watcher.poll()
    assert durable_steps(path) == [1]


def test_poll__watches_a_mount_that_the_user_made(
    tmp_path: Path, path: Path, bucket: CachedBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = mount_table.MountEntry(str(bucket.path), "fuse.rclone", "perdure{h4sh}:bucket/prefix")
    server = mount_table.RcloneServer(cache_dir=str(tmp_path / "cache"), rc_socket=None)
    monkeypatch.setattr(mount_table, "find_mount_entry", lambda _path, _table: entry)
    monkeypatch.setattr(mount_table, "find_server", lambda _entry: server)
    watcher = DurabilityWatcher(CheckpointJournal(path), lambda: [])
    bucket.commit(1, "1.pt")
    watcher.poll()
    assert durable_steps(path) == []
    bucket.upload("1.pt", ".perdure/1.json")
    watcher.poll()
    assert durable_steps(path) == [1]


def test_restart__goes_on_with_what_the_journal_has(
    path: Path, bucket: CachedBucket, new_watcher: Callable[[], DurabilityWatcher]
) -> None:
    for step in (1, 2):
        bucket.commit(step, f"{step}.pt")
    bucket.upload("1.pt", ".perdure/1.json")
    new_watcher().poll()
    bucket.upload("2.pt", ".perdure/2.json")
    new_watcher().poll()
    new_watcher().poll()
    assert durable_steps(path) == [1, 2]


def test_poll__tries_again_when_the_disk_was_full(
    path: Path, bucket: CachedBucket, watcher: DurabilityWatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    bucket.commit(1, "1.pt")
    bucket.upload("1.pt", ".perdure/1.json")
    with monkeypatch.context() as patch:
        patch.setattr(CheckpointJournal, "append_durable", full)
        watcher.poll()
    assert durable_steps(path) == []
    watcher.poll()
    assert durable_steps(path) == [1]


def test_poll__forgets_a_removed_checkpoint_whose_file_it_waited_for(
    path: Path, bucket: CachedBucket, watcher: DurabilityWatcher
) -> None:
    bucket.commit(1, "1.pt")
    bucket.upload(".perdure/1.json")
    watcher.poll()
    bucket.remove("1.pt")
    bucket.remove(".perdure/1.json")
    watcher.poll()
    assert watcher._pending == {}


@pytest.mark.parametrize("remote", ["crypt", "crypt:"])
def test_poll__watches_a_mount_of_a_remotes_root(
    tmp_path: Path, path: Path, bucket: CachedBucket, monkeypatch: pytest.MonkeyPatch, remote: str
) -> None:
    records = tmp_path / "cache" / "vfsMeta" / "crypt"
    entry = mount_table.MountEntry(str(bucket.path), "fuse.rclone", remote)
    server = mount_table.RcloneServer(cache_dir=str(tmp_path / "cache"), rc_socket=None)
    monkeypatch.setattr(mount_table, "find_mount_entry", lambda _path, _table: entry)
    monkeypatch.setattr(mount_table, "find_server", lambda _entry: server)
    watcher = DurabilityWatcher(CheckpointJournal(path), lambda: [])
    bucket.commit(1, "1.pt")
    bucket._records.rename(records)
    bucket._records = records
    watcher.poll()
    assert durable_steps(path) == []
    bucket.upload("1.pt", ".perdure/1.json")
    watcher.poll()
    assert durable_steps(path) == ([1] if remote == "crypt:" else []), "without a colon the remote's name is not known"


def test_poll__looks_up_a_mount_again_that_was_missing(path: Path, bucket: CachedBucket) -> None:
    mounts: list[BucketMount] = []
    watcher = DurabilityWatcher(CheckpointJournal(path), lambda: mounts)
    bucket.commit(1, "1.pt")
    bucket.upload("1.pt", ".perdure/1.json")
    watcher.poll()
    mounts.append(bucket.mount)
    watcher.poll()
    assert durable_steps(path) == []
    watcher.mounts_changed()
    watcher.poll()
    assert durable_steps(path) == [1]


def test_poll__remembers_a_bounded_number_of_checkpoints_on_no_mount(
    bucket: CachedBucket, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durability_watcher, "MAX_UNMOUNTED", 3)
    watcher = DurabilityWatcher(CheckpointJournal(path), lambda: [])
    for step in range(5):
        bucket.commit(step)
    watcher.poll()
    assert [checkpoint.step for checkpoint in watcher._unmounted.values()] == [2, 3, 4]


def test_poll__gives_each_checkpoint_of_a_backlog_its_turn(
    path: Path, bucket: CachedBucket, watcher: DurabilityWatcher
) -> None:
    """A poll without CPU time looks at one checkpoint alone."""
    for step in (1, 2, 3, 4):
        bucket.commit(step)
    bucket.upload(".perdure/2.json", ".perdure/4.json")
    for _ in range(4):
        watcher._poll_for(0.0)
    assert durable_steps(path) != [2, 4]
    for _ in range(4):
        watcher._poll_for(0.0)
    assert durable_steps(path) == [2, 4]


def test_poll__compares_only_checkpoints_that_share_a_file(
    bucket: CachedBucket, watcher: DurabilityWatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A backlog of thousands would take minutes otherwise."""
    compared = []
    monkeypatch.setattr(PendingCheckpoint, "replaces", lambda new, old: compared.append((new, old)))
    for step, name in (1, "1.pt"), (2, "2.pt"), (3, "1.pt"):
        bucket.commit(step, name)
    watcher.poll()
    assert [(new.checkpoint.step, old.checkpoint.step) for new, old in compared] == [(3, 1)]


def test_thread__continues_after_a_checkpoint_that_fails(
    path: Path, bucket: CachedBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    watcher = DurabilityWatcher(CheckpointJournal(path), lambda: [bucket.mount], log=lines.append)
    upload_state = VfsCache.upload_state

    def failing(cache: VfsCache, name: str, version: FileVersion | None = None) -> UploadState:
        if name == ".perdure/1.json":
            raise RuntimeError("no such thing")
        return upload_state(cache, name, version)

    monkeypatch.setattr(VfsCache, "upload_state", failing)
    for step in (1, 2):
        bucket.commit(step)
        bucket.upload(f".perdure/{step}.json")
    watcher.start()
    try:
        wait_until(lambda: durable_steps(path) == [2])
        assert watcher._thread.is_alive()
    finally:
        watcher.stop()
    assert len(lines) == 1
    assert "no such thing" in lines[0]


def test_poll_within__ends_although_a_mount_hangs(bucket: CachedBucket, path: Path) -> None:
    released = threading.Event()

    def hanging() -> list[BucketMount]:
        released.wait()
        return [bucket.mount]

    watcher = DurabilityWatcher(CheckpointJournal(path), hanging)
    bucket.commit(1)
    bucket.upload(".perdure/1.json")
    try:
        assert not watcher.poll_within(0.05)
        assert not watcher.poll_within(0.05), "another poll holds the lock"
    finally:
        released.set()
    wait_until(lambda: durable_steps(path) == [1])
    assert watcher.poll_within(scaled(20))


class CountedPolls:
    """Counts the polls of a watcher's thread."""

    def __init__(self, watcher: DurabilityWatcher, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.changed = threading.Condition()
        poll = watcher._poll_for

        def counted(cpu_s: float) -> float:
            spent_s = poll(cpu_s)
            with self.changed:
                self.count += 1
                self.changed.notify_all()
            return spent_s

        monkeypatch.setattr(watcher, "_poll_for", counted)

    def wait_for(self, count: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.count >= count, 20)


def test_thread__polls_only_while_an_upload_is_pending(
    path: Path, bucket: CachedBucket, watcher: DurabilityWatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durability_watcher, "POLL_S", 0.01)
    polls = CountedPolls(watcher, monkeypatch)
    watcher.start()
    polls.wait_for(1)
    with polls.changed:
        assert not polls.changed.wait_for(lambda: polls.count > 1, 0.2), "nothing is pending"
    bucket.commit(1, "1.pt")
    watcher.wake()
    polls.wait_for(5)
    bucket.upload("1.pt", ".perdure/1.json")
    deadline = time.monotonic() + scaled(20)
    while durable_steps(path) != [1]:
        assert time.monotonic() < deadline
    with polls.changed:
        seen = polls.count
        polls.changed.wait_for(lambda: False, 0.1)
        assert polls.count <= seen + 1, "nothing is pending any more"


def test_thread__polls_at_most_four_times_a_second(
    bucket: CachedBucket, watcher: DurabilityWatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket.commit(1, "1.pt")
    polls = CountedPolls(watcher, monkeypatch)
    watcher.start()
    began = time.monotonic()
    while time.monotonic() - began < 1.1:
        watcher.wake()  # however often the journal grows
        threading.Event().wait(0.01)
    assert 2 <= polls.count <= 5
