"""`Checkpointer.load` of a certain step, of the best one, and of a state that differs; and what `save` returns."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perdure.checkpoint import Checkpointer, CheckpointError, Keep, NoUsableCheckpoint
from perdure.checkpoint.durability import mount_table, status
from perdure.checkpoint.load import part_files
from perdure.checkpoint.save import first_upload
from perdure.checkpoint.save.save_directory import SaveDirectory
from support.helpers.timing import scaled
from unit.checkpoint.training_program import Model, Restart

LOSSES = {1: 0.9, 2: 0.3, 3: 0.5}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    with Checkpointer(tmp_path) as checkpointer:
        for step, loss in LOSSES.items():
            checkpointer.save(step, {"step": step, "w": np.full(9, step)}, metrics={"loss": loss, "accuracy": 1 - loss})
    return tmp_path


def damage(directory: Path, step: int) -> None:
    (path,) = directory.glob(f"checkpoint-{step:012d}-*.safetensors")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def test_load__a_certain_step(saved: Path) -> None:
    checkpointer = Checkpointer(saved)
    assert checkpointer.load(step=1)["step"] == 1
    assert checkpointer.last_result is not None
    assert (checkpointer.last_result.step, checkpointer.last_result.skipped) == (1, ())
    assert checkpointer.load()["step"] == 3
    with pytest.raises(CheckpointError, match=r"step 7 is not in .*; saved are: 3, 2, 1"):
        checkpointer.load(step=7)


def test_load__a_damaged_step_is_not_replaced_by_another(saved: Path) -> None:
    damage(saved, 2)
    with pytest.raises(NoUsableCheckpoint, match=r"step 2: .*differs from what was saved") as caught:
        Checkpointer(saved).load(step=2)
    assert [step for step, _ in caught.value.skipped] == [2]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [({"best": "loss"}, 2), ({"best": "accuracy", "mode": "max"}, 2), ({"best": "accuracy"}, 1)],
)
def test_load__the_best_step(saved: Path, arguments: dict[str, str], expected: int) -> None:
    assert Checkpointer(saved).load(**arguments)["step"] == expected  # type: ignore[arg-type]


def test_load__the_best_step_by_the_rule_of_retention(saved: Path) -> None:
    assert Checkpointer(saved, keep=Keep(best=1, metric="accuracy", mode="max")).load(best="accuracy")["step"] == 2


def test_load__the_second_best_step_if_the_best_is_damaged(saved: Path) -> None:
    damage(saved, 2)
    checkpointer = Checkpointer(saved)
    assert checkpointer.load(best="loss")["step"] == 3
    assert checkpointer.last_result is not None
    assert [step for step, _ in checkpointer.last_result.skipped] == [2]


def test_load__an_unknown_metric_names_the_known_ones(saved: Path) -> None:
    with pytest.raises(CheckpointError, match=r"with the metric 'perplexity'; known are: accuracy, loss"):
        Checkpointer(saved).load(best="perplexity")


@pytest.mark.parametrize("arguments", [{"step": 1, "best": "loss"}, {"best": "loss", "mode": "least"}])
def test_load__rejects_contradictions(saved: Path, arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"not both|mode is"):
        Checkpointer(saved).load(**arguments)


def test_load__not_strict_keeps_what_the_checkpoint_lacks(saved: Path) -> None:
    checkpointer = Checkpointer(saved)
    ema = np.zeros(3)
    with pytest.raises(CheckpointError, match=r"lacks \[\"'ema'\"\].*strict=False"):
        checkpointer.load(into={"step": 0, "ema": ema})
    restored = checkpointer.load(into={"step": 0, "ema": ema}, strict=False)
    assert restored == {"step": 3, "ema": ema}
    assert restored["ema"] is ema
    assert checkpointer.last_result is not None
    assert checkpointer.last_result.missing == ("state['ema']",)
    assert checkpointer.last_result.unexpected == ("state['w']",)


def test_load__not_strict_still_rejects_other_shapes(saved: Path) -> None:
    with pytest.raises(CheckpointError, match=r"shape \(9,\) instead of \(8,\)"):
        Checkpointer(saved).load(into={"w": np.zeros(8)}, strict=False)


def test_save__returns_a_handle_that_waits_for_the_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    allowed, real = threading.Event(), part_files.write_part

    def write_part(*arguments: Any) -> Any:
        assert allowed.wait(scaled(30))
        return real(*arguments)

    monkeypatch.setattr(part_files, "write_part", write_part)
    with Checkpointer(tmp_path) as checkpointer:
        handle = checkpointer.save(1, {"step": 1}, wait=False)
        assert (handle.step, handle.done(), handle.durable) == (1, False, False)
        with pytest.raises(TimeoutError, match=r"step 1 is not committed after 0\.01 s"):
            handle.result(0.01)
        allowed.set()
        handle.result(scaled(30))
        assert (handle.done(), handle.durable) == (True, True)
        assert checkpointer.save(2, {"step": 2}).done()


def test_save__its_failure_is_raised_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(part_files, "write_part", fail)
    checkpointer = Checkpointer(tmp_path)
    handle = checkpointer.save(1, {"step": 1}, wait=False)
    with pytest.raises(CheckpointError, match="No space left"):
        handle.result(scaled(30))
    assert handle.durable is False
    checkpointer.wait()
    checkpointer.save(2, {"step": 2}, wait=False)
    with pytest.raises(CheckpointError, match="No space left"):
        checkpointer.wait()


def test_load__a_step_into_objects(tmp_path: Path, new_model: type[Model]) -> None:
    with Checkpointer(tmp_path) as checkpointer:
        for step in (1, 2):
            model = new_model()
            model.load_state_dict({"weight": float(step)})
            checkpointer.save(step, {"model": model})
        target = new_model()
        checkpointer.load(into={"model": target}, step=1)
    assert target.state_dict() == {"weight": 1.0}


def steps_of(directory: Path) -> list[int]:
    return [one.step for one in Checkpointer(directory).steps()]


@pytest.mark.parametrize("arguments", [{"step": 1}, {"best": "accuracy"}])
def test_load__goes_on_from_the_step_that_was_gone_back_to(
    saved: Path, arguments: dict[str, Any], restart: Restart
) -> None:
    """After a preemption, the program must not return to what its user has left."""
    with Checkpointer(saved) as checkpointer:
        state = checkpointer.load(**arguments)
        assert state["step"] == 1
        checkpointer.save(2, {"step": 2, "again": True})
    restart()
    checkpointer = Checkpointer(saved)
    assert checkpointer.load() == {"step": 2, "again": True}
    assert checkpointer.load(step=3)["step"] == 3  # it was not removed
    assert steps_of(saved) == [2, 1, 3]
    assert checkpointer.latest() == 2
    damage_newest_of(saved, 2)
    restart()
    assert Checkpointer(saved).load()["step"] == 1


def damage_newest_of(directory: Path, step: int) -> None:
    newest = max(directory.glob(f"checkpoint-{step:012d}-*.safetensors"), key=lambda path: path.stat().st_mtime_ns)
    newest.write_bytes(newest.read_bytes()[:-1] + b"?")


def test_retention__counts_what_was_left_behind_last(saved: Path, restart: Restart) -> None:
    with Checkpointer(saved, keep=2) as checkpointer:
        checkpointer.load(step=1)
        checkpointer.save(2, {"step": 2})
    assert steps_of(saved) == [2, 1]
    restart()
    with Checkpointer(saved, keep=2) as checkpointer:
        assert checkpointer.load()["step"] == 2
        checkpointer.save(3, {"step": 3})
        checkpointer.save(4, {"step": 4})
    assert steps_of(saved) == [4, 3]
    assert len(list(saved.glob("*.safetensors"))) == 2


def test_load__of_a_certain_step_between_saves_leaves_nothing_behind(saved: Path) -> None:
    """For an evaluation, say: the program goes on with what it has in memory."""
    with Checkpointer(saved) as checkpointer:
        checkpointer.load()
        checkpointer.load(best="loss")
        checkpointer.save(4, {"step": 4})
    assert steps_of(saved) == [4, 3, 2, 1]
    assert not list(saved.glob(".perdure/*.abandoned"))


def test_load__record_of_what_was_left_behind_that_is_damaged(
    saved: Path, restart: Restart, caplog: pytest.LogCaptureFixture
) -> None:
    with Checkpointer(saved) as checkpointer:
        checkpointer.load(step=1)
        checkpointer.save(2, {"step": 2, "again": True})
    (record,) = saved.glob(".perdure/*.abandoned")
    renamed = record.with_name(record.name.replace("-000000000002-", "-000000000002-0"))  # it is read once per name
    record.rename(renamed)
    renamed.write_text("{")
    restart()
    assert Checkpointer(saved).load()["step"] == 3
    assert "cannot be read, so the newest step counts" in caplog.text


def test_save__behind_an_earlier_run_is_warned_of_once(
    saved: Path, restart: Restart, caplog: pytest.LogCaptureFixture
) -> None:
    restart()
    with Checkpointer(saved) as checkpointer:
        checkpointer.save(1, {"step": 1})
        checkpointer.save(2, {"step": 2})
    assert caplog.text.count("where an earlier run has saved step 3") == 1
    restart()
    caplog.clear()
    with Checkpointer(saved) as checkpointer:
        checkpointer.load()
        checkpointer.save(2, {"step": 2})
    assert "earlier run" not in caplog.text


def test_save__metrics_of_other_libraries_are_numbers(tmp_path: Path) -> None:
    with Checkpointer(tmp_path, asynchronous=True) as checkpointer:
        checkpointer.save(1, {}, metrics={"loss": np.float32(0.5), "n": np.array([3])[0]})
        checkpointer.save(2, {}, metrics={"loss": np.float32(0.25)})
        assert checkpointer.load(best="loss") == {}
        assert checkpointer.last_result is not None
        assert checkpointer.last_result.step == 2
        with pytest.raises(TypeError, match="the metric 'loss' must be a number"):
            checkpointer.save(3, {}, metrics={"loss": [1, 2]})  # type: ignore[dict-item]


def test_save__two_checkpointers_of_one_series_do_not_go_on_replacing_steps(tmp_path: Path) -> None:
    generator, discriminator = Checkpointer(tmp_path), Checkpointer(tmp_path)
    generator.save(1, {"who": "generator"})
    discriminator.save(1, {"who": "discriminator"})
    with pytest.raises(CheckpointError, match="Give each a prefix of its own"):
        generator.save(2, {"who": "generator"})
    with Checkpointer(tmp_path, prefix="other") as other:
        for step in (1, 2):
            other.save(step, {"who": "other"})
            discriminator.save(step, {"who": "discriminator"})


def test_save__two_checkpointers_take_turns_at_other_steps(tmp_path: Path) -> None:
    often, last = Checkpointer(tmp_path), Checkpointer(tmp_path)
    for step in (1, 3, 5):
        often.save(step, {"step": step})
        last.save(step + 1, {"step": step + 1})
    again = Checkpointer(tmp_path)  # as if a cell of a notebook is run twice
    again.save(6, {"step": 6})
    again.save(7, {"step": 7})
    assert [one.step for one in again.steps()] == [7, 6, 5, 4, 3]


def test_load__of_a_step_that_a_program_began_with_leaves_all_later_ones(saved: Path, restart: Restart) -> None:
    """Its first save may be later than all of them, and be lost or damaged."""
    with Checkpointer(saved) as checkpointer:
        checkpointer.load(step=1)
        assert checkpointer.load(step=1, keys=["step"])["step"] == 1
        checkpointer.save(4, {"step": 4})
    assert steps_of(saved) == [4, 1, 3, 2]
    damage(saved, 4)
    restart()
    assert Checkpointer(saved).load()["step"] == 1


class TestOnAMount:
    """What was left behind must be known where the machine is not."""

    @pytest.fixture
    def uploaded(self, saved: Path, run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
        """Whether the bucket gets records of what was left behind: the last item counts."""
        uploads = [True]
        row = {"path": str(saved), "mode": "MOUNT", "cache_dir": None, "rc_socket": None}
        (run_dir / "mounts.json").write_text(json.dumps([row]))
        monkeypatch.setattr(mount_table, "source_at", lambda *_: "store:bucket")
        of_mount = status.is_durable
        monkeypatch.setattr(
            status,
            "is_durable",
            lambda paths, mounts=None: (
                of_mount(paths, mounts) and (uploads[-1] or not any(one.endswith(".abandoned") for one in paths))
            ),
        )
        monkeypatch.setattr(first_upload, "LIMIT_S", 0.0)
        return uploads

    def test_durable__only_with_the_record(
        self, saved: Path, uploaded: list[bool], caplog: pytest.LogCaptureFixture
    ) -> None:
        uploaded.append(False)
        with Checkpointer(saved) as checkpointer:
            checkpointer.load(step=1)
            handle = checkpointer.save(2, {"step": 2})
            assert handle.durable is False
            checkpointer.save(3, {"step": 3})
            assert checkpointer.wait_durable(timeout_s=0.0) is False, "later steps need it as well"
            uploaded.append(True)
            assert checkpointer.wait_durable() is True
        assert "later steps" in caplog.text
        assert "left behind has not reached the bucket" in caplog.text

    def test_commit__waits_for_the_record(
        self, saved: Path, uploaded: list[bool], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        uploaded.append(False)
        waited: list[list[str]] = []

        def wait(directory: SaveDirectory, paths: list[str], *, timeout_s: float) -> bool:
            assert "again" not in str(saved_contents(saved)), "it is not committed yet"
            waited.append([Path(path).suffix for path in paths])
            return True

        monkeypatch.setattr(SaveDirectory, "wait_durable", wait)
        with Checkpointer(saved) as checkpointer:
            checkpointer.load(step=1)
            checkpointer.save(2, {"step": 2}, metrics={"again": 1.0})
        assert waited == [[".abandoned"]]


def saved_contents(directory: Path) -> list[str]:
    return [path.read_text() for path in directory.glob(".perdure/*.json")]
