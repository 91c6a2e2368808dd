"""After any order of saves, damages, restarts and loads, the newest whole checkpoint is loaded with the right bytes."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.checkpoint import NoUsableCheckpoint, load_checkpoint, save_checkpoint
from perdure.checkpoint.load import directory_cache

BYTES = st.binary(min_size=1, max_size=64)
STEPS = st.integers(0, 12)
SAVES = st.tuples(st.just("save"), STEPS, BYTES)
FAILED_SAVES = st.tuples(st.just("fail"), STEPS, st.binary(max_size=64))
DAMAGES = st.tuples(
    st.just("damage"), STEPS, st.sampled_from(["truncate", "empty", "remove", "flip", "append", "zero", "manifest"])
)
# Damage that names and sizes show. A save does not read the content of old files.
PLAIN_DAMAGES = st.tuples(st.just("damage"), STEPS, st.sampled_from(["truncate", "empty", "remove", "append"]))
OPERATIONS = st.lists(st.one_of(SAVES, SAVES, FAILED_SAVES, DAMAGES, st.just(("restart",)), st.just(("load",))))


def damaged(data: bytes, how: str) -> bytes:
    middle = len(data) // 2
    return {
        "truncate": data[:-1],
        "empty": b"",
        "append": data + b"\0",
        "flip": data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :] if data else b"",
        "zero": bytes(len(data)),
    }[how]


class Directory:
    """A directory of checkpoints beside a model of it: the bytes that each committed step was saved with."""

    def __init__(self, root: Path, keep: int | None) -> None:
        self.root, self.keep = root, keep
        self.saved: dict[int, bytes] = {}

    def path(self, step: int) -> Path:
        return self.root / f"model_{step}.pt"

    def manifests(self, step: int) -> list[Path]:
        return list(self.root.glob(f".perdure/checkpoint-{step:012d}-*.json"))

    def good(self) -> list[int]:
        """Steps that a load may return, newest first."""
        return [
            step
            for step in sorted(self.saved, reverse=True)
            if self.path(step).exists() and self.path(step).read_bytes() == self.saved[step] and self._believed(step)
        ]

    def _believed(self, step: int) -> bool:
        return bool(self.manifests(step)) and all(path.stat().st_size > 1 for path in self.manifests(step))

    def save(self, step: int, content: bytes, *, fail: bool = False) -> None:
        @save_checkpoint(self.root, max_checkpoints=self.keep)
        def save(step: int) -> None:
            self.path(step).write_bytes(content)
            if fail:
                raise RuntimeError("on purpose")

        try:
            save(step)
        except RuntimeError:
            return
        self.saved[step] = content

    def damage(self, step: int, how: str) -> None:
        if how == "manifest":
            for path in self.manifests(step):
                path.write_bytes(b"{")
        elif self.path(step).exists():
            if how == "remove":
                self.path(step).unlink()
            else:
                self.path(step).write_bytes(damaged(self.path(step).read_bytes(), how))

    def load(self) -> None:
        good = self.good()
        committed = [path for step in self.saved for path in self.manifests(step)]

        @load_checkpoint(self.root)
        def load(step: int) -> tuple[int, bytes]:
            return step, self.path(step).read_bytes()

        if good:
            assert load() == (good[0], self.saved[good[0]])
            assert all(step > good[0] and reason for step, reason in load.last_result.skipped)
        elif committed:
            with pytest.raises(NoUsableCheckpoint):
                load()
        else:
            assert load() is None


@pytest.fixture(scope="module", autouse=True)
def _no_wait_for_the_tick() -> Iterator[None]:
    """Saves differ in content and name here; waiting for file times would take hours."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("perdure.checkpoint.format.file_changes._TICK_NS", 4_000_000)
        yield


@settings(max_examples=60, deadline=None)
@given(operations=OPERATIONS, keep=st.sampled_from([None, 1, 2, 3]))
def test_load__newest_whole_checkpoint_after_any_damage(operations: list[tuple[Any, ...]], keep: int | None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        directory = Directory(Path(os.path.realpath(folder)), keep)
        for kind, *arguments in [*operations, ("load",)]:
            if kind == "save":
                directory.save(*arguments)
            elif kind == "fail":
                directory.save(*arguments, fail=True)
            elif kind == "damage":
                directory.damage(*arguments)
            elif kind == "restart":
                directory_cache._caches.clear()
            else:
                directory.load()


@settings(max_examples=60, deadline=None)
@given(operations=st.lists(st.one_of(SAVES, SAVES, PLAIN_DAMAGES), min_size=1), keep=st.sampled_from([1, 2, 3]))
def test_prune__never_removes_the_newest_whole_checkpoint(operations: list[tuple[Any, ...]], keep: int | None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        directory = Directory(Path(os.path.realpath(folder)), keep)
        for kind, *arguments in operations:
            before = directory.good()
            if kind == "damage":
                directory.damage(*arguments)
                continue
            directory.save(*arguments)
            after = directory.good()
            expected = sorted({*before, arguments[0]}, reverse=True)
            assert arguments[0] in after  # the one just saved
            assert after[:keep] == expected[:keep]
