"""Flushing: when `flush` returns, everything written is in the bucket, or the missing files are named."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from integration.storage.buckets import SLOW_BUT_ON_S3, Bucket, LocalBucket, S3Bucket
from integration.storage.conditions import Until
from integration.storage.node import Node
from perdure.agent.clock import now
from perdure.agent.storage import flush
from perdure.agent.storage.mounts import FlushError, Mounts
from support.helpers.timing import scaled

pytestmark = pytest.mark.fuse


@pytest.fixture
def mounted(node: Node, bucket: Bucket) -> tuple[Mounts, Path]:
    """A cached mount that uploads nothing on its own."""
    spec = node.spec(bucket, options={"vfs_write_back": "1h"})
    mounts = node.mounts(spec)
    mounts.mount_all()
    return mounts, Path(spec["path"])


def test_flush__right_after_close(mounted: tuple[Mounts, Path], bucket: Bucket) -> None:
    mounts, path = mounted
    for number in range(10):  # the queue is still empty just after close()
        body = os.urandom(10_000)
        (path / f"{number}.pt").write_bytes(body)
        mounts.flush(None)
        assert bucket.read(f"{number}.pt") == body


def test_flush__of_many_files_renames_and_empty_markers(
    mounted: tuple[Mounts, Path], bucket: Bucket, until: Until
) -> None:
    mounts, path = mounted
    bodies = {}
    for step in range(5):
        (path / f"step-{step}").mkdir()
        for shard in range(4):
            name = f"step-{step}/shard {shard} é.bin"
            bodies[name] = os.urandom(2_000_000 if shard == 0 else 20_000)
            (path / f"step-{step}" / "tmp").write_bytes(bodies[name])
            os.replace(path / f"step-{step}" / "tmp", path / name)
        (path / f"step-{step}/_SUCCESS").touch()
        bodies[f"step-{step}/_SUCCESS"] = b""
    until(lambda: mounts.snapshot()[0]["pending"] == 25)
    mounts.flush(now() + 60)
    assert mounts.snapshot()[0]["pending"] == 0
    assert {name: bucket.read(name) for name in bodies} == bodies
    assert bucket.read("step-0/tmp") is None


def test_flush__with_nothing_to_do_succeeds_after_the_deadline(mounted: tuple[Mounts, Path]) -> None:
    mounts, _ = mounted
    mounts.flush(0.0)
    mounts.flush(None)


def test_flush__waits_for_an_open_file(mounted: tuple[Mounts, Path], bucket: Bucket) -> None:
    mounts, path = mounted
    file = open(path / "model.pt", "wb")  # noqa: SIM115
    file.write(b"first half, ")
    file.flush()
    closed = threading.Event()

    def close_it() -> None:
        file.write(b"second half")
        file.close()
        closed.set()

    closer = threading.Timer(0.3, close_it)
    closer.start()
    mounts.flush(None)
    assert closed.is_set()
    closer.join()
    assert bucket.read("model.pt") == b"first half, second half"


def test_flush__names_a_file_open_at_the_deadline_and_its_process(mounted: tuple[Mounts, Path]) -> None:
    mounts, path = mounted
    with open(path / "model.pt", "wb") as file:
        file.write(b"half")
        file.flush()
        with pytest.raises(FlushError, match=rf"model\.pt \(4 B\).*still open in process {os.getpid()}") as caught:
            mounts.flush(now() + 0.2)
    assert [pending.name for pending in caught.value.pending[str(path)]] == ["model.pt"]
    mounts.flush(None)


def test_flush__ignores_the_fragment_of_a_killed_writer(mounted: tuple[Mounts, Path]) -> None:
    mounts, path = mounted
    code = f"f = open({str(path / 'fragment')!r}, 'wb'); f.write(b'x' * 9000); f.flush(); print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        writer.kill()
    mounts.flush(now() + 20)


def test_flush__to_a_removed_bucket_fails_before_the_deadline(mounted: tuple[Mounts, Path], bucket: Bucket) -> None:
    mounts, path = mounted
    (path / "model.pt").write_bytes(b"weights")
    bucket.remove()
    started = now()
    with pytest.raises(
        FlushError,
        match=r"(?s)1 file, 7 B did not reach bucket .*model\.pt.*(NoSuchBucket|removed|Error 404|ContainerNotFound)",
    ):
        mounts.flush(started + 60)
    assert now() - started < 20


def test_flush__to_a_hanging_server_fails_at_the_deadline_and_succeeds_later(node: Node, s3_bucket: S3Bucket) -> None:
    spec = node.spec(s3_bucket)
    mounts = node.mounts(spec)
    mounts.mount_all()
    path = Path(spec["path"])
    body = os.urandom(1_500_000)
    with open(path / "model.pt", "wb") as file:
        file.write(body)
        s3_bucket.server.pause()  # not before open(), which lists the bucket and would hang with it
    deadline = now() + 1
    with pytest.raises(FlushError, match=r"model\.pt \(1\.4 MiB\): not by the deadline") as caught:
        mounts.flush(deadline)
    assert deadline <= now() < deadline + 10
    assert caught.value.pending[str(path)][0].size == len(body)
    s3_bucket.server.resume()
    mounts.flush(now() + 60)
    assert s3_bucket.read("model.pt") == body


def test_flush__continues_if_another_mount_is_broken(
    node: Node, local_bucket: LocalBucket, s3_bucket: S3Bucket
) -> None:
    broken = node.spec(s3_bucket, path=str(node.directory / "broken"), options={"vfs_write_back": "1h"})
    whole = node.spec(local_bucket, path=str(node.directory / "whole"), options={"vfs_write_back": "1h"})
    mounts = node.mounts(broken, whole)
    mounts.mount_all()
    Path(broken["path"], "a").write_bytes(b"a")
    Path(whole["path"], "b").write_bytes(b"b")
    s3_bucket.remove()
    with pytest.raises(FlushError) as caught:
        mounts.flush(now() + 60)
    assert list(caught.value.pending) == [broken["path"]]
    assert local_bucket.read("b") == b"b"


def test_flush__of_a_lost_mounts_cache_leaves_the_path_lost(
    node: Node, mounted: tuple[Mounts, Path], bucket: Bucket, until: Until
) -> None:
    mounts, path = mounted
    (path / "model.pt").write_bytes(b"weights")
    (pid,) = node.pids()
    os.kill(pid, signal.SIGKILL)
    until(mounts.lost_paths)
    mounts.flush(now() + 30)
    assert bucket.read("model.pt") == b"weights"
    assert mounts.lost_paths() == [str(path)]
    mounts.unmount_all()
    assert node.mountpoints() == []


def test_flush__restarts_a_killed_rclone(node: Node, s3_bucket: S3Bucket, until: Until) -> None:
    spec = node.spec(s3_bucket)
    mounts = node.mounts(spec)
    mounts.mount_all()
    with open(Path(spec["path"], "model.pt"), "wb") as file:
        file.write(b"weights")
        s3_bucket.server.pause()
    failures: list[BaseException] = []

    def flush() -> None:
        try:
            mounts.flush(now() + 60)
        except BaseException as error:
            failures.append(error)

    flusher = threading.Thread(target=flush)
    flusher.start()
    (pid,) = node.pids()
    os.kill(pid, signal.SIGKILL)
    until(lambda: node.pids() not in ([], [pid]))
    s3_bucket.server.resume()
    flusher.join(60)
    assert failures == []
    assert s3_bucket.read("model.pt") == b"weights"


def test_flush__uploads_small_and_new_files_first(node: Node, s3_bucket: S3Bucket, until: Until) -> None:
    spec = node.spec(s3_bucket, options={"vfs_write_back": "1h", "transfers": 1})
    mounts = node.mounts(spec)
    mounts.mount_all()
    path = Path(spec["path"])
    sizes = {"old.pt": 2_000_000, "new.pt": 2_000_000, "manifest.json": 100, "last": 1}
    for count, (name, size) in enumerate(sizes.items(), start=1):
        (path / name).write_bytes(os.urandom(size))
        until(lambda: mounts.snapshot()[0]["pending"] == count)  # noqa: B023
    mounts.flush(None)
    listing = s3_bucket.server.client.list_objects_v2(Bucket=s3_bucket.name)["Contents"]
    log = next(node.state_dir.rglob("rclone.log")).read_text()
    order = sorted(
        (entry["Key"] for entry in listing), key=lambda key: log.index(f"{key}: vfs cache: upload succeeded")
    )
    assert order == ["last", "manifest.json", "new.pt", "old.pt"]


def test_flush__does_not_wait_for_deleted_files(mounted: tuple[Mounts, Path], bucket: Bucket) -> None:
    mounts, path = mounted
    (path / "model.pt").write_bytes(b"weights")
    (path / "model.pt").unlink()
    mounts.flush(now() + 20)
    assert bucket.read("model.pt") is None


def test_flush__of_a_frozen_rclone_fails_soon_after_the_deadline(
    mounted: tuple[Mounts, Path], node: Node, until: Until
) -> None:
    mounts, path = mounted
    (path / "model.pt").write_bytes(b"weights")
    until(lambda: mounts.snapshot()[0]["pending"] == 1)
    (pid,) = node.pids()
    os.kill(pid, signal.SIGSTOP)
    try:
        deadline = now() + 3
        with pytest.raises(FlushError, match=r"model\.pt \(7 B\): not by the deadline; rclone does not respond"):
            mounts.flush(deadline)
        assert now() - deadline < scaled(1.0)
    finally:
        os.kill(pid, signal.SIGCONT)


@SLOW_BUT_ON_S3
def test_flush__replaces_an_rclone_that_hangs(
    mounted: tuple[Mounts, Path], node: Node, bucket: Bucket, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flush, "UNRESPONSIVE_TIMEOUT_S", 1.0)
    mounts, path = mounted
    (path / "model.pt").write_bytes(b"weights")
    until(lambda: mounts.snapshot()[0]["pending"] == 1)
    (pid,) = node.pids()
    os.kill(pid, signal.SIGSTOP)
    mounts.flush(None)
    assert bucket.read("model.pt") == b"weights"
    assert pid not in node.pids()
