"""Several processes that save and load together. Each test starts real ones, which communicate over torch.distributed
or over files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perdure.checkpoint import Checkpointer, NoUsableCheckpoint
from support.helpers.timing import scaled

PRELUDE = """
    import json, os, signal, sys
    import numpy as np
    from perdure.checkpoint import Checkpointer, CheckpointError, NoUsableCheckpoint
    from perdure.checkpoint.ranks.group import FilesGroup
    rank, world, root = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), sys.argv[1]
    if os.environ["HOW"] == "torch":
        import atexit
        import torch.distributed as dist
        dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=world)
        atexit.register(dist.destroy_process_group)  # else gloo's threads may abort the process at its end
        group = None
    else:
        group = FilesGroup(root, rank, world, timeout_s=float(os.environ.get("TIMEOUT", "60")))
    def report(**what):
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
        rendezvous = tmp_path / f"rendezvous-{len(processes)}"
        started = [
            subprocess.Popen(
                [sys.executable, "-c", code, str(tmp_path / "checkpoints"), str(rendezvous)],
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


def outputs(processes: list[subprocess.Popen[str]]) -> list[Any]:
    """The last line that each process printed, as JSON."""
    output = []
    for process in processes:
        out, err = process.communicate(timeout=scaled(120))
        assert process.returncode == 0, err
        output.append(json.loads(out.splitlines()[-1]))
    return output


SAVE = """
    with Checkpointer(root, group=group, sharded=True, asynchronous=bool(os.environ.get("ASYNC"))) as checkpointer:
        for step in (10, 20):
            checkpointer.save(step, mine(step))
    report(done=True)
"""
LOAD = """
    with Checkpointer(root, group=group, sharded=True) as checkpointer:
        try:
            state = checkpointer.load()
            result = checkpointer.last_result
            report(step=result.step, skipped=[s for s, _ in result.skipped], rank=state and state["rank"],
                 w=state and float(state["w"][0]))
        except CheckpointError as error:
            report(error=type(error).__name__, text=str(error))
"""


def shard(directory: Path, step: int, rank: int, world: int) -> Path:
    (loaded,) = directory.glob(f"checkpoint-{step:012d}-{rank}of{world}-*.safetensors")
    return loaded


@pytest.mark.parametrize("world", [2, 4])
def test_sharded_load__each_rank_loads_its_part(start: Start, world: int) -> None:
    outputs(start(world, SAVE, ASYNC="yes"))
    loaded = outputs(start(world, LOAD))
    assert loaded == [{"step": 20, "skipped": [], "rank": rank, "w": 2000.0 + rank} for rank in range(world)]


@pytest.mark.parametrize("how", ["files"], indirect=True)
def test_sharded_save__each_rank_reuses_what_did_not_change(start: Start, tmp_path: Path) -> None:
    program = """
        from perdure.checkpoint.save.parts import unchanged_arrays
        unchanged_arrays.MIN_ARRAY_BYTES = unchanged_arrays.MIN_FILE_BYTES = 4096
        frozen = np.random.default_rng(rank).random(2000)
        with Checkpointer(root, group=group, sharded=True, reuse_unchanged=True, keep=2) as checkpointer:
            for step in (1, 2, 3, 4):
                checkpointer.save(step, {**mine(step), "frozen": frozen})
            state = checkpointer.load()
            report(step=state["step"], same=bool((state["frozen"] == frozen).all()), rank=state["rank"])
    """
    assert outputs(start(2, program)) == [{"step": 4, "same": True, "rank": rank} for rank in range(2)]
    assert len(list((tmp_path / "checkpoints").glob("*.shared.safetensors"))) == 2
    sizes = [path.stat().st_size for path in (tmp_path / "checkpoints").glob("checkpoint-000000000004-?of2-*")]
    assert max(sizes) < 8000


def test_sharded_load__all_fall_back_if_one_cannot_read_its_part(start: Start, tmp_path: Path) -> None:
    outputs(start(2, SAVE))
    path = shard(tmp_path / "checkpoints", 20, 1, 2)
    content = bytearray(path.read_bytes())
    content[-1] ^= 4
    path.write_bytes(content)
    loaded = outputs(start(2, LOAD))
    assert [one["step"] for one in loaded] == [10, 10]
    assert [one["skipped"] for one in loaded] == [[20], [20]]
    shard(tmp_path / "checkpoints", 10, 0, 2).unlink()
    loaded = outputs(start(2, LOAD))
    assert [one["error"] for one in loaded] == ["NoUsableCheckpoint"] * 2


def test_sharded_load__another_number_of_processes_is_an_error(start: Start) -> None:
    outputs(start(2, SAVE))
    for one in outputs(start(3, LOAD)):
        assert one["error"] == "CheckpointError"
        assert "saved in 2 parts, and 3 are needed now" in one["text"]


def test_sharded_load__none_if_nothing_was_saved(start: Start) -> None:
    assert [one["step"] for one in outputs(start(2, LOAD))] == [None, None]


def test_unsharded_save__rank_0_saves_for_all(start: Start, tmp_path: Path) -> None:
    program = """
        with Checkpointer(root, group=group) as checkpointer:
            checkpointer.save(5, {"w": np.arange(5)})
            report(w=checkpointer.load()["w"].tolist())
    """
    assert outputs(start(3, program)) == [{"w": [0, 1, 2, 3, 4]}] * 3
    assert len(list((tmp_path / "checkpoints").glob("*.safetensors"))) == 1


@pytest.mark.parametrize("asynchronous", ["", "yes"])
def test_replicated_save__is_what_rank_0_has(start: Start, tmp_path: Path, asynchronous: str) -> None:
    """Each rank writes its share of what it has in common with rank 0. At step 4 an array differs elsewhere, at step 5
    the others have none."""
    program = """
        from perdure.checkpoint.save.parts import split_writer
        split_writer.MIN_ARRAY_BYTES = 4096
        def state(step):
            large = [np.full(1000 + number, step * 10 + number) for number in range(6)]
            if step == 4:
                large[3] += rank
            return {"rank": rank, "large": large if rank == 0 or step != 5 else [], "small": np.full(5, rank)}
        done = []
        is_asynchronous = bool(os.environ["ASYNC"])
        with Checkpointer(root, group=group, replicated=True, asynchronous=is_asynchronous, keep=2) as checkpointer:
            for step in (1, 2, 3, 4, 5):
                checkpointer.save(step, state(step))
                files = [len(info.files) for info in checkpointer.steps() if info.step == step]
                loaded = checkpointer.load(step=step)
                values = [sorted(set(array.tolist())) for array in loaded["large"]]
                done.append([step, *files, loaded["rank"], loaded["small"].tolist(), values])
        report(done=done)
    """
    expected = [
        [step, files, 0, [0] * 5, [[step * 10 + number] for number in range(6)]]
        for step, files in ((1, 4), (2, 4), (3, 4), (4, 4), (5, 2))
    ]
    assert outputs(start(3, program, ASYNC=asynchronous)) == [{"done": expected}] * 3
    names = [path.name for path in (tmp_path / "checkpoints").glob("*.safetensors")]
    assert sorted({int(name.split("-")[1]) for name in names}) == [4, 5]


@pytest.mark.parametrize("how", ["files"], indirect=True)
def test_replicated_save__failure_of_a_helper_is_raised_by_all(start: Start) -> None:
    program = """
        from perdure.checkpoint.load import part_files
        def full(*_):
            raise OSError(28, "No space left on device")
        with Checkpointer(root, group=group, replicated=True) as checkpointer:
            checkpointer.save(10, {"w": np.zeros(2**18)})
            if rank == 1:
                part_files.write_file = full
            try:
                checkpointer.save(20, {"w": np.zeros(2**18), "v": np.ones(2**18)})
            except CheckpointError as error:
                report(text=str(error), latest=checkpointer.latest(), files=len(os.listdir(root)))
    """
    for one in outputs(start(2, program)):
        assert "rank 1" in one["text"]
        assert "No space left" in one["text"]
        assert one["latest"] == 10


@pytest.mark.parametrize("how", ["files"], indirect=True)
def test_replicated_load__by_another_number_of_processes(start: Start, tmp_path: Path) -> None:
    program = """
        with Checkpointer(root, group=group, replicated=True) as checkpointer:
            checkpointer.save(1, {"w": [np.arange(2**18) + i for i in range(4)]})
        report(done=True)
    """
    outputs(start(2, program))
    directory = tmp_path / "checkpoints"
    assert len(list(directory.glob("*.split.safetensors"))) == 2
    into = {"w": [np.zeros(2**18, np.int64) for _ in range(4)]}
    Checkpointer(directory).load(into=into)
    assert [int(one[-1]) for one in into["w"]] == [2**18 - 1 + number for number in range(4)]
    split = max(directory.glob("*.split.safetensors"), key=lambda path: path.name)
    content = bytearray(split.read_bytes())
    content[-1] ^= 1
    split.write_bytes(content)
    with pytest.raises(NoUsableCheckpoint, match=split.name):
        Checkpointer(directory).load()


def test_sharded_save__failure_of_one_rank_is_raised_by_all(start: Start) -> None:
    program = """
        from perdure.checkpoint.load import part_files
        def full(*_):
            raise OSError(28, "No space left on device")
        with Checkpointer(root, group=group, sharded=True) as checkpointer:
            checkpointer.save(10, mine(10))
            if rank == 1:
                part_files.write_part = full
            try:
                checkpointer.save(20, mine(20))
            except CheckpointError as error:
                report(text=str(error), latest=checkpointer.latest())
    """
    for one in outputs(start(2, program)):
        assert "rank 1" in one["text"]
        assert "No space left" in one["text"]
        assert one["latest"] == 10


@pytest.mark.parametrize("how", ["files"], indirect=True)
def test_sharded_save__rank_killed_before_the_commit(start: Start, tmp_path: Path) -> None:
    outputs(start(2, SAVE))
    program = """
        from perdure.checkpoint.load import part_files
        real = part_files.write_part
        def die_after(*args):
            real(*args)
            os.kill(os.getpid(), signal.SIGKILL)
        if rank == 1:
            part_files.write_part = die_after
        with Checkpointer(root, group=group, sharded=True) as checkpointer:
            try:
                checkpointer.save(30, mine(30))
            except CheckpointError as error:
                report(text=str(error))
    """
    survivor, dead = start(2, program, TIMEOUT="3")
    (output,) = outputs([survivor])
    assert "no reply from rank 1" in output["text"]
    dead.wait(30)
    loaded = outputs(start(2, LOAD))
    assert [one["step"] for one in loaded] == [20, 20]
    outputs(start(2, SAVE.replace("(10, 20)", "(30, 40)")))
    assert [one["step"] for one in outputs(start(2, LOAD))] == [40, 40]
