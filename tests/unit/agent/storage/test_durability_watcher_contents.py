"""Only the content that was committed makes a checkpoint durable, not another one under the same name."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from perdure.agent.storage import durability_watcher
from perdure.agent.storage.durability_watcher import DurabilityWatcher
from perdure.checkpoint.durability import journal
from perdure.checkpoint.durability.file_version import FileVersion
from unit.agent.storage.cached_bucket import CachedBucket, durable_steps


def test_poll__takes_no_upload_for_one_of_a_file_written_again(
    path: Path, bucket: CachedBucket, watcher: DurabilityWatcher
) -> None:
    bucket.commit(1, "latest.pt", "1.pt")
    bucket.upload("latest.pt")
    watcher.poll()
    bucket.write("latest.pt")  # by the save of step 2, which is under way
    bucket.upload("1.pt", ".perdure/1.json")
    watcher.poll()
    assert durable_steps(path) == []


def test_poll__takes_no_older_object_for_the_part_of_another_node(
    path: Path, bucket: CachedBucket, watcher: DurabilityWatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 1 has saved again under the same name and size. Until its upload, this node sees the object before it."""
    monkeypatch.setattr(durability_watcher, "MOUNT_POLL_S", 0.0)
    part = bucket.path / "rank-1.bin"
    part.write_bytes(b"weights")
    committed = part.stat().st_mtime_ns
    bucket.commit_written(1, "rank-1.bin")
    bucket.upload(".perdure/1.json")
    os.utime(part, ns=(committed, committed - 5_000_000_000))
    watcher.poll()
    assert durable_steps(path) == []
    bucket.download("rank-1.bin")  # a load on this node reads what the bucket has
    watcher.poll()
    assert durable_steps(path) == []
    os.utime(part, ns=(committed, committed))
    watcher.poll()
    assert durable_steps(path) == [1]


def test_poll__takes_no_later_upload_for_the_committed_content(
    path: Path, bucket: CachedBucket, watcher: DurabilityWatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Step 2 overwrites model.pt, which is uploaded, before step 1's other file is; step 2 is not committed yet."""
    monkeypatch.setattr(durability_watcher, "MOUNT_POLL_S", 0.0)
    bucket.commit(1, "model.pt", "optimizer.pt")
    bucket.upload(".perdure/1.json")
    bucket.write("model.pt")
    bucket.upload("model.pt", "optimizer.pt")
    watcher.poll()
    assert durable_steps(path) == []
    bucket.evict("model.pt")
    watcher.poll()
    assert durable_steps(path) == []


def test_poll__forgets_a_checkpoint_that_a_later_one_has_overwritten(
    path: Path, bucket: CachedBucket, watcher: DurabilityWatcher
) -> None:
    bucket.commit(1, "model.pt")
    bucket.commit(2, "model.pt")
    watcher.poll()
    assert [pending.checkpoint.step for pending in watcher._pending.values()] == [2]
    bucket.upload("model.pt", ".perdure/1.json", ".perdure/2.json")
    watcher.poll()
    assert durable_steps(path) == [2]


def test_poll__counts_a_file_that_two_checkpoints_share(
    path: Path, bucket: CachedBucket, watcher: DurabilityWatcher
) -> None:
    bucket.commit(1, "data.pt")
    bucket.commit_written(2, "data.pt")
    bucket.upload("data.pt", ".perdure/1.json", ".perdure/2.json")
    watcher.poll()
    assert sorted(durable_steps(path)) == [1, 2]


def test_poll__claims_nothing_of_reused_names_without_their_versions(
    path: Path, bucket: CachedBucket, watcher: DurabilityWatcher
) -> None:
    """As older libraries write it. The names of a Checkpointer's parts are never used twice."""
    part = "checkpoint-000000000002-0of1-aabbccdd.safetensors"
    for step, name in (1, "model.pt"), (2, part):
        bucket.write(name)
        bucket.write(f".perdure/{step}.json")
        bucket.upload(name, f".perdure/{step}.json")
        line = {"step": step, "state": "committed", "path": str(bucket.path / f".perdure/{step}.json"), "at": 1.0}
        with path.open("a") as file:
            file.write(json.dumps({**line, "directory": str(bucket.path), "files": [name]}) + "\n")
    watcher.poll()
    assert durable_steps(path) == [2]


@pytest.mark.parametrize("name", ["a\u201bb.bin", "a\u2424b.bin", "a\u2400", "folder\u240a/a", "a\nb"])
def test_poll__claims_nothing_of_a_file_whose_record_may_have_another_name(
    path: Path, bucket: CachedBucket, watcher: DurabilityWatcher, name: str
) -> None:
    bucket.commit(1, name)
    bucket.upload(".perdure/1.json")
    bucket.evict(name)  # rclone has its record under another name
    watcher.poll()
    assert durable_steps(path) == []


def test_poll__claims_nothing_of_a_file_outside_the_mount(
    tmp_path: Path, path: Path, bucket: CachedBucket, watcher: DurabilityWatcher
) -> None:
    outside = tmp_path / "outside.pt"
    outside.write_text(json.dumps({"Dirty": False, "Fingerprint": "x"}))
    bucket.write(".perdure/1.json")
    bucket.upload(".perdure/1.json")
    files = {"../outside.pt": FileVersion.from_stat(outside.stat())}
    manifest = str(bucket.path / ".perdure" / "1.json")
    journal.record(1, journal.COMMITTED, manifest, directory=str(bucket.path), files=files)
    watcher.poll()
    assert durable_steps(path) == []


def test_poll__looks_through_the_mount_once_a_second(
    bucket: CachedBucket, watcher: DurabilityWatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket.commit(1, "1.pt")
    bucket.evict("1.pt")
    bucket.upload(".perdure/1.json")
    os.utime(bucket.path / "1.pt", ns=(0, 0))  # another object
    stat, seen = os.stat, []

    def counting(target: str, **options: bool) -> os.stat_result:
        seen.append(str(target))
        return stat(target, **options)

    monkeypatch.setattr(os, "stat", counting)
    monkeypatch.setattr(durability_watcher, "MOUNT_POLL_S", 3600.0)
    for _ in range(5):
        watcher.poll()
    assert seen.count(str(bucket.path / "1.pt")) == 1
