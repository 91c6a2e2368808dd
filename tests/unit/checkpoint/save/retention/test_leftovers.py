"""What saves left that were never committed is removed; what a save may still need stays."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perdure.checkpoint import Checkpointer, CheckpointError
from perdure.checkpoint.format import part_names
from perdure.checkpoint.format.part_names import Writer
from perdure.checkpoint.save.retention.leftovers import ABANDONED_S, Leftovers
from perdure.checkpoint.save.save_directory import SaveDirectory
from perdure.checkpoint.state import direct_io, streams
from support.helpers.timing import wait_until
from unit.checkpoint.training_program import Restart

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


def test_leftovers__next_save_after_a_kill_removes_them(tmp_path: Path) -> None:
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


def test_leftovers__part_of_a_living_process_stays(tmp_path: Path) -> None:
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


def test_leftovers__own_parts_and_other_series_stay(
    tmp_path: Path, part: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SKYPILOT_TASK_ID", "sky-managed-2026_x_1-0")
    monkeypatch.setenv("PERDURE_GENERATION", "3")
    this = Writer.current()
    earlier = replace(this, machine="0123456789abcdef", generation=2)
    stay = [part(this), part(earlier, "other"), tmp_path / ".tmp-mine"]
    stay[-1].write_bytes(b"x")
    goes = part(earlier)
    assert Leftovers("checkpoint").remove(SaveDirectory(str(tmp_path)), None) == [goes.name]
    assert [path.exists() for path in stay] == [True] * 3
    assert not goes.exists()


def age(path: Path, seconds: float) -> None:
    """Make the file older."""
    os.utime(path, ns=(0, path.stat().st_mtime_ns - int(seconds * 1e9)))


def save(directory: Path, step: int, keep: int = 5) -> None:
    with Checkpointer(directory, keep=keep) as checkpointer:
        checkpointer.save(step, {"step": step})


def add_parts(directory: Path, step: int, *, ranks: int, world: int, age_s: float) -> list[Path]:
    """Finished parts without a manifest, as a save leaves them that is killed before its commit."""
    paths = [directory / part_names.new_name("checkpoint", step, rank, world) for rank in range(ranks)]
    for path in paths:
        path.write_bytes(b"part")
        age(path, age_s)
    return paths


def test_leftovers__parts_of_an_incomplete_save_go_after_an_hour(tmp_path: Path) -> None:
    save(tmp_path, 1)
    old = add_parts(tmp_path, 2, ranks=1, world=2, age_s=ABANDONED_S + 10)
    fresh = add_parts(tmp_path, 3, ranks=1, world=2, age_s=ABANDONED_S - 60)
    other = tmp_path / part_names.new_name("other", 2, 0, 2)
    other.write_bytes(b"part")
    age(other, 2 * ABANDONED_S)
    save(tmp_path, 4)
    assert [path.exists() for path in (*old, *fresh, other)] == [False, True, True]
    assert Checkpointer(tmp_path).load() == {"step": 4}


def test_leftovers__parts_of_all_ranks_go_only_if_there_was_a_manifest_before_them(tmp_path: Path) -> None:
    lost = add_parts(tmp_path, 1, ranks=2, world=2, age_s=3 * ABANDONED_S)  # maybe a copy without `.perdure`
    save(tmp_path, 2)
    (manifest,) = (tmp_path / ".perdure").glob("*-000000000002-*.json")
    age(manifest, 2 * ABANDONED_S)
    killed = add_parts(tmp_path, 3, ranks=2, world=2, age_s=ABANDONED_S + 10)
    save(tmp_path, 4)
    assert [path.exists() for path in (*lost, *killed)] == [True, True, False, False]


def test_leftovers__listed_parts_stay_however_old_they_are(tmp_path: Path) -> None:
    save(tmp_path, 1)
    for path in tmp_path.glob("*.safetensors"):
        age(path, 10 * ABANDONED_S)
    save(tmp_path, 2)
    assert [one.step for one in Checkpointer(tmp_path).steps(verify=True)] == [2, 1]


def test_leftovers__nothing_goes_while_a_manifest_cannot_be_read(tmp_path: Path, restart: Restart) -> None:
    save(tmp_path, 1)
    (manifest,) = (tmp_path / ".perdure").glob("*.json")
    manifest.write_text("{")
    restart()
    parts = add_parts(tmp_path, 1, ranks=1, world=2, age_s=ABANDONED_S + 10)
    save(tmp_path, 2)
    assert parts[0].exists()


def test_leftovers__unfinished_files_of_other_machines_go_after_an_hour(
    tmp_path: Path, part: Callable[..., Path]
) -> None:
    save(tmp_path, 1)
    elsewhere = replace(Writer.current(), machine="0123456789abcdef")
    old, fresh, here = part(elsewhere), part(elsewhere), part(Writer.current())
    manifest = tmp_path / ".perdure" / ".tmp-checkpoint-000000000002-0a0b0c0d.json"
    manifest.write_text("{")
    for path in (old, here, manifest):
        age(path, ABANDONED_S + 10)
    save(tmp_path, 2)
    assert [path.exists() for path in (old, fresh, here, manifest)] == [False, True, True, False]


def test_save__that_fails_on_another_rank_leaves_no_part(tmp_path: Path) -> None:
    class OtherFails:
        rank, world_size = 0, 2

        def all_gather(self, topic: str, mine: Any) -> list[Any]:
            return [mine, {"value": None, "failure": "No space left on device"}]

    checkpointer = Checkpointer(tmp_path, sharded=True, group=OtherFails())
    with pytest.raises(CheckpointError, match="rank 1: No space left"):
        checkpointer.save(1, STATE)
    assert list(tmp_path.glob("*.safetensors")) == []


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
