"""Killed at any moment of a save: the step is there whole, or it is not there."""

from __future__ import annotations

import os
import signal

import pytest

from perdure.checkpoint import load_checkpoint, manifest, retention, save_checkpoint, steps


def in_a_child(work) -> int:
    """Run `work` in a process of its own; returns how it ended. One that lives on ends with 0."""
    child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def die(*_args, **_options):
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture
def write(save_dir):
    def write(step):
        for part in ("model", "optimizer"):
            (save_dir / f"{part}_{step}.pt").write_bytes(part.encode() * 1000 + b"%d" % step)

    return write


@pytest.fixture
def load(save_dir):
    @load_checkpoint(save_dir)
    def load(step):
        return {(save_dir / f"{part}_{step}.pt").read_bytes()[-1:] for part in ("model", "optimizer")}

    return load


# What is replaced by death, and the step that a restart then finds after steps 1 and 2 were saved and 3 was begun.
MOMENTS = {
    "before the manifest": (manifest, "write", 2),
    "before the manifest's content is on disk": (manifest, "_write_synced", 2),
    "before the manifest has its name": (manifest.os, "replace", 2),
    "after the manifest has its name": (manifest, "sync_directory", 2),  # of the data's folder: before the manifest
    "before anything old is removed": (retention, "apply", 3),
    "between an old manifest and its files": (retention, "_remove_files", 3),
    "after the first removed manifest": (retention, "_uncommit", 3),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_in_a_save(moment, save_dir, write, load, monkeypatch, restart):
    save = save_checkpoint(save_dir, max_checkpoints=2)(write)
    save(1)
    save(2)
    owner, name, expected = MOMENTS[moment]

    def dying_save():
        setattr(owner, name, die)
        save(3)

    assert in_a_child(dying_save) == -signal.SIGKILL
    restart()
    assert load() == {b"%d" % expected}
    assert load.last_result.skipped == ()
    save(3)
    save(4)
    assert [(info.step, info.state) for info in steps(save_dir, verify=True)] == [(4, "committed"), (3, "committed")]


def test_killed_between_two_files(save_dir, write, load, restart):
    save_checkpoint(save_dir)(write)(1)

    @save_checkpoint(save_dir)
    def save(step):
        (save_dir / f"model_{step}.pt").write_bytes(b"model")
        die()

    assert in_a_child(lambda: save(2)) == -signal.SIGKILL
    restart()
    assert load() == {b"1"}


def test_killed_while_a_step_is_saved_again(save_dir, write, load, restart):
    save = save_checkpoint(save_dir)(write)
    save(1)
    save(2)

    @save_checkpoint(save_dir)
    def again(step):
        with open(save_dir / f"model_{step}.pt", "r+b") as file:
            file.write(b"MODEL")
            file.flush()
            die()

    assert in_a_child(lambda: again(2)) == -signal.SIGKILL
    restart()
    assert load() == {b"1"}
    save(2)
    assert load() == {b"2"}


def test_killed_in_the_very_first_save(save_dir, load, restart):
    @save_checkpoint(save_dir)
    def save(step):
        (save_dir / f"model_{step}.pt").write_bytes(b"half")
        die()

    for _ in range(2):
        assert in_a_child(lambda: save(1)) == -signal.SIGKILL
        restart()
        assert load() is None
