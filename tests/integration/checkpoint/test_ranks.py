"""Several processes that save and load together: each test starts real ones, which meet over torch.distributed or over
files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

PRELUDE = """
    import json, os, signal, sys
    import numpy as np
    from perdure.checkpoint import Checkpointer, CheckpointError, NoUsableCheckpoint
    from perdure.checkpoint.group import FilesGroup
    rank, world, root = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), sys.argv[1]
    if os.environ["HOW"] == "torch":
        import atexit
        import torch.distributed as dist
        dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=world)
        atexit.register(dist.destroy_process_group)  # else gloo's threads may abort the process as it ends
        group = None
    else:
        group = FilesGroup(root, rank, world, timeout_s=float(os.environ.get("TIMEOUT", "60")))
    def tell(**what):
        print(json.dumps(what), flush=True)
    def mine(step):
        return {"step": step, "rank": rank, "w": np.full(1000, step * 100 + rank, dtype=np.float32)}
"""

Start = Callable[..., list[subprocess.Popen[str]]]


@pytest.fixture(params=["files", pytest.param("torch", marks=pytest.mark.long)])
def how(request: pytest.FixtureRequest) -> str:
    if request.param == "torch":
        pytest.importorskip("torch.distributed")
    return str(request.param)


@pytest.fixture
def start(tmp_path: Path, how: str) -> Iterator[Start]:
    """Start `world` processes of a program on the directory `checkpoints`."""
    processes: list[subprocess.Popen[str]] = []

    def start(world: int, program: str, **env: str) -> list[subprocess.Popen[str]]:
        code = textwrap.dedent(PRELUDE) + textwrap.dedent(program)
        meeting = tmp_path / f"meeting-{len(processes)}"
        started = [
            subprocess.Popen(
                [sys.executable, "-c", code, str(tmp_path / "checkpoints"), str(meeting)],
                env={**os.environ, "RANK": str(rank), "WORLD_SIZE": str(world), "HOW": how, **env},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(world)
        ]
        processes.extend(started)
        return started

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def answers(processes: list[subprocess.Popen[str]]) -> list[Any]:
    """The last line that each process printed, as JSON."""
    said = []
    for process in processes:
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        said.append(json.loads(out.splitlines()[-1]))
    return said


SAVE = """
    with Checkpointer(root, group=group, sharded=True, asynchronous=bool(os.environ.get("ASYNC"))) as checkpointer:
        for step in (10, 20):
            checkpointer.save(step, mine(step))
    tell(done=True)
"""
LOAD = """
    with Checkpointer(root, group=group, sharded=True) as checkpointer:
        try:
            state = checkpointer.load()
            result = checkpointer.last_result
            tell(step=result.step, skipped=[s for s, _ in result.skipped], rank=state and state["rank"],
                 w=state and float(state["w"][0]))
        except CheckpointError as error:
            tell(error=type(error).__name__, text=str(error))
"""


def shard(directory: Path, step: int, rank: int, world: int) -> Path:
    (found,) = directory.glob(f"checkpoint-{step:012d}-{rank}of{world}-*.safetensors")
    return found


@pytest.mark.parametrize("world", [2, 4])
def test_each_loads_what_it_saved(start: Start, world: int) -> None:
    answers(start(world, SAVE, ASYNC="yes"))
    found = answers(start(world, LOAD))
    assert found == [{"step": 20, "skipped": [], "rank": rank, "w": 2000.0 + rank} for rank in range(world)]


def test_all_go_back_when_one_can_not_read_its_part(start: Start, tmp_path: Path) -> None:
    answers(start(2, SAVE))
    path = shard(tmp_path / "checkpoints", 20, 1, 2)
    content = bytearray(path.read_bytes())
    content[-1] ^= 4
    path.write_bytes(content)
    found = answers(start(2, LOAD))
    assert [one["step"] for one in found] == [10, 10]
    assert [one["skipped"] for one in found] == [[20], [20]]
    shard(tmp_path / "checkpoints", 10, 0, 2).unlink()
    found = answers(start(2, LOAD))
    assert [one["error"] for one in found] == ["NoUsableCheckpoint"] * 2


def test_another_number_of_processes_is_told(start: Start) -> None:
    answers(start(2, SAVE))
    for one in answers(start(3, LOAD)):
        assert one["error"] == "CheckpointError"
        assert "saved in 2 parts, and 3 are wanted now" in one["text"]


def test_nothing_saved_yet_is_none_for_all(start: Start) -> None:
    assert [one["step"] for one in answers(start(2, LOAD))] == [None, None]


def test_one_saves_for_all_when_states_are_the_same(start: Start, tmp_path: Path) -> None:
    program = """
        with Checkpointer(root, group=group) as checkpointer:
            checkpointer.save(5, {"w": np.arange(5)})
            tell(w=checkpointer.load()["w"].tolist())
    """
    assert answers(start(3, program)) == [{"w": [0, 1, 2, 3, 4]}] * 3
    assert len(list((tmp_path / "checkpoints").glob("*.safetensors"))) == 1


def test_a_failure_of_one_is_raised_by_all(start: Start) -> None:
    program = """
        from perdure.checkpoint import shards
        def full(*_):
            raise OSError(28, "No space left on device")
        with Checkpointer(root, group=group, sharded=True) as checkpointer:
            checkpointer.save(10, mine(10))
            if rank == 1:
                shards.write = full
            try:
                checkpointer.save(20, mine(20))
            except CheckpointError as error:
                tell(text=str(error), latest=checkpointer.latest())
    """
    for one in answers(start(2, program)):
        assert "rank 1" in one["text"]
        assert "No space left" in one["text"]
        assert one["latest"] == 10


@pytest.mark.parametrize("how", ["files"], indirect=True)
def test_a_rank_that_dies_between_its_part_and_the_commit(start: Start, tmp_path: Path) -> None:
    answers(start(2, SAVE))
    program = """
        from perdure.checkpoint import shards
        real = shards.write
        def die_after(*args):
            real(*args)
            os.kill(os.getpid(), signal.SIGKILL)
        if rank == 1:
            shards.write = die_after
        with Checkpointer(root, group=group, sharded=True) as checkpointer:
            try:
                checkpointer.save(30, mine(30))
            except CheckpointError as error:
                tell(text=str(error))
    """
    survivor, dead = start(2, program, TIMEOUT="3")
    (said,) = answers([survivor])
    assert "no word of rank 1" in said["text"]
    dead.wait(30)
    found = answers(start(2, LOAD))
    assert [one["step"] for one in found] == [20, 20]
    answers(start(2, SAVE.replace("(10, 20)", "(30, 40)")))
    assert [one["step"] for one in answers(start(2, LOAD))] == [40, 40]
