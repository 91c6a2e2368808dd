"""A process killed at any moment of a save leaves the step whole, or not at all."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from perdure.checkpoint import load_checkpoint, save_checkpoint, steps
from perdure.checkpoint.decorators import LoadFunction
from perdure.checkpoint.format import manifest
from perdure.checkpoint.save.retention import surplus_removal
from unit.checkpoint.training_program import Restart


def in_a_child(work: Callable[[], object]) -> int:
    """Run `work` in a child process; returns its exit code, which is 0 if `work` returns."""
    child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def die(*_args: object, **_options: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture
def write(save_dir: Path) -> Callable[[int], None]:
    def write(step: int) -> None:
        for part in ("model", "optimizer"):
            (save_dir / f"{part}_{step}.pt").write_bytes(part.encode() * 1000 + b"%d" % step)

    return write


@pytest.fixture
def load(save_dir: Path) -> LoadFunction[set[bytes]]:
    @load_checkpoint(save_dir)
    def load(step: int) -> set[bytes]:
        return {(save_dir / f"{part}_{step}.pt").read_bytes()[-1:] for part in ("model", "optimizer")}

    return load


# The function in which the process dies, and the step that a restart loads after steps 1 and 2 were saved and 3 was
# begun.
MOMENTS = {
    "before the manifest": (manifest, "write", 2),
    "before the manifest's content is on disk": (manifest, "_write_synced", 2),
    "before the manifest has its name": (manifest.os, "replace", 2),
    "after the manifest has its name": (manifest, "sync_directory", 2),  # of the data's folder: before the manifest
    "before anything old is removed": (surplus_removal, "remove_surplus", 3),
    "between an old manifest and its files": (surplus_removal, "_remove_files", 3),
    "after the first removed manifest": (surplus_removal, "_uncommit", 3),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_save__killed_leaves_the_last_whole_step(
    moment: str,
    save_dir: Path,
    write: Callable[[int], None],
    load: LoadFunction[set[bytes]],
    monkeypatch: pytest.MonkeyPatch,
    restart: Restart,
) -> None:
    save = save_checkpoint(save_dir, max_checkpoints=2)(write)
    save(1)
    save(2)
    owner, name, expected = MOMENTS[moment]

    def dying_save() -> None:
        setattr(owner, name, die)
        save(3)

    assert in_a_child(dying_save) == -signal.SIGKILL
    restart()
    assert load() == {b"%d" % expected}
    assert load.last_result.skipped == ()
    save(3)
    save(4)
    assert [(info.step, info.state) for info in steps(save_dir, verify=True)] == [(4, "committed"), (3, "committed")]


def test_save__killed_between_two_files(
    save_dir: Path, write: Callable[[int], None], load: LoadFunction[set[bytes]], restart: Restart
) -> None:
    save_checkpoint(save_dir)(write)(1)

    @save_checkpoint(save_dir)
    def save(step: int) -> None:
        (save_dir / f"model_{step}.pt").write_bytes(b"model")
        die()

    assert in_a_child(lambda: save(2)) == -signal.SIGKILL
    restart()
    assert load() == {b"1"}


@pytest.mark.parametrize("keep", [1, 3])
def test_save__killed_while_it_overwrites_an_alias(
    save_dir: Path, write: Callable[[int], None], load: LoadFunction[set[bytes]], restart: Restart, keep: int
) -> None:
    def write_with_alias(step: int) -> None:
        with open(save_dir / "latest.pt", "wb") as file:
            file.write(b"weights %d" % step)
            file.flush()
            if step == 3:
                die()
        write(step)

    save = save_checkpoint(save_dir, max_checkpoints=keep)(write_with_alias)
    save(1)
    save(2)
    assert in_a_child(lambda: save(3)) == -signal.SIGKILL
    restart()
    assert load() == {b"2"}
    assert load.last_result.skipped == ()
    save(4)
    assert load() == {b"4"}


def test_save__killed_while_a_step_is_saved_again(
    save_dir: Path, write: Callable[[int], None], load: LoadFunction[set[bytes]], restart: Restart
) -> None:
    save = save_checkpoint(save_dir)(write)
    save(1)
    save(2)

    @save_checkpoint(save_dir)
    def again(step: int) -> None:
        with open(save_dir / f"model_{step}.pt", "r+b") as file:
            file.write(b"MODEL")
            file.flush()
            die()

    assert in_a_child(lambda: again(2)) == -signal.SIGKILL
    restart()
    assert load() == {b"1"}
    save(2)
    assert load() == {b"2"}


def test_save__killed_in_the_first_save(save_dir: Path, load: LoadFunction[set[bytes]], restart: Restart) -> None:
    @save_checkpoint(save_dir)
    def save(step: int) -> None:
        (save_dir / f"model_{step}.pt").write_bytes(b"half")
        die()

    for _ in range(2):
        assert in_a_child(lambda: save(1)) == -signal.SIGKILL
        restart()
        assert load() is None
