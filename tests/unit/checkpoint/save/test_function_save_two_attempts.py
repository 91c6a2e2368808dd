"""Two attempts that share a bucket. One of them was given up and is still alive: it may waste space, but does no
harm."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest

from perdure.checkpoint import Checkpointer
from perdure.checkpoint.durability import status
from perdure.checkpoint.format import manifest
from perdure.checkpoint.load import directory_cache
from unit.checkpoint.training_program import CommittedSteps

T = TypeVar("T")


class Attempt:
    """One attempt's program: its generation and its caches, which are installed whenever it does something."""

    def __init__(self, generation: int, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.generation, self._monkeypatch, self._caches = generation, monkeypatch, dict[str, Any]()
        self._checkpointer = self._as_itself(lambda: Checkpointer(root, keep=1))

    def _as_itself(self, work: Callable[[], T]) -> T:
        with self._monkeypatch.context() as patch:
            patch.setenv("PERDURE_GENERATION", str(self.generation))
            patch.setattr(directory_cache, "_caches", self._caches)
            return work()

    def save(self, step: int) -> None:
        def work() -> None:
            self._checkpointer.save(step, {"by": self.generation, "w": np.full(1000, step)})
            self._checkpointer.wait()

        self._as_itself(work)

    def load(self) -> tuple[int | None, int]:
        """(step, generation that saved it)"""

        def work() -> tuple[int | None, int]:
            state = self._checkpointer.load()
            assert self._checkpointer.last_result is not None
            return self._checkpointer.last_result.step, state["by"]

        return self._as_itself(work)


@pytest.fixture
def attempts(save_dir: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Attempt, Attempt]:
    """The attempt that was given up, and the current one."""
    return Attempt(1, save_dir, monkeypatch), Attempt(2, save_dir, monkeypatch)


def parts(save_dir: Path) -> list[str]:
    return sorted(path.name.rpartition("-")[0] for path in save_dir.glob("*.safetensors"))


def test_two_attempts__later_one_wins_the_same_step(
    save_dir: Path, attempts: tuple[Attempt, Attempt], committed: CommittedSteps
) -> None:
    given_up, now = attempts
    given_up.save(10)
    now.save(10)
    assert now.load() == (10, 2)
    assert committed(save_dir) == [10]
    assert len(parts(save_dir)) == 1  # the older one went with its file
    given_up.save(10)  # by its clock the newer one
    assert now.load() == (10, 2)
    assert given_up.load() == (10, 2)


def test_two_attempts__one_behind_removes_nothing_of_the_other(
    save_dir: Path, attempts: tuple[Attempt, Attempt], committed: CommittedSteps
) -> None:
    given_up, now = attempts
    given_up.save(100)
    now.load()
    now.save(200)
    for step in (110, 120, 130):
        given_up.save(step)
        assert now.load() == (200, 2)
    assert committed(save_dir) == [200, 130]
    now.save(210)
    assert committed(save_dir) == [210]
    assert parts(save_dir) == ["checkpoint-000000000210-0of1"]


def test_two_attempts__one_ahead_leaves_a_whole_newest_step(
    save_dir: Path, attempts: tuple[Attempt, Attempt], committed: CommittedSteps
) -> None:
    given_up, now = attempts
    given_up.save(100)
    now.load()
    for step in (110, 120):
        given_up.save(step + 50)
        now.save(step)
        assert committed(save_dir) == [step + 50, step]
        assert now.load() == (step + 50, 1)


def test_two_attempts__save_not_in_the_bucket_replaces_nothing(
    save_dir: Path, attempts: tuple[Attempt, Attempt], monkeypatch: pytest.MonkeyPatch
) -> None:
    given_up, now = attempts
    given_up.save(10)
    with monkeypatch.context() as patch:
        patch.setattr(status, "is_durable", lambda *_: False)
        now.save(10)
        assert now.load() == (10, 2)
        assert len(parts(save_dir)) == 2
    now.save(20)
    assert parts(save_dir) == ["checkpoint-000000000020-0of1"]
    assert [entry.step for entry in manifest.list_manifests(str(save_dir))] == [20]
