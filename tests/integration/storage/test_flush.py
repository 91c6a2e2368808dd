"""Flushing: what was written is in the bucket when `flush` returns, and is named when it does not get there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from perdure.agent.clock import now
from perdure.agent.mounts import FlushError, Mounts

pytestmark = pytest.mark.fuse


@pytest.fixture
def mounted(node: Any, bucket: Any) -> tuple[Mounts, Path]:
    """A cached mount that uploads nothing by itself."""
    spec = node.spec(bucket, options={"vfs_write_back": "1h"})
    mounts = node.mounts(spec)
    mounts.mount_all()
    return mounts, Path(spec["path"])


def test_flush_right_after_close(mounted: tuple[Mounts, Path], bucket: Any) -> None:
    mounts, path = mounted
    for number in range(10):  # the queue is still empty just after close()
        body = os.urandom(10_000)
        (path / f"{number}.pt").write_bytes(body)
        mounts.flush(None)
        assert bucket.read(f"{number}.pt") == body


def test_flush_of_many_files_renames_and_empty_markers(mounted: tuple[Mounts, Path], bucket: Any, until: Any) -> None:
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


def test_flush_with_nothing_to_do_succeeds_even_after_the_deadline(mounted: tuple[Mounts, Path]) -> None:
    mounts, _ = mounted
    mounts.flush(0.0)
    mounts.flush(None)


def test_flush_waits_for_a_file_that_is_still_open(mounted: tuple[Mounts, Path], bucket: Any) -> None:
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


def test_file_open_at_the_deadline_is_named_with_its_holder(mounted: tuple[Mounts, Path]) -> None:
    mounts, path = mounted
    with open(path / "model.pt", "wb") as file:
        file.write(b"half")
        file.flush()
        with pytest.raises(FlushError, match=rf"model\.pt \(4 B\).*still open in process {os.getpid()}") as caught:
            mounts.flush(now() + 0.2)
    assert [pending.name for pending in caught.value.pending[str(path)]] == ["model.pt"]
    mounts.flush(None)


def test_fragment_of_a_killed_writer_does_not_hold_the_flush_up(mounted: tuple[Mounts, Path]) -> None:
    mounts, path = mounted
    code = f"f = open({str(path / 'fragment')!r}, 'wb'); f.write(b'x' * 9000); f.flush(); print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        writer.kill()
    mounts.flush(now() + 20)


def test_removed_bucket_fails_before_the_deadline(mounted: tuple[Mounts, Path], bucket: Any) -> None:
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


def test_hanging_server_fails_at_the_deadline_and_succeeds_later(node: Any, s3_bucket: Any) -> None:
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


def test_one_broken_mount_does_not_keep_another_from_flushing(node: Any, local_bucket: Any, s3_bucket: Any) -> None:
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


def test_cache_of_a_lost_mount_is_flushed_while_the_path_stays_lost(
    node: Any, mounted: tuple[Mounts, Path], bucket: Any, until: Any
) -> None:
    mounts, path = mounted
    (path / "model.pt").write_bytes(b"weights")
    (pid,) = node.pids()
    os.kill(pid, signal.SIGKILL)
    until(mounts.check)
    mounts.flush(now() + 30)
    assert bucket.read("model.pt") == b"weights"
    assert mounts.check() == [str(path)]
    mounts.unmount_all()
    assert node.mountpoints() == []


def test_rclone_killed_during_the_flush_is_started_again(node: Any, s3_bucket: Any, until: Any) -> None:
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


def test_small_and_new_files_go_first(node: Any, s3_bucket: Any, until: Any) -> None:
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
        (found["Key"] for found in listing), key=lambda key: log.index(f"{key}: vfs cache: upload succeeded")
    )
    assert order == ["last", "manifest.json", "new.pt", "old.pt"]


def test_deleted_files_are_not_waited_for(mounted: tuple[Mounts, Path], bucket: Any) -> None:
    mounts, path = mounted
    (path / "model.pt").write_bytes(b"weights")
    (path / "model.pt").unlink()
    mounts.flush(now() + 20)
    assert bucket.read("model.pt") is None
