"""`Checkpointer(reuse_unchanged=True)`: what did not change is not written again, and every step loads as it was."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perdure.checkpoint import Checkpointer, CheckpointError, NoUsableCheckpoint
from perdure.checkpoint.format import digest
from perdure.checkpoint.load import part_files
from perdure.checkpoint.save import adopt
from perdure.checkpoint.save.parts import unchanged_arrays
from perdure.checkpoint.save.retention import leftovers
from perdure.checkpoint.save.save_directory import SaveDirectory
from support.helpers.module_time import replace_time
from unit.checkpoint.training_program import Restart

pytestmark = pytest.mark.skipif(digest.preferred_algorithm() == digest.CRC_32, reason="needs the package xxhash")
SIZE = 10_000  # of an array, in elements


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrays of 80 KB count as large."""
    monkeypatch.setattr(unchanged_arrays, "MIN_ARRAY_BYTES", 8 * SIZE)
    monkeypatch.setattr(unchanged_arrays, "MIN_FILE_BYTES", 8 * SIZE)


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Sizes of the files that saves have written."""
    sizes: list[int] = []
    real = part_files.write_file

    def write_file(*arguments: Any) -> Any:
        record = real(*arguments)
        sizes.append(record.size)
        return record

    monkeypatch.setattr(part_files, "write_file", write_file)
    return iter([sizes])


def frozen_and_trained(step: int) -> dict[str, Any]:
    frozen = [np.random.default_rng(number).random(SIZE) for number in range(5)]
    return {"step": step, "frozen": frozen, "lora": np.full(SIZE, step, np.float64), "small": np.arange(9)}


def assert_equal(loaded: Any, expected: Any) -> None:
    if isinstance(expected, np.ndarray):
        assert loaded.dtype == expected.dtype
        assert np.array_equal(loaded, expected)
    elif isinstance(expected, dict):
        assert list(loaded) == list(expected)
        for key, value in expected.items():
            assert_equal(loaded[key], value)
    elif isinstance(expected, list):
        assert len(loaded) == len(expected)
        for one, other in zip(loaded, expected, strict=True):
            assert_equal(one, other)
    else:
        assert loaded == expected


def shared(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.glob("*.shared.safetensors"))


@pytest.mark.parametrize("asynchronous", [False, True])
def test_reuse__writes_frozen_arrays_twice_and_then_never_again(
    tmp_path: Path, asynchronous: bool, written: Iterator[list[int]]
) -> None:
    sizes = next(written)
    with Checkpointer(tmp_path, keep=None, asynchronous=asynchronous, reuse_unchanged=True) as checkpointer:
        for step in range(1, 7):
            checkpointer.save(step, frozen_and_trained(step))
            checkpointer.wait()
        assert [size // (8 * SIZE) for size in sizes] == [6, 5, 1, 1, 1, 1, 1], "steps 1, 2 (in two files), 3 …"
        assert len(shared(tmp_path)) == 1
        for step in range(1, 7):
            assert_equal(checkpointer.load(step=step), frozen_and_trained(step))
            into = {"step": 0, "frozen": [np.zeros(SIZE) for _ in range(5)], "lora": np.zeros(SIZE)}
            into["small"] = np.zeros(9, np.int64)
            assert_equal(checkpointer.load(into=into, step=step), frozen_and_trained(step))
        assert_equal(checkpointer.load(keys=["frozen"]), {"frozen": frozen_and_trained(1)["frozen"]})
        assert [info.state for info in checkpointer.steps(verify=True)] == ["committed"] * 6
        assert checkpointer.wait_durable() is True


def test_reuse__off_by_default(tmp_path: Path) -> None:
    with Checkpointer(tmp_path) as checkpointer:
        for step in range(1, 5):
            checkpointer.save(step, frozen_and_trained(step))
    assert not shared(tmp_path)


def test_reuse__never_without_a_strong_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digest, "_xxhash", lambda: None)
    with Checkpointer(tmp_path, reuse_unchanged=True) as checkpointer:
        for step in range(1, 5):
            checkpointer.save(step, frozen_and_trained(step))
    assert not shared(tmp_path)


def test_reuse__change_that_the_sample_misses_is_saved(tmp_path: Path) -> None:
    state = frozen_and_trained(0)
    with Checkpointer(tmp_path, keep=None, reuse_unchanged=True) as checkpointer:
        for step in range(1, 8):
            if step in (4, 5):
                state["frozen"][3][SIZE // 2 + 17] = step  # one element, between the pieces
                unsampled = unchanged_arrays._sample(memoryview(state["frozen"][3]).cast("B"))
                assert unsampled == unchanged_arrays._sample(memoryview(frozen_and_trained(0)["frozen"][3]).cast("B"))
            state["step"] = step
            checkpointer.save(step, state)
        for step in range(1, 8):
            expected = 0.0 if step < 4 else min(step, 5)
            value = checkpointer.load(step=step)["frozen"][3][SIZE // 2 + 17]
            assert value == (frozen_and_trained(0)["frozen"][3][SIZE // 2 + 17] if step < 4 else expected)


def test_reuse__shared_file_stays_while_a_step_needs_it_and_goes_an_hour_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    replace_time(monkeypatch, leftovers, monotonic=lambda: now[0])
    with Checkpointer(tmp_path, keep=2, reuse_unchanged=True) as checkpointer:
        for step in range(1, 10):
            checkpointer.save(step, frozen_and_trained(step))
            now[0] += leftovers.ABANDONED_S
        (first,) = shared(tmp_path)
        assert_equal(checkpointer.load(), frozen_and_trained(9))
        for step in range(10, 13):
            state = frozen_and_trained(step)
            state["frozen"][0] += step
            checkpointer.save(step, state)
            checkpointer.wait()
            assert first in shared(tmp_path), "no step lists it any more, but one that is being saved might"
            now[0] += leftovers.ABANDONED_S / 3
        for step in (13, 14, 15):
            now[0] += leftovers.ABANDONED_S
            checkpointer.save(step, frozen_and_trained(step))
            checkpointer.wait()
        assert first not in shared(tmp_path)
        assert_equal(checkpointer.load(), frozen_and_trained(15))


def test_reuse__shared_file_whose_manifests_were_lost_is_left_to_the_user(
    tmp_path: Path, restart: Restart, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Checkpointer(tmp_path, reuse_unchanged=True) as checkpointer:
        for step in (1, 2, 3):
            checkpointer.save(step, frozen_and_trained(step))
    (name,) = shared(tmp_path)
    os.utime(tmp_path / name, (1, 1))
    for path in (tmp_path / ".perdure").iterdir():
        path.unlink()
    restart()
    now = [0.0]
    replace_time(monkeypatch, leftovers, monotonic=lambda: now[0])
    with Checkpointer(tmp_path) as checkpointer:
        for step in (11, 12, 13):
            checkpointer.save(step, frozen_and_trained(step))
            checkpointer.wait()
            now[0] += 2 * leftovers.ABANDONED_S
    assert shared(tmp_path) == [name]


def test_reuse__shared_file_that_is_gone_is_written_anew(tmp_path: Path) -> None:
    with Checkpointer(tmp_path, reuse_unchanged=True) as checkpointer:
        for step in (1, 2, 3):
            checkpointer.save(step, frozen_and_trained(step))
        (name,) = shared(tmp_path)
        (tmp_path / name).unlink()
        with pytest.raises(NoUsableCheckpoint, match="missing"):
            checkpointer.load(step=3)
        for step in (4, 5):
            checkpointer.save(step, frozen_and_trained(step))
            assert_equal(checkpointer.load(step=step), frozen_and_trained(step))
        assert_equal(checkpointer.load(), frozen_and_trained(5))


def test_reuse__damage_of_a_shared_file_costs_the_steps_that_share_it(tmp_path: Path) -> None:
    with Checkpointer(tmp_path, keep=None, reuse_unchanged=True) as checkpointer:
        for step in (1, 2, 3, 4):
            checkpointer.save(step, frozen_and_trained(step))
        path = tmp_path / shared(tmp_path)[0]
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
        into = {"step": 0, "frozen": [np.zeros(SIZE) for _ in range(5)], "lora": np.zeros(SIZE)}
        into["small"] = np.zeros(9, np.int64)
        assert_equal(checkpointer.load(into=into), frozen_and_trained(1))
        assert checkpointer.last_result is not None
        assert [step for step, _ in checkpointer.last_result.skipped] == [4, 3, 2]
        checkpointer.save(5, frozen_and_trained(5))
        assert_equal(checkpointer.load(), frozen_and_trained(5))


def test_reuse__failed_save_leaves_nothing_and_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = part_files.write_part

    def fail(*_: Any) -> Any:
        raise OSError(28, "No space left on device")

    with Checkpointer(tmp_path, reuse_unchanged=True) as checkpointer:
        checkpointer.save(1, frozen_and_trained(1))
        monkeypatch.setattr(part_files, "write_part", fail)
        with pytest.raises(CheckpointError, match="No space left"):
            checkpointer.save(2, frozen_and_trained(2))  # its shared file was written
        assert not shared(tmp_path)
        monkeypatch.setattr(part_files, "write_part", real)
        for step in (3, 4):
            checkpointer.save(step, frozen_and_trained(step))
            assert_equal(checkpointer.load(), frozen_and_trained(step))


def test_adopt__takes_the_shared_files_as_well(tmp_path: Path, restart: Restart) -> None:
    with Checkpointer(tmp_path, reuse_unchanged=True) as checkpointer:
        for step in (1, 2, 3):
            checkpointer.save(step, frozen_and_trained(step))
    for path in (tmp_path / ".perdure").iterdir():
        path.unlink()
    restart()
    assert adopt.adopt(SaveDirectory.open(str(tmp_path)), "checkpoint") == [1, 2, 3]
    for step in (1, 2, 3):
        assert_equal(Checkpointer(tmp_path).load(step=step), frozen_and_trained(step))
    (tmp_path / shared(tmp_path)[0]).unlink()
    for path in (tmp_path / ".perdure").iterdir():
        path.unlink()
    restart()
    assert adopt.adopt(SaveDirectory.open(str(tmp_path)), "checkpoint") == [1]


# --- any history: each step that is there loads as it was saved ----------------------------------------------------


class Program:
    """A training program that changes some of its arrays, saves, fails to save, loads, and starts anew."""

    def __init__(self, root: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.random, self.root, self.patches = random.Random(seed), root, monkeypatch
        self.arrays = {f"a{number}": np.zeros(SIZE + self.random.randint(0, 3)) for number in range(5)}
        self.step, self.saved = 0, dict[int, dict[str, Any]]()
        self.start()

    def start(self) -> None:
        self.checkpointer = Checkpointer(
            self.root, keep=3, reuse_unchanged=True, asynchronous=self.random.random() < 0.5
        )

    def change(self) -> None:
        for name in self.random.sample(list(self.arrays), self.random.randint(0, 2)):
            how = self.random.random()
            if how < 0.6:
                self.arrays[name][self.random.randrange(SIZE)] += 1  # maybe where no sample sees it
            elif how < 0.8:
                self.arrays[name] = np.zeros(SIZE + self.random.randint(0, 3))
            elif how < 0.9 and len(self.arrays) > 2:
                del self.arrays[name]
            else:
                self.arrays[f"{name}x"] = self.arrays[name].copy()

    def save(self) -> None:
        self.step += 1
        state = {"step": self.step, **{name: array.copy() for name, array in self.arrays.items()}}
        self.checkpointer.save(self.step, {"step": self.step, **self.arrays})
        self.saved[self.step] = state

    def fail(self) -> None:
        """A disk that is full after some writes."""
        left, real = self.random.randint(0, 1), part_files.write_file

        def write_file(*arguments: Any) -> Any:
            nonlocal left
            if left == 0:
                raise OSError(28, "No space left on device")
            left -= 1
            return real(*arguments)

        self.checkpointer.wait()
        with self.patches.context() as patch:
            patch.setattr(part_files, "write_file", write_file)
            try:
                self.save()
                self.checkpointer.wait()
            except CheckpointError:
                self.saved.pop(self.step, None)

    def check(self) -> None:
        self.checkpointer.wait()
        steps = [info.step for info in self.checkpointer.steps()]
        assert steps == sorted(self.saved, reverse=True)[:3] or len(self.saved) < 3
        for step in steps:
            assert_equal(self.checkpointer.load(step=step), self.saved[step])
        listed = {name for info in self.checkpointer.steps() for name in info.files}
        assert all((self.root / name).exists() for name in listed)

    def run(self, turns: int) -> None:
        for _ in range(turns):
            self.change()
            turn = self.random.random()
            if turn < 0.12:
                self.fail()
            elif turn < 0.2:
                self.checkpointer.close()
                self.start()
            else:
                self.save()
            if self.random.random() < 0.3:
                self.check()
        self.check()
        self.checkpointer.close()


@pytest.mark.parametrize("seed", range(6))
def test_reuse__any_history(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    Program(tmp_path, seed, monkeypatch).run(25)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(6, 100))
def test_reuse__many_histories(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    Program(tmp_path, seed, monkeypatch).run(40)


def test_reuse__two_processes_with_other_steps_do_each_other_no_harm(tmp_path: Path) -> None:
    """One was given up and still saves: its steps are higher, so its retention removes those of the other one."""
    with (
        Checkpointer(tmp_path, keep=2, reuse_unchanged=True) as zombie,
        Checkpointer(tmp_path, keep=2, reuse_unchanged=True) as current,
    ):
        for step in range(1, 12):
            zombie.save(1000 + step, frozen_and_trained(1000 + step))
            current.save(step, frozen_and_trained(step))
            zombie.wait()
            current.wait()
            for info in current.steps():
                assert info.state == "committed"
                assert_equal(current.load(step=info.step), frozen_and_trained(info.step))


def test_part_names__of_shared_files(tmp_path: Path) -> None:
    from perdure.checkpoint.format import part_names

    name = part_names.new_shared_name("run", 7, 0, 1)
    assert part_names.is_shared(name)
    assert part_names.is_referred(name, "run")
    assert not part_names.is_referred(name, "ru")
    assert not part_names.is_shared(part_names.new_split_name("run", 7, 0, 1))
    assert part_names.is_unique(name)
    assert part_names.is_of_checkpointer(os.path.join("folder", name))
    assert part_names.parse_part(name, "run") is None
    assert part_names.rank_and_world(name) is None
