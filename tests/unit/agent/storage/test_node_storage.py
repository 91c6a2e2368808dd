"""A node's storage on a bucket of this machine, which is linked instead of mounted."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from perdure.agent.link.client import ControllerClient, ControllerRejected, Unreachable
from perdure.agent.node_spec import NodeSpec
from perdure.agent.paths import NodePaths
from perdure.agent.storage import node_storage
from perdure.agent.storage.durability_watcher import DurabilityWatcher
from perdure.agent.storage.fetch import Fetcher
from perdure.agent.storage.node_storage import HomeNotKept, NodeStorage, StorageFailed
from support.helpers.timing import wait_until
from unit.agent.storage.cached_bucket import durable_steps

NewStorage = Callable[[], NodeStorage]


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NodePaths:
    monkeypatch.setenv("PERDURE_NO_FUSE", "1")
    paths = NodePaths(tmp_path / "node")
    paths.create()
    return paths


@pytest.fixture
def bucket(tmp_path: Path) -> Path:
    """Not created yet."""
    return tmp_path / "bucket"


@pytest.fixture
def log() -> list[str]:
    return []


@pytest.fixture
def new_storage(tmp_path: Path, paths: NodePaths, bucket: Path, log: list[str]) -> Iterator[NewStorage]:
    made: list[NodeStorage] = []

    def make() -> NodeStorage:
        mount = {"path": str(tmp_path / "mnt"), "mode": "MOUNT_CACHED", "bucket": str(bucket), "prefix": ""}
        mount |= {"rclone": {"type": "local"}, "options": {}}
        spec = {"version": 1, "job_id": 1, "task_index": 0, "generation": 1, "rank": 0, "num_nodes": 1, "uploads": []}
        spec |= {"mounts": [mount], "artifacts": {}, "drain_s": 60.0, "power_off_after_s": 600.0}
        made.append(NodeStorage(NodeSpec.parse(spec), cast(Fetcher, Fake()), paths, copies_exist=True, log=log.append))
        return made[-1]

    yield make
    for one in made:
        one.unmount()


class Fake:
    """Fetches nothing."""

    def cancel(self) -> None: ...


def commit(tmp_path: Path, paths: NodePaths, step: int) -> None:
    manifest = tmp_path / "mnt" / f"{step}.json"
    manifest.write_text("{}")
    with paths.checkpoints.open("a") as journal:
        line = {"step": step, "state": "committed", "path": str(manifest), "at": 1.0}
        journal.write(json.dumps(line) + "\n")


def test_watch__reports_what_became_durable(
    tmp_path: Path, paths: NodePaths, bucket: Path, new_storage: NewStorage
) -> None:
    bucket.mkdir()
    storage = new_storage()
    storage.prepare(with_files=False)
    storage.watch(lambda _mounts, _lost: None)
    commit(tmp_path, paths, 1)
    storage.checkpoints_changed()
    wait_until(lambda: durable_steps(paths.checkpoints) == [1])


def test_watch__after_a_failed_mount_reports_once_it_is_there(
    tmp_path: Path, paths: NodePaths, bucket: Path, new_storage: NewStorage
) -> None:
    """A restarted agent could not mount; the flush at the end does."""
    bucket.mkdir()
    new_storage().prepare(with_files=False)
    commit(tmp_path, paths, 1)
    aside = bucket.rename(tmp_path / "aside")
    restarted = new_storage()
    with pytest.raises(StorageFailed):
        restarted.prepare(with_files=False)
    restarted.watch(lambda _mounts, _lost: None)
    wait_until(lambda: restarted._durability._pending)
    aside.rename(bucket)
    restarted.flush(None)
    assert durable_steps(paths.checkpoints) == [1]


def test_flush__failure_is_reported_although_the_last_poll_fails(
    new_storage: NewStorage, log: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_storage, "LAST_POLL_TIMEOUT_S", 0.01)
    monkeypatch.setattr(DurabilityWatcher, "poll_within", lambda _watcher, timeout_s: timeout_s > 0.01)
    storage = new_storage()
    with pytest.raises(StorageFailed, match="there is no bucket"):
        storage.flush(None)
    assert storage._durability._stopped.is_set()
    assert "a mount hangs" in log[0]


class FakeHome:
    """Keeps no home."""

    def record_baseline(self) -> None: ...

    def restore(self, _mount: Any, /) -> int:
        return 0

    def save(self, _mount: Any, /) -> int:
        return 7


class Fetches(Fake):
    """Counts how often the files were fetched."""

    count = 0

    def fetch_files(self, _spec: NodeSpec) -> None:
        self.count += 1

    def renewed(self) -> Fetches:
        return self


def test_files__on_a_disk_that_was_kept_are_the_users(tmp_path: Path, paths: NodePaths, bucket: Path) -> None:
    bucket.mkdir()
    (bucket / "data.txt").write_text("from the bucket")
    mount = {"path": str(tmp_path / "copy"), "mode": "COPY", "bucket": str(bucket), "prefix": "", "options": {}}
    spec = {"version": 1, "job_id": 1, "task_index": 0, "generation": 1, "rank": 0, "num_nodes": 1, "host": True}
    spec |= {"mounts": [{**mount, "rclone": {"type": "local"}}]}
    fetcher = Fetches()
    paths.begin_attempt("first")
    for token in ("first", "second"):
        paths.begin_attempt(token)
        storage = NodeStorage(
            NodeSpec.parse(spec), cast(Fetcher, fetcher), paths, copies_exist=False, home=lambda _rclone: FakeHome()
        )
        storage.prepare(with_files=True)
        (tmp_path / "copy" / "data.txt").write_text("changed by the user")
        storage.unmount()
    assert fetcher.count == 1
    assert (tmp_path / "copy" / "data.txt").read_text() == "changed by the user"
    storage.rescue_home({})
    assert "saved 7 files" in paths.log.read_text()


class Tools:
    """A controller that serves rclone, or is gone."""

    def __init__(self, error: Exception | None) -> None:
        self.error = error

    def download(self, _kind: str, _digest: str, path: Path) -> None:
        if self.error is not None:
            raise self.error
        path.write_text("#!/bin/sh\n")


class NeedsRclone(FakeHome):
    def __init__(self, rclone: Callable[[], Path | None]) -> None:
        self.rclone = rclone

    def save(self, _mount: Any, /) -> int:
        assert self.rclone() is not None
        return 7


def rescue(paths: NodePaths, controller: Tools) -> None:
    """The home of a node without mounts whose end has cancelled everything."""
    spec = {"version": 1, "job_id": 1, "task_index": 0, "generation": 1, "rank": 0, "num_nodes": 1, "host": True}
    spec |= {"mounts": [], "artifacts": {"rclone": "0" * 64}}
    client = cast(ControllerClient, controller)
    fetcher = Fetcher(client, paths.root, artifacts_dir=None, environ={}, log=lambda _line: None)
    storage = NodeStorage(NodeSpec.parse(spec), fetcher, paths, copies_exist=False, home=NeedsRclone)
    storage.cancel_prepare()
    storage.unmount()
    storage.rescue_home({})


def test_rescue__fetches_rclone_after_the_end(paths: NodePaths) -> None:
    rescue(paths, Tools(None))
    assert "saved 7 files" in paths.log.read_text()


def test_rescue__says_that_there_is_no_rclone(paths: NodePaths, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(HomeNotKept, match="no rclone on this node: fetching artifacts"):
        rescue(paths, Tools(ControllerRejected("not found")))
    monkeypatch.setattr(node_storage, "STORE_TIMEOUT_S", 0.05)
    with pytest.raises(HomeNotKept, match="the controller did not answer"):
        rescue(paths, Tools(Unreachable("refused")))
