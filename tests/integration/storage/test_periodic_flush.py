"""Files that stay in use reach the bucket while they do, as a real rclone mounts it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from integration.storage.buckets import SLOW_BUT_ON_S3, Bucket, LocalBucket, S3Bucket
from integration.storage.conditions import Until
from integration.storage.node import Node
from perdure.agent.storage.mounts import Mounts
from perdure.agent.storage.vfs_cache import UploadState, VfsCache

pytestmark = pytest.mark.fuse

Mount = Callable[..., tuple[Mounts, Path]]

# Writes the numbers from 0 on, one after another, until it is killed.
REWRITES = """
import itertools, sys, time
for number in itertools.count():
    with open(sys.argv[1], "w") as file:
        file.write(f"{number:09d} " * 500)
    time.sleep(0.05)
"""
APPENDS = """
import itertools, sys, time
with open(sys.argv[1], "w") as file:
    for number in itertools.count():
        file.write(f"{number:09d}\\n")
        file.flush()
        time.sleep(0.02)
"""


@pytest.fixture
def mount(node: Node) -> Mount:
    def make(bucket: Bucket, *, flush_every: str = "1s", **options: str) -> tuple[Mounts, Path]:
        spec = node.spec(bucket, options={"vfs_write_back": "1s", "flush_every": flush_every, **options})
        mounts = node.mounts(spec)
        mounts.mount_all()
        mounts.start_periodic_flushes(node.lines.append)
        return mounts, Path(spec["path"])

    return make


@contextmanager
def running(program: str, path: Path) -> Iterator[None]:
    with subprocess.Popen([sys.executable, "-c", program, str(path)]) as process:
        try:
            yield
        finally:
            process.kill()


def caches(node: Node) -> list[VfsCache]:
    return [VfsCache(path.parent, "") for path in node.state_dir.rglob("vfsMeta")]


def numbers(content: bytes | None) -> list[int]:
    return [int(one) for one in (content or b"").split()]


def test_periodic_flush__of_a_file_that_is_rewritten_all_the_time(
    mount: Mount, node: Node, s3_bucket: S3Bucket, until: Until
) -> None:
    _, path = mount(s3_bucket)
    with running(REWRITES, path / "counter"):
        first = numbers(until(lambda: s3_bucket.read("counter"), timeout_s=20))
        until(lambda: (numbers(s3_bucket.read("counter")) or [0])[0] > first[0] + 20, timeout_s=20)
        (pid,) = node.pids()
        os.kill(pid, signal.SIGKILL)  # the machine is lost
    saved = numbers(s3_bucket.read("counter"))
    assert len(saved) == 500
    assert len(set(saved)) == 1


@SLOW_BUT_ON_S3
def test_periodic_flush__of_a_file_that_stays_open(mount: Mount, bucket: Bucket, until: Until) -> None:
    mounts, path = mount(bucket)
    (path / "runs").mkdir()
    with running(APPENDS, path / "runs" / "events"):
        first = len(numbers(until(lambda: bucket.read("runs/events"), timeout_s=20)))
        later = until(lambda: content if len(numbers(content := bucket.read("runs/events"))) > first else None)
        assert numbers(later[: later.rindex(b"\n")]) == list(range(later.count(b"\n")))
        assert "events" in os.listdir(path / "runs")
    mounts.stop_periodic_flushes(10)
    mounts.flush(None)
    assert bucket.read("runs/events") == (path / "runs" / "events").read_bytes()


def test_periodic_flush__makes_nothing_durable(mount: Mount, node: Node, s3_bucket: S3Bucket, until: Until) -> None:
    _, path = mount(s3_bucket)
    with open(path / "log", "wb") as file:
        file.write(b"line 1\n")
        file.flush()
        until(lambda: s3_bucket.read("log") == b"line 1\n", timeout_s=20)
        (cache,) = caches(node)
        assert [one.name.rpartition("/")[2] for one in cache.dirty_files()] == ["log"]
        file.write(b"line 2\n")
        file.flush()
        until(lambda: s3_bucket.read("log") == b"line 1\nline 2\n", timeout_s=20)
        assert (path / "log").read_bytes() == b"line 1\nline 2\n"
        file.write(b"line 3\n")
    until(lambda: s3_bucket.read("log") == b"line 1\nline 2\nline 3\n")


def test_periodic_flush__keeps_the_rest_of_an_object_that_is_appended_to(
    mount: Mount, s3_bucket: S3Bucket, until: Until
) -> None:
    old = os.urandom(3_000_000)
    s3_bucket.put("log", old)
    _, path = mount(s3_bucket)
    with open(path / "log", "ab") as file:  # the cache has a hole where the object was not read yet
        file.write(b"new")
        file.flush()
        until(lambda: s3_bucket.read("log") == old + b"new", timeout_s=20)


def test_periodic_flush__follows_removals_and_renames(mount: Mount, s3_bucket: S3Bucket, until: Until) -> None:
    _, path = mount(s3_bucket)
    with open(path / "removed", "wb") as removed, open(path / "renamed", "wb") as renamed:
        for file in (removed, renamed):
            file.write(b"content")
            file.flush()
        until(lambda: s3_bucket.read("removed") and s3_bucket.read("renamed"), timeout_s=20)
        os.unlink(path / "removed")
        os.rename(path / "renamed", path / "final")
        until(lambda: s3_bucket.read("removed") is None and s3_bucket.read("renamed") is None)
    until(lambda: s3_bucket.read("final") == b"content")
    assert sorted(os.listdir(path)) == ["final"]


def test_periodic_flush__brings_a_closed_file_forward(
    mount: Mount, node: Node, s3_bucket: S3Bucket, until: Until
) -> None:
    _, path = mount(s3_bucket, vfs_write_back="1h")
    (path / "model.pt").write_bytes(b"weights")
    until(lambda: s3_bucket.read("model.pt") == b"weights", timeout_s=20)
    (cache,) = caches(node)
    until(lambda: not cache.dirty_files() or None)  # rclone itself has uploaded it


def test_periodic_flush__leaves_temporary_files_out(mount: Mount, local_bucket: LocalBucket, until: Until) -> None:
    _, path = mount(local_bucket)
    with open(path / "model.pt.tmp", "wb") as half, open(path / ".tmp-model.pt", "wb") as other:
        for file in (half, other):
            file.write(b"half of the weights")
            file.flush()
        with open(path / "log", "wb") as log:
            for number in range(3):  # three rounds later, too
                log.write(b"%d" % number)
                log.flush()
                until(lambda: local_bucket.read("log") == b"012"[: number + 1], timeout_s=20)  # noqa: B023
        assert local_bucket.read("model.pt.tmp") is None
        assert local_bucket.read(".tmp-model.pt") is None


def test_periodic_flush__can_be_switched_off(mount: Mount, node: Node, local_bucket: LocalBucket) -> None:
    mounts, _ = mount(local_bucket, flush_every="off")
    assert mounts._periodic_flushes == []


def test_periodic_flush__reports_a_bucket_that_is_gone_once(
    mount: Mount, node: Node, s3_bucket: S3Bucket, until: Until
) -> None:
    mounts, path = mount(s3_bucket)
    with open(path / "log", "wb") as file:
        file.write(b"line\n")
        file.flush()
        s3_bucket.remove()
        until(lambda: any("cannot be uploaded now: log: " in line for line in node.lines), timeout_s=20)
    mounts.stop_periodic_flushes(10)
    assert UploadState.PENDING in {cache.upload_state(f"{s3_bucket.name}/log") for cache in caches(node)}
