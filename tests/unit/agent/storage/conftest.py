"""A journal, a bucket's mount, and the watcher of both."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from perdure.agent.storage.checkpoint_journal import CheckpointJournal
from perdure.agent.storage.durability_watcher import DurabilityWatcher
from perdure.checkpoint.durability import journal
from unit.agent.storage.cached_bucket import CachedBucket


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PERDURE_RUN_DIR", str(tmp_path))
    monkeypatch.setattr(journal, "_total_steps", None)
    return tmp_path / "checkpoints.jsonl"


@pytest.fixture
def bucket(tmp_path: Path) -> CachedBucket:
    return CachedBucket(tmp_path)


@pytest.fixture
def new_watcher(path: Path, bucket: CachedBucket) -> Iterator[Callable[[], DurabilityWatcher]]:
    made = []

    def make() -> DurabilityWatcher:
        made.append(DurabilityWatcher(CheckpointJournal(path), lambda: [bucket.mount]))
        return made[-1]

    yield make
    for watcher in made:
        watcher.stop()


@pytest.fixture
def watcher(new_watcher: Callable[[], DurabilityWatcher]) -> DurabilityWatcher:
    return new_watcher()
