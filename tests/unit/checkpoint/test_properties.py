"""Any order of saves, damages, restarts and loads: what is loaded is the newest whole one, and its bytes are right."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.checkpoint import NoUsableCheckpoint, load_checkpoint, memory, save_checkpoint

BYTES = st.binary(min_size=1, max_size=64)
STEPS = st.integers(0, 12)
SAVES = st.tuples(st.just("save"), STEPS, BYTES)
FAILED_SAVES = st.tuples(st.just("fail"), STEPS, st.binary(max_size=64))
DAMAGES = st.tuples(
    st.just("damage"), STEPS, st.sampled_from(["truncate", "empty", "remove", "flip", "append", "zero", "manifest"])
)
# What a look at names and sizes finds; a save does not read old files again to count them.
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
        """Steps that a load may give, newest first."""
        return [
            step
            for step in sorted(self.saved, reverse=True)
            if self.path(step).exists() and self.path(step).read_bytes() == self.saved[step] and self._believed(step)
        ]

    def _believed(self, step: int) -> bool:
        return bool(self.manifests(step)) and all(path.stat().st_size > 1 for path in self.manifests(step))

    def save(self, step: int, content: bytes, *, fail: bool = False) -> None:
        @save_checkpoint(self.root, max_checkpoints=self.keep)
        def save(step):
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
        def load(step):
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
def _no_wait_for_the_tick():
    """Saves here are told apart by content and name; waiting for file times would make hours of it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("perdure.checkpoint.snapshot._TICK_NS", 4_000_000)
        yield


@settings(max_examples=60, deadline=None)
@given(operations=OPERATIONS, keep=st.sampled_from([None, 1, 2, 3]))
def test_loads_the_newest_whole_one(operations, keep):
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
                memory._memories.clear()
            else:
                directory.load()


@settings(max_examples=60, deadline=None)
@given(operations=st.lists(st.one_of(SAVES, SAVES, PLAIN_DAMAGES), min_size=1), keep=st.sampled_from([1, 2, 3]))
def test_retention_never_removes_the_newest_good_one(operations, keep):
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
