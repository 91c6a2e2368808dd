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

from perdure.checkpoint import Checkpointer, Keep, NoUsableCheckpoint, save_checkpoint, shards
from perdure.checkpoint.errors import CheckpointError
from perdure.checkpoint.state.tree import Unsaveable

STATE = {"step": 7, "w": np.arange(1000, dtype=np.float32), "opt": [{"lr": 0.1}, (1, None)]}


def data_file(directory: Path, step: int) -> Path:
    (found,) = directory.glob(f"checkpoint-{step:012d}-*.safetensors")
    return found


@pytest.mark.parametrize("asynchronous", [False, True])
def test_saves_and_loads(tmp_path: Path, asynchronous: bool) -> None:
    with Checkpointer(tmp_path, asynchronous=asynchronous) as checkpointer:
        assert checkpointer.load() is None
        assert checkpointer.last_result is not None
        assert checkpointer.last_result.step is None
        for step in (1, 2, 3):
            checkpointer.save(step, {**STATE, "step": step})
        found = checkpointer.load()
    assert found["step"] == 3
    assert np.array_equal(found["w"], STATE["w"])
    assert found["opt"] == STATE["opt"]
    assert checkpointer.latest() == 3
    assert [info.step for info in checkpointer.steps(verify=True)] == [3, 2, 1]


def test_what_is_saved_is_the_state_at_the_call(tmp_path: Path) -> None:
    weights = np.zeros(1 << 16)
    with Checkpointer(tmp_path, asynchronous=True) as checkpointer:
        for step in range(1, 4):
            weights[:] = step
            checkpointer.save(step, {"w": weights})
            weights[:] = -1
        assert set(checkpointer.load()["w"]) == {3.0}


@pytest.mark.parametrize("how", ["one bit", "truncated", "empty", "missing"])
def test_goes_back_past_a_broken_one(tmp_path: Path, how: str) -> None:
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


def test_keeps_by_rule_and_removes_data_with_manifests(tmp_path: Path) -> None:
    with Checkpointer(tmp_path, keep=Keep(2, every_steps=10, best=1, metric="loss")) as checkpointer:
        for step in range(1, 24):
            checkpointer.save(step, {"n": step}, metrics={"loss": abs(step - 7)})
        assert [info.step for info in checkpointer.steps()] == [23, 22, 20, 10, 7]
    assert len(list(tmp_path.glob("*.safetensors"))) == 5


def test_unsaveable_state_changes_nothing(tmp_path: Path) -> None:
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(1, {"n": 1})
        with pytest.raises(Unsaveable, match=r"state\['f'\] is a function"):
            checkpointer.save(2, {"f": lambda: 0})
        assert checkpointer.load() == {"n": 1}


class FullDisk:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        real = os.pwrite

        def write(descriptor: int, data: Any, offset: int) -> int:
            if self.is_full and len(data) > 4096:
                raise OSError(28, "No space left on device")
            return real(descriptor, data, offset)

        self.is_full = True
        monkeypatch.setattr(os, "pwrite", write)


def test_a_failed_background_save_is_raised_by_the_next_call_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FullDisk(monkeypatch)
    checkpointer = Checkpointer(tmp_path, asynchronous=True)
    checkpointer.save(1, STATE)
    with pytest.raises(CheckpointError, match=r"saving step 1 .* No space left"):
        checkpointer.save(2, STATE)
    disk.is_full = False
    checkpointer.save(3, STATE)
    checkpointer.close()
    assert checkpointer.latest() == 3
    assert not list(tmp_path.glob(".tmp-*"))


def test_an_error_of_the_program_is_not_hidden_by_that_of_its_last_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    FullDisk(monkeypatch)
    with pytest.raises(KeyError, match="mine"), Checkpointer(tmp_path, asynchronous=True) as checkpointer:  # noqa: PT012
        checkpointer.save(1, STATE)
        raise KeyError("mine")


def test_one_save_is_in_flight_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    running, most, real = 0, 0, shards.write
    lock = threading.Lock()

    def write(*args: Any) -> Any:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        try:
            return real(*args)
        finally:
            with lock:
                running -= 1

    monkeypatch.setattr(shards, "write", write)
    with Checkpointer(tmp_path, asynchronous=True) as checkpointer:
        for step in range(6):
            checkpointer.save(step, STATE)
    assert most == 1
    assert checkpointer.latest() == 5


def test_fills_the_programs_own_objects(tmp_path: Path, new_model: Any) -> None:
    weights = np.ones(4)
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(5, {"model": new_model(w=np.arange(3.0)), "list": [weights], "step": 5})
        mine = {"model": new_model(), "list": [np.zeros(4)], "step": 0}
        array = mine["list"][0]
        assert checkpointer.load(into=mine) is mine
    assert mine["model"].state["w"].tolist() == [0, 1, 2]
    assert array.tolist() == [1, 1, 1, 1]
    assert mine["step"] == 5


@pytest.mark.parametrize(
    ("mine", "text"),
    [
        ({"w": np.zeros(3)}, r"state\['w'\]: the checkpoint has the shape \(2,\) instead of \(3,\)"),
        ({"v": 1}, r"lacks \[\"'v'\"\] and has \[\"'w'\"\] besides"),
    ],
)
def test_what_does_not_fit_is_said_before_anything_changes(tmp_path: Path, mine: Any, text: str) -> None:
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(1, {"w": np.ones(2)})
        with pytest.raises(CheckpointError, match=text):
            checkpointer.load(into=mine)


def test_checkpoints_of_decorated_functions_are_told_apart(tmp_path: Path) -> None:
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
def test_refuses_arguments_that_mean_nothing(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"0|often"):
        Checkpointer(tmp_path, **wrong)
    with pytest.raises(TypeError, match="whole number"):
        Checkpointer(tmp_path).save(-1, {})


def test_saves_when_due_and_when_told_to_leave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_RUN_DIR", str(tmp_path))
    with Checkpointer(tmp_path / "c", every=10) as checkpointer:
        assert [step for step in range(1, 31) if checkpointer.should_save(step)] == [10, 20, 30]
        (tmp_path / "notice.json").write_text("{}")
        from perdure.checkpoint import notice

        monkeypatch.setattr(notice._seen, "at_s", float("-inf"))
        assert checkpointer.preempted()
        assert checkpointer.should_save(31)
        checkpointer.save(31, {})
        assert not checkpointer.should_save(31)


def test_on_a_plain_disk_a_committed_step_is_durable(tmp_path: Path) -> None:
    with Checkpointer(tmp_path) as checkpointer:
        assert checkpointer.wait_durable(timeout_s=0) is False
        checkpointer.save(1, {})
        assert checkpointer.wait_durable() is True
        assert checkpointer.wait_durable(2, timeout_s=0) is False


def test_a_damaged_one_is_marked_not_removed_and_not_read_again(
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
        real = shards.read
        monkeypatch.setattr(
            shards, "read", lambda root, record, *how: reads.append(record.path) or real(root, record, *how)
        )
        assert checkpointer.load() == {"n": 1}
        assert reads == [data_file(tmp_path, 1).name]
        os.utime(path, (1, 1))
        path.write_bytes(whole)
        os.utime(path, (2, 2))
        assert checkpointer.load() == {"n": 2}
        assert not list((tmp_path / ".perdure").glob("*.damaged"))


def test_a_mark_is_not_believed_when_nothing_else_is_left(tmp_path: Path) -> None:
    from perdure.checkpoint import checkpoints, marks

    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(1, {"n": 1})
        (found,) = checkpoints.newest_first(str(tmp_path))
        marks.mark(found, "a mount showed it short for a moment")
        assert [info.why for info in checkpointer.steps()] == ["a mount showed it short for a moment"]
        assert checkpointer.load() == {"n": 1}
        assert [info.state for info in checkpointer.steps()] == ["committed"]


def test_a_large_save_under_way_at_the_end_of_the_program_is_finished(tmp_path: Path) -> None:
    program = f"""
import numpy as np
from perdure.checkpoint import Checkpointer
Checkpointer({str(tmp_path)!r}, asynchronous=True).save(1, {{"w": np.ones(1 << 21)}})
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    assert Checkpointer(tmp_path).load()["w"].sum() == 1 << 21
