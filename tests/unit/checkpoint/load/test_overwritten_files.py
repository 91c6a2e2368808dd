"""A log or an alias that a save overwrote before it died does not cost the last committed step; real damage does."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from perdure.checkpoint import NoUsableCheckpoint, latest, load_checkpoint, save_checkpoint, steps
from perdure.checkpoint.load import verify
from perdure.checkpoint.load.saved_step import read_step
from unit.checkpoint.training_program import Restart

NAMES = ["latest.pt", "model_latest.pt", "train_log.csv"]


class Killed(BaseException):
    """Ends a save as a kill does, without the process."""


def write_half(path: Path, step: int) -> None:
    path.write_bytes(content(step)[:300])


def content(step: int) -> bytes:
    return b"weights %d" % step * 100


DYING: dict[str, Callable[[Path, int], object]] = {
    "whole": lambda path, step: path.write_bytes(content(step)),
    "half": write_half,
    "empty": lambda path, _: path.write_bytes(b""),
    "gone": lambda path, _: path.unlink(),
    "renamed": lambda path, step: (
        path.with_name(".tmp").write_bytes(content(step)),
        path.with_name(".tmp").replace(path),
    ),
}


def save_steps(save_dir: Path, name: str, keep: int | None, dying: Callable[[Path, int], object]) -> None:
    """Commit steps 1 and 2, and die in step 3."""

    @save_checkpoint(save_dir, max_checkpoints=keep)
    def save(step: int) -> None:
        if step == 3:
            dying(save_dir / name, step)
            raise Killed
        (save_dir / name).write_bytes(content(step))
        (save_dir / f"model_{step}.pt").write_bytes(content(step))

    save(1)
    save(2)
    with pytest.raises(Killed):
        save(3)


@pytest.mark.parametrize("how", DYING)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("keep", [1, 3])
def test_load__after_a_save_that_died_having_overwritten(
    save_dir: Path, restart: Restart, caplog: pytest.LogCaptureFixture, keep: int, name: str, how: str
) -> None:
    save_steps(save_dir, name, keep, DYING[how])
    restart()
    load = load_checkpoint(save_dir)(lambda step: (save_dir / f"model_{step}.pt").read_bytes())
    assert load() == content(2)
    assert load.last_result.skipped == ()
    verb = "removed" if how == "gone" else "overwritten"
    assert f"a save that was not committed has {verb} {name}, so it is not verified" in caplog.text
    assert latest(save_dir) == 2
    assert {info.state for info in steps(save_dir, verify=True)} == {"committed"}
    # The next save counts the step as whole, and removes what it may.
    save_steps(save_dir, name, keep, DYING[how])
    assert load() == content(2)


@pytest.fixture
def saved(save_dir: Path) -> Path:
    """Steps 1 and 2, of which the second has a log of its own."""

    @save_checkpoint(save_dir)
    def save(step: int) -> None:
        (save_dir / f"model_{step}.pt").write_bytes(content(step))
        if step == 2:
            (save_dir / "train.log").write_bytes(content(step))

    save(1)
    save(2)
    return save_dir


def reasons(save_dir: Path) -> list[str]:
    load = load_checkpoint(save_dir)(lambda step: step)
    load()
    return [reason for _, reason in load.last_result.skipped]


@pytest.mark.parametrize("earlier_s", [0, 60])
@pytest.mark.parametrize("damage", [lambda data: bytes([data[0] ^ 1]) + data[1:], lambda data: data[:-1]])
def test_load__log_that_no_save_has_written_since_is_verified(
    saved: Path, restart: Restart, damage: Callable[[bytes], bytes], earlier_s: int
) -> None:
    """The time of a file with a flipped bit is that of its commit, or that of an older file which the bucket has."""
    path = saved / "train.log"
    written = path.stat().st_mtime_ns - earlier_s * 1_000_000_000
    path.write_bytes(damage(path.read_bytes()))
    os.utime(path, ns=(written, written))
    restart()
    (reason,) = reasons(saved)
    assert reason.startswith("train.log ")


@pytest.mark.parametrize("name", ["model_2.pt", "train.log"])
def test_load__pipe_in_place_of_a_file_is_damage(saved: Path, restart: Restart, name: str) -> None:
    (saved / name).unlink()
    os.mkfifo(saved / name)
    restart()
    assert reasons(saved) == [f"{name} is no longer a file"]


def test_load__files_of_the_step_alone_stay_required(saved: Path, restart: Restart) -> None:
    """Also while its log may be left out."""
    (saved / "train.log").write_bytes(b"?")
    (saved / "model_2.pt").write_bytes(content(3))
    restart()
    (reason,) = reasons(saved)
    assert reason.startswith("model_2.pt differs from what was saved")


def test_load__file_without_the_words_of_an_alias_stays_required(save_dir: Path, restart: Restart) -> None:
    save_steps(save_dir, "optimizer.pt", 1, write_half)
    restart()
    with pytest.raises(NoUsableCheckpoint, match=r"optimizer\.pt has 300 bytes instead of 900"):
        load_checkpoint(save_dir)(lambda step: step)()


@pytest.mark.parametrize("how", [Path.unlink, lambda path: os.truncate(path, 0)])
def test_find_damage__mount_may_show_less_than_there_is(
    saved: Path, how: Callable[[Path], object], restart: Restart
) -> None:
    how(saved / "train.log")
    restart()
    checkpoint = read_step(str(saved), "checkpoint", 2)
    assert verify.find_damage(checkpoint) is None
    assert verify.find_damage(checkpoint, may_show_less=True) is not None
