"""Unfinished parts of killed saves are removed; parts that may still be written stay."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from perdure.checkpoint import Checkpointer
from perdure.checkpoint.format import part_names
from perdure.checkpoint.format.part_names import Writer
from perdure.checkpoint.load import shards
from perdure.checkpoint.state import direct_io, streams
from support.helpers.timing import wait_until

STATE = {"w": np.ones(streams.BLOCK_BYTES)}
MAX_NAME_BYTES = 255  # of Linux's file systems


def in_a_child(work: Callable[[], object]) -> int:
    """The PID of a process that does `work`."""
    child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os._exit(0)
    return child


def unfinished(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.glob(".tmp-*"))


def save_and_stop(directory: Path, signal_number: int) -> Callable[[], None]:
    """A save that is stopped by a signal while it writes its part."""

    def work() -> None:
        real = direct_io.write_at

        def write_at(descriptor: int, block: memoryview, offset: int) -> None:
            real(descriptor, block, offset)
            os.kill(os.getpid(), signal_number)

        direct_io.write_at = write_at
        Checkpointer(directory).save(2, STATE)

    return work


@pytest.fixture
def part(tmp_path: Path) -> Callable[[Writer, str], Path]:
    """Creates an unfinished part of `writer`."""

    def create(writer: Writer, prefix: str = "checkpoint") -> Path:
        path = tmp_path / writer.temporary_name(prefix)
        path.write_bytes(b"half")
        return path

    return create


def test_remove_leftovers__next_save_after_a_kill_removes_them(tmp_path: Path) -> None:
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(1, STATE)
    child = in_a_child(save_and_stop(tmp_path, signal.SIGKILL))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    (name,) = unfinished(tmp_path)
    assert f".{child}." in name
    with Checkpointer(tmp_path) as checkpointer:
        assert checkpointer.load()["w"].sum() == streams.BLOCK_BYTES
        checkpointer.save(2, STATE)
    assert unfinished(tmp_path) == []
    assert Checkpointer(tmp_path).latest() == 2


def is_zombie(pid: int) -> bool:
    """Whether all threads of a process have ended."""
    state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return state == "Z" and len(os.listdir(f"/proc/{pid}/task")) == 1


def test_remove_leftovers__part_of_a_living_process_stays(tmp_path: Path) -> None:
    child = in_a_child(save_and_stop(tmp_path, signal.SIGSTOP))
    try:
        os.waitpid(child, os.WUNTRACED)
        assert len(unfinished(tmp_path)) == 1
        with Checkpointer(tmp_path) as checkpointer:
            checkpointer.save(1, {"step": 1})
        assert len(unfinished(tmp_path)) == 1
    finally:
        os.kill(child, signal.SIGKILL)
    wait_until(lambda: is_zombie(child), "the writer's death, which its parent has not waited for yet")
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(2, {"step": 2})
    assert unfinished(tmp_path) == []
    os.waitpid(child, 0)


def test_remove_leftovers__own_parts_and_other_series_stay(
    tmp_path: Path, part: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SKYPILOT_TASK_ID", "sky-managed-2026_x_1-0")
    monkeypatch.setenv("PERDURE_GENERATION", "3")
    this = Writer.current()
    earlier = replace(this, machine="0123456789abcdef", generation=2)
    stay = [part(this), part(earlier, "other"), tmp_path / ".tmp-mine"]
    stay[-1].write_bytes(b"x")
    goes = part(earlier)
    shards.remove_leftovers(str(tmp_path), "checkpoint")
    assert [path.exists() for path in stay] == [True] * 3
    assert not goes.exists()


@pytest.mark.parametrize(
    ("changes", "is_dead"),
    [
        ({}, False),
        ({"pid": 2**22 + 1}, True),
        ({"started": 1}, True),  # its PID belongs to another process now
        ({"started": 0}, False),  # its start is not known
        ({"machine": "elsewhere"}, False),
        ({"machine": "elsewhere", "generation": 2}, True),
        ({"machine": "elsewhere", "generation": 4}, False),
        ({"machine": "elsewhere", "generation": 2, "task": "another"}, False),
        ({"machine": "", "generation": 2}, True),
        ({"generation": 2}, False),  # of an earlier generation, and still running here
    ],
)
def test_writer__is_dead_only_if_that_is_known(
    changes: dict[str, object], is_dead: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SKYPILOT_TASK_ID", "sky-managed-2026_x_1-0")
    monkeypatch.setenv("PERDURE_GENERATION", "3")
    this = Writer.current()
    assert replace(this, **changes).is_dead(this) is is_dead  # type: ignore[arg-type]


def test_writer__without_an_agent_generations_mean_nothing() -> None:
    this = Writer.current()
    assert (this.task, this.generation) == ("", 0)
    assert not replace(this, machine="elsewhere").is_dead(replace(this, generation=5))


@pytest.mark.parametrize("prefix", ["a" * 200, "模" * 66 + "ab"], ids=["long", "multi-byte"])
def test_write_part__accepts_a_long_prefix(tmp_path: Path, prefix: str, part: Callable[..., Path]) -> None:
    dead = part(replace(Writer.current(), task="0" * 16, pid=2**22 + 1), prefix)
    with Checkpointer(tmp_path, prefix=prefix) as checkpointer:
        checkpointer.save(1, STATE)
        assert checkpointer.load()["w"].sum() == streams.BLOCK_BYTES
    assert not dead.exists()
    longest = Writer("0" * 16, 10**4, "f" * 16, 2**22, 10**12)
    for name in (longest.temporary_name(prefix), part_names.new_name(prefix, 10**11, 1023, 1024)):
        assert len(os.fsencode(name)) <= MAX_NAME_BYTES


def test_temporary_name__has_the_writer_and_the_prefix() -> None:
    name = part_names.new_name("a-1.b", 12, 3, 4)
    for writer in (Writer("", 0, "", 1, 0), Writer("0f", 7, "ab", 123, 456)):
        temporary = writer.temporary_name("a-1.b")
        assert part_names.parse_temporary(temporary, "a-1.b") == writer
        assert part_names.parse_temporary(temporary, "a") is None, "the part of another series"
        assert temporary != writer.temporary_name("a-1.b")
    assert part_names.rank_and_world(name) == (3, 4)
    assert part_names.parse_temporary(name, "a-1.b") is None
    assert part_names.parse_temporary(".tmp-model.ckpt", "a-1.b") is None
