"""How soon a checkpoint is journaled as durable. The library saves on a real mount, rclone uploads."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from integration.storage.buckets import SLOW_BUT_ON_S3, Bucket, LocalBucket, S3Bucket
from integration.storage.conditions import Until
from integration.storage.node import Node
from perdure.agent.link.checkpoint_stream import CheckpointStream
from perdure.agent.storage.checkpoint_journal import CheckpointJournal
from perdure.agent.storage.durability_watcher import DurabilityWatcher
from perdure.agent.storage.mounts import Mounts
from perdure.checkpoint import Checkpointer, save_checkpoint
from perdure.checkpoint.durability import journal
from perdure.checkpoint.durability.file_version import FileVersion
from perdure.controller.runtime.clock import SystemClock
from support.helpers.timing import pause

pytestmark = [pytest.mark.fuse, pytest.mark.timeout(180)]

MAX_DELAY_S = 1.0
SIZE = 2_000_000

now = SystemClock().now


class Run:
    """What a node runs for the library: mounts, the file that lists them, and the journal with its watcher."""

    def __init__(self, mounts: Mounts, run_dir: Path) -> None:
        run_dir.mkdir()
        self.path = run_dir / "checkpoints.jsonl"
        mounts.mount_all()
        (run_dir / "mounts.json").write_text(json.dumps(mounts.describe()))
        self._mounts = mounts
        self.watcher = self.new_watcher()
        self._stream = CheckpointStream(self.path, on_growth=self._wake)

    def _wake(self) -> None:
        self.watcher.wake()  # a restarted agent has another one

    def new_watcher(self) -> DurabilityWatcher:
        return DurabilityWatcher(CheckpointJournal(self.path), self._mounts.bucket_mounts)

    def start(self) -> None:
        self._stream.start()
        self.watcher.start()

    def dirty_files(self) -> int:
        """The number of files that are not in the bucket."""
        return sum(mount.cache is not None and len(mount.cache.dirty_files()) for mount in self._mounts.bucket_mounts())

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.path.read_text().splitlines()]

    def durable_at(self, step: int) -> float | None:
        """When the step was journaled as durable, in epoch seconds."""
        return next((line["at"] for line in self.lines() if (line["step"], line["state"]) == (step, "durable")), None)

    def files(self, step: int) -> list[str]:
        """The keys of the step's objects, the manifest's included."""
        line = next(line for line in self.lines() if (line["step"], line["state"]) == (step, "committed"))
        manifest = str(Path(line["path"]).relative_to(line["directory"]))
        return [*line["files"], manifest]


@pytest.fixture
def new_run(node: Node, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Run]]:
    made = []

    def make(bucket: Bucket, **changes: Any) -> Run:
        monkeypatch.setenv("PERDURE_RUN_DIR", str(node.directory / "run"))
        made.append(Run(node.mounts(node.spec(bucket, **changes)), node.directory / "run"))
        return made[-1]

    yield make
    for run in made:
        run.watcher.stop()


def state(step: int) -> dict[str, Any]:
    return {"step": step, "w": bytes([step]) * SIZE}


def test_durable__is_journaled_within_a_second_of_the_last_upload(
    node: Node, s3_bucket: S3Bucket, new_run: Callable[..., Run], until: Until
) -> None:
    run = new_run(s3_bucket, options={"vfs_write_back": "1s"})
    run.start()
    with Checkpointer(node.directory / "checkpoint") as checkpoints:
        for step in (1, 2, 3):
            checkpoints.save(step, state(step))
            checkpoints.wait()
            assert run.durable_at(step) is None, "the manifest waits for its write-back"
            keys = run.files(step)
            until(lambda: all(s3_bucket.read(key) is not None for key in keys), timeout_s=60)  # noqa: B023
            uploaded_at = now()
            durable_at = until(lambda: run.durable_at(step), timeout_s=20)  # noqa: B023
            assert durable_at - uploaded_at <= MAX_DELAY_S
    assert [line["state"] for line in run.lines()] == ["committed", "durable"] * 3


def test_durable__waits_for_a_store_that_does_not_answer(
    node: Node, s3_bucket: S3Bucket, new_run: Callable[..., Run], until: Until
) -> None:
    run = new_run(s3_bucket, options={"vfs_write_back": "1s"})
    run.start()
    with Checkpointer(node.directory / "checkpoint") as checkpoints:
        checkpoints.save(1, state(1))
        checkpoints.wait()
        checkpoints.save(2, state(2))
        checkpoints.wait()
        s3_bucket.server.pause()
        pause(2.5)
        assert run.durable_at(2) is None
        s3_bucket.server.resume()
        until(lambda: run.durable_at(2), timeout_s=90)
    assert all(s3_bucket.read(key) is not None for key in run.files(2))


def test_durable__is_journaled_by_a_restarted_agent(
    node: Node, s3_bucket: S3Bucket, new_run: Callable[..., Run], until: Until
) -> None:
    run = new_run(s3_bucket, options={"vfs_write_back": "1s"})
    run.start()
    with Checkpointer(node.directory / "checkpoint") as checkpoints:
        checkpoints.save(1, state(1))
        checkpoints.wait()
        until(lambda: run.durable_at(1), timeout_s=60)
        checkpoints.save(2, state(2))
        checkpoints.wait()
        run.watcher.stop()  # as when the agent is killed; its mounts and the workload stay
        until(lambda: all(s3_bucket.read(key) is not None for key in run.files(2)), timeout_s=60)
        assert run.durable_at(2) is None
        run.watcher = run.new_watcher()
        run.watcher.start()
        until(lambda: run.durable_at(2), timeout_s=20)
        run.watcher.poll()
    durable = [line["step"] for line in run.lines() if line["state"] == "durable"]
    assert durable == [1, 2]


def test_durable__is_journaled_when_committed_without_write_back(
    node: Node, s3_bucket: S3Bucket, new_run: Callable[..., Run], until: Until
) -> None:
    run = new_run(s3_bucket, mode="MOUNT")
    run.start()
    with Checkpointer(node.directory / "checkpoint") as checkpoints:
        checkpoints.save(1, state(1))
        checkpoints.wait()
        committed_at = now()
        assert until(lambda: run.durable_at(1), timeout_s=20) - committed_at <= MAX_DELAY_S


def test_durable__is_journaled_when_committed_on_a_linked_bucket(
    node: Node, local_bucket: LocalBucket, new_run: Callable[..., Run], until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERDURE_NO_FUSE", "1")
    run = new_run(local_bucket)
    run.start()
    with Checkpointer(node.directory / "checkpoint") as checkpoints:
        checkpoints.save(1, state(1))
        checkpoints.wait()
        committed_at = now()
        assert until(lambda: run.durable_at(1), timeout_s=20) - committed_at <= MAX_DELAY_S


@pytest.mark.slow
def test_durable__waits_for_the_new_part_of_another_node(
    tmp_path: Path, node: Node, bucket: Bucket, new_run: Callable[..., Run], until: Until
) -> None:
    """Both nodes save a step again, under the same names. The bucket still has the other node's part from before."""
    other = type(node)(tmp_path / "node" / "other", node.rclone)
    other.directory.mkdir()
    mounts = other.mounts(other.spec(bucket, options={"vfs_write_back": "1h"}))
    node.made.extend(other.made)
    mounts.mount_all()
    part = other.directory / "checkpoint" / "run" / "rank-1.bin"
    part.parent.mkdir()
    part.write_bytes(b"before")
    mounts.flush(None)

    run = new_run(bucket, options={"vfs_write_back": "100ms"})
    directory = node.directory / "checkpoint" / "run"
    assert (directory / "rank-1.bin").read_bytes() == b"before"
    part.write_bytes(b"anew !")
    version, manifest = FileVersion.from_stat(part.stat()), directory / "2.json"
    manifest.write_bytes(b"{}")
    journal.record(2, journal.COMMITTED, str(manifest), directory=str(directory), files={"rank-1.bin": version})
    run.start()
    until(lambda: bucket.read("run/2.json") is not None, timeout_s=60)
    pause(2.5)
    assert run.durable_at(2) is None
    assert bucket.read("run/rank-1.bin") == b"before"
    mounts.flush(None)
    until(lambda: run.durable_at(2), timeout_s=60)
    assert bucket.read("run/rank-1.bin") == b"anew !"


@SLOW_BUT_ON_S3
def test_durable__is_not_what_the_next_save_has_overwritten(
    node: Node, bucket: Bucket, new_run: Callable[..., Run], until: Until
) -> None:
    """Every save uses the same names, and the last one has written only one of its two files so far."""
    run = new_run(bucket, options={"vfs_write_back": "2s"})
    directory = node.directory / "checkpoint" / "run"
    directory.mkdir()

    @save_checkpoint(directory)
    def save(step: int) -> None:
        (directory / "model.pt").write_bytes(b"model %d" % step)
        if step == 2:
            until(lambda: bucket.read("run/model.pt") == b"model 2", timeout_s=60)
            until(lambda: not run.dirty_files(), timeout_s=60)
            run.watcher.poll()
            assert run.durable_at(1) is None, "the bucket has model 2 with optimizer 1"
        (directory / "optimizer.pt").write_bytes(b"optimizer %d" % step)

    for step in (0, 1, 2):
        save(step)
    run.start()
    until(lambda: run.durable_at(2), timeout_s=60)
    assert run.durable_at(1) is None


def test_durable__includes_a_log_that_has_grown_since(
    node: Node, bucket: Bucket, new_run: Callable[..., Run], until: Until
) -> None:
    run = new_run(bucket, options={"vfs_write_back": "500ms"})
    directory = node.directory / "checkpoint" / "run"
    directory.mkdir()

    @save_checkpoint(directory)
    def save(step: int) -> None:
        (directory / f"model_{step}.pt").write_bytes(b"weights")
        with (directory / "train.log").open("a") as log:
            log.write(f"step {step}\n")

    for step in (1, 2):
        save(step)
        with (directory / "train.log").open("a") as log:
            log.write("more\n")
    run.start()
    until(lambda: run.durable_at(1) and run.durable_at(2), timeout_s=60)
    assert bucket.read("run/train.log") == b"step 1\nmore\nstep 2\nmore\n"
