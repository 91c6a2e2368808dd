"""`Checkpointer` in one process."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perdure.checkpoint import Checkpointer, Keep, NoUsableCheckpoint, save_checkpoint
from perdure.checkpoint.errors import CheckpointError
from perdure.checkpoint.format.manifest import FileRecord
from perdure.checkpoint.load import part_files
from perdure.checkpoint.load.part_file import PartFile
from perdure.checkpoint.state.tree import UnsupportedValue
from support.helpers.timing import scaled
from unit.checkpoint.training_program import Model

STATE = {"step": 7, "w": np.arange(1000, dtype=np.float32), "opt": [{"lr": 0.1}, (1, None)]}


def data_file(directory: Path, step: int) -> Path:
    (loaded,) = directory.glob(f"checkpoint-{step:012d}-*.safetensors")
    return loaded


@pytest.mark.parametrize("asynchronous", [False, True])
def test_checkpointer__loads_what_it_saved(tmp_path: Path, asynchronous: bool) -> None:
    with Checkpointer(tmp_path, asynchronous=asynchronous) as checkpointer:
        assert checkpointer.load() is None
        assert checkpointer.last_result is not None
        assert checkpointer.last_result.step is None
        for step in (1, 2, 3):
            checkpointer.save(step, {**STATE, "step": step})
        loaded = checkpointer.load()
    assert loaded["step"] == 3
    assert np.array_equal(loaded["w"], STATE["w"])
    assert loaded["opt"] == STATE["opt"]
    assert checkpointer.latest() == 3
    assert [info.step for info in checkpointer.steps(verify=True)] == [3, 2, 1]


def test_checkpointer__saves_the_state_at_the_time_of_the_call(tmp_path: Path) -> None:
    weights = np.zeros(1 << 16)
    with Checkpointer(tmp_path, asynchronous=True) as checkpointer:
        for step in range(1, 4):
            weights[:] = step
            checkpointer.save(step, {"w": weights})
            weights[:] = -1
        assert set(checkpointer.load()["w"]) == {3.0}


@pytest.mark.parametrize("how", ["one bit", "truncated", "empty", "missing"])
def test_checkpointer__falls_back_past_a_damaged_checkpoint(tmp_path: Path, how: str) -> None:
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(1, {"n": 1})
        checkpointer.save(2, {"n": 2})
        path = data_file(tmp_path, 2)
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        {
            "one bit": lambda: path.write_bytes(content),
            "truncated": lambda: os.truncate(path, len(content) - 1),
            "empty": lambda: os.truncate(path, 0),
            "missing": path.unlink,
        }[how]()
        assert checkpointer.load() == {"n": 1}
        assert checkpointer.last_result is not None
        assert checkpointer.last_result.step == 1
        assert [step for step, _ in checkpointer.last_result.skipped] == [2]
        data_file(tmp_path, 1).unlink()
        with pytest.raises(NoUsableCheckpoint, match="none of the 2 checkpoints"):
            checkpointer.load()


def test_checkpointer__removes_surplus_data_with_its_manifests(tmp_path: Path) -> None:
    with Checkpointer(tmp_path, keep=Keep(2, every_steps=10, best=1, metric="loss")) as checkpointer:
        for step in range(1, 24):
            checkpointer.save(step, {"n": step}, metrics={"loss": abs(step - 7)})
        assert [info.step for info in checkpointer.steps()] == [23, 22, 20, 10, 7]
    assert len(list(tmp_path.glob("*.safetensors"))) == 5


def test_checkpointer__unsupported_value_changes_nothing(tmp_path: Path) -> None:
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(1, {"n": 1})
        with pytest.raises(UnsupportedValue, match=r"state\['f'\] is a function"):
            checkpointer.save(2, {"f": lambda: 0})
        assert checkpointer.load() == {"n": 1}


class FullDisk:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        real = os.pwrite

        def write(descriptor: int, data: memoryview, offset: int) -> int:
            if self.is_full and len(data) > 4096:
                raise OSError(28, "No space left on device")
            return real(descriptor, data, offset)

        self.is_full = True
        monkeypatch.setattr(os, "pwrite", write)


def test_checkpointer__next_call_raises_a_background_failure_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FullDisk(monkeypatch)
    checkpointer = Checkpointer(tmp_path, asynchronous=True)
    checkpointer.save(1, STATE)
    with pytest.raises(CheckpointError, match=r"saving step 1 .* No space left .*keep fewer"):
        checkpointer.save(2, STATE)
    disk.is_full = False
    checkpointer.save(3, STATE)
    checkpointer.close()
    assert checkpointer.latest() == 3
    assert not list(tmp_path.glob(".tmp-*"))


def test_checkpointer__exit_does_not_hide_the_programs_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    FullDisk(monkeypatch)
    with pytest.raises(KeyError, match="mine"), Checkpointer(tmp_path, asynchronous=True) as checkpointer:  # noqa: PT012
        checkpointer.save(1, STATE)
        raise KeyError("mine")


def test_checkpointer__one_save_in_flight_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    running, max_running, real = 0, 0, part_files.write_part
    lock = threading.Lock()

    def write(*args: Any) -> FileRecord:
        nonlocal running, max_running
        with lock:
            running += 1
            max_running = max(max_running, running)
        try:
            return real(*args)
        finally:
            with lock:
                running -= 1

    monkeypatch.setattr(part_files, "write_part", write)
    with Checkpointer(tmp_path, asynchronous=True) as checkpointer:
        for step in range(6):
            checkpointer.save(step, STATE)
    assert max_running == 1
    assert checkpointer.latest() == 5


def test_checkpointer_load__fills_the_programs_objects(tmp_path: Path, new_model: type[Model]) -> None:
    weights = np.ones(4)
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(5, {"model": new_model(w=np.arange(3.0)), "list": [weights], "step": 5})
        mine: dict[str, Any] = {"model": new_model(), "list": [np.zeros(4)], "step": 0}
        array = mine["list"][0]
        assert checkpointer.load(into=mine) is mine
    assert mine["model"].state["w"].tolist() == [0, 1, 2]
    assert array.tolist() == [1, 1, 1, 1]
    assert mine["step"] == 5


@pytest.mark.parametrize(
    ("mine", "text"),
    [
        ({"w": np.zeros(3)}, r"state\['w'\]: the checkpoint has the shape \(2,\) instead of \(3,\)"),
        ({"v": 1}, r"lacks \[\"'v'\"\] and has \[\"'w'\"\] in addition"),
    ],
)
def test_checkpointer_load__mismatch_is_raised_before_any_change(
    tmp_path: Path, mine: dict[str, Any], text: str
) -> None:
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(1, {"w": np.ones(2)})
        with pytest.raises(CheckpointError, match=text):
            checkpointer.load(into=mine)


def test_checkpointer_load__rejects_foreign_checkpoints(tmp_path: Path) -> None:
    @save_checkpoint(tmp_path)
    def save(step: int) -> None:
        (tmp_path / f"model_{step}.pt").write_bytes(b"x")

    save(1)
    with pytest.raises(CheckpointError, match="was not saved by Checkpointer"):
        Checkpointer(tmp_path).load()
    with Checkpointer(tmp_path, prefix="other") as other:
        assert other.load() is None
        other.save(1, {"n": 1})
        assert other.load() == {"n": 1}


@pytest.mark.parametrize("wrong", [{"keep": 0}, {"every": "often"}, {"every": 0}, {"every_s": 0}])
def test_checkpointer__rejects_invalid_arguments(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"0|often"):
        Checkpointer(tmp_path, **wrong)
    with pytest.raises(TypeError, match="whole number"):
        Checkpointer(tmp_path).save(-1, {})


def test_checkpointer__rejects_metadata_before_anything_is_saved(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="keys must be"):
        Checkpointer(tmp_path, metadata={"shape": {(1, 2): 3}})
    with Checkpointer(tmp_path, metadata={"at": tmp_path, 1: 2}) as checkpointer:  # type: ignore[dict-item]
        checkpointer.save(1, {})


def test_should_save__when_due_and_at_a_notice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_RUN_DIR", str(tmp_path))
    with Checkpointer(tmp_path / "c", every=10) as checkpointer:
        assert [step for step in range(1, 31) if checkpointer.should_save(step)] == [10, 20, 30]
        (tmp_path / "notice.json").write_text("{}")
        from perdure.checkpoint import preemption

        monkeypatch.setattr(preemption._cache, "checked_at_s", float("-inf"))
        assert checkpointer.preempted()
        assert checkpointer.should_save(31)
        checkpointer.save(31, {})
        assert not checkpointer.should_save(31)


def test_wait_durable__on_a_disk_a_committed_step_is_durable(tmp_path: Path) -> None:
    with Checkpointer(tmp_path) as checkpointer:
        assert checkpointer.wait_durable(timeout_s=0) is False
        checkpointer.save(1, {})
        assert checkpointer.wait_durable() is True
        assert checkpointer.wait_durable(2, timeout_s=0) is False


def test_checkpointer_load__marks_damage_and_does_not_read_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Checkpointer(tmp_path) as checkpointer:
        for step in (1, 2):
            checkpointer.save(step, {"n": step})
        path = data_file(tmp_path, 2)
        whole = path.read_bytes()
        path.write_bytes(whole[:-1] + b"?")
        assert checkpointer.load() == {"n": 1}
        assert path.exists()
        assert [(i.step, i.state) for i in checkpointer.steps()] == [(2, "damaged"), (1, "committed")]
        reads = []
        real = PartFile.__init__

        def opened(part: PartFile, root: str, record: FileRecord, *how: Any) -> None:
            reads.append(record.path)
            real(part, root, record, *how)

        monkeypatch.setattr(PartFile, "__init__", opened)
        assert checkpointer.load() == {"n": 1}
        assert reads == [data_file(tmp_path, 1).name]
        os.utime(path, (1, 1))
        path.write_bytes(whole)
        os.utime(path, (2, 2))
        assert checkpointer.load() == {"n": 2}
        assert not list((tmp_path / ".perdure").glob("*.damaged"))


def test_checkpointer_load__ignores_marks_if_nothing_else_is_left(tmp_path: Path) -> None:
    from perdure.checkpoint.load import damage_marks, saved_step

    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(1, {"n": 1})
        (loaded,) = saved_step.newest_first(str(tmp_path))
        damage_marks.mark(loaded, "a mount showed it short for a moment")
        assert [info.reason for info in checkpointer.steps()] == ["a mount showed it short for a moment"]
        assert checkpointer.load() == {"n": 1}
        assert [info.state for info in checkpointer.steps()] == ["committed"]


def test_checkpointer__exit_finishes_a_running_save(tmp_path: Path) -> None:
    program = f"""
import numpy as np
from perdure.checkpoint import Checkpointer
Checkpointer({str(tmp_path)!r}, asynchronous=True).save(1, {{"w": np.ones(1 << 21)}})
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=scaled(60))
    assert Checkpointer(tmp_path).load()["w"].sum() == 1 << 21
