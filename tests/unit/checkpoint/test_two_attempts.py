"""Two attempts that share a bucket, one of them given up and still alive: it may waste room, never do harm."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perdure.checkpoint import Checkpointer, manifest, memory, saving


class Attempt:
    """One attempt's program: its generation and what its process remembers, taken up whenever it does something."""

    def __init__(self, generation: int, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.generation, self._monkeypatch, self._memories = generation, monkeypatch, dict[str, Any]()
        self._checkpointer = self._as_itself(lambda: Checkpointer(root, keep=1))

    def _as_itself(self, work: Callable[[], Any]) -> Any:
        with self._monkeypatch.context() as patch:
            patch.setenv("PERDURE_GENERATION", str(self.generation))
            patch.setattr(memory, "_memories", self._memories)
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

        found: tuple[int | None, int] = self._as_itself(work)
        return found


@pytest.fixture
def attempts(save_dir: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Attempt, Attempt]:
    """The one given up, and the one that runs now."""
    return Attempt(1, save_dir, monkeypatch), Attempt(2, save_dir, monkeypatch)


def parts(save_dir: Path) -> list[str]:
    return sorted(path.name.rpartition("-")[0] for path in save_dir.glob("*.safetensors"))


def test_of_one_step_that_both_save_the_later_attempts_counts(
    save_dir: Path, attempts: tuple[Attempt, Attempt], committed: Callable[[Path], list[int]]
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


def test_one_that_is_behind_removes_nothing_of_the_other(
    save_dir: Path, attempts: tuple[Attempt, Attempt], committed: Callable[[Path], list[int]]
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


def test_one_that_is_ahead_leaves_a_whole_newest_one(
    save_dir: Path, attempts: tuple[Attempt, Attempt], committed: Callable[[Path], list[int]]
) -> None:
    given_up, now = attempts
    given_up.save(100)
    now.load()
    for step in (110, 120):
        given_up.save(step + 50)
        now.save(step)
        assert committed(save_dir) == [step + 50, step]
        assert now.load() == (step + 50, 1)


def test_a_save_that_is_not_in_the_bucket_yet_replaces_nothing(
    save_dir: Path, attempts: tuple[Attempt, Attempt], monkeypatch: pytest.MonkeyPatch
) -> None:
    given_up, now = attempts
    given_up.save(10)
    with monkeypatch.context() as patch:
        patch.setattr(saving.durability, "is_durable", lambda paths: False)
        now.save(10)
        assert now.load() == (10, 2)
        assert len(parts(save_dir)) == 2
    now.save(20)
    assert parts(save_dir) == ["checkpoint-000000000020-0of1"]
    assert [entry.step for entry in manifest.entries(str(save_dir))] == [20]
