"""Sharded states that are saved in the background, and loaded on another number of processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from integration.frameworks.programs import needs, run

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

PROGRAM = """
    import json, multiprocessing, os, pathlib, sys, torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.tensor import distribute_tensor, Shard
    from torch.distributed.device_mesh import init_device_mesh
    from perdure.checkpoint.adapters.dcp import DcpCheckpoints
    root = pathlib.Path(sys.argv[1])
    def state(fill):
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        return {"w": distribute_tensor(torch.full((24, 8), fill) + torch.arange(24.0)[:, None], mesh, [Shard(0)])}
    def save():
        with DcpCheckpoints(root / "c", keep=2, asynchronous=True) as checkpoints:
            for step in (1, 2, 3):
                mine = state(float(step))
                handle = checkpoints.save(step, mine)
                mine["w"].to_local().fill_(-1)  # training goes on
            handle.result(100)
            done = [handle.done(), handle.durable]
        return [*done, sorted(path.name for path in (root / "c").glob("dcp-*"))]
    def load():
        checkpoints, restored = DcpCheckpoints(root / "c"), state(0.0)
        step = checkpoints.load(restored)
        whole = restored["w"].full_tensor()
        return [step, float(whole[0, 0]), float(whole[23, 7])]
    def fail():
        checkpoints = DcpCheckpoints(root / "c", asynchronous=True)
        if dist.get_rank() == 1:
            dcp.FileSystemWriter.write_data = None  # what writes this rank's part
        handle = checkpoints.save(4, state(4.0))
        try:
            handle.result(100)
            failure = ""
        except BaseException as error:  # DCP's own derives from it
            failure = type(error).__name__
        checkpoints.wait()  # it was raised already
        return [bool(failure), handle.durable, checkpoints.load(state(0.0))]
    def member(rank, world, meeting, work, output):
        dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world)
        output.put(work())
        dist.destroy_process_group()
    def together(world, work):
        fork = multiprocessing.get_context("fork")  # torch is imported once
        output, meeting = fork.Queue(), root / f"meeting-{world}-{work.__name__}"
        members = [fork.Process(target=member, args=(rank, world, meeting, work, output)) for rank in range(world)]
        for one in members:
            one.start()
        answers = [output.get(timeout=200) for _ in members]
        for one in members:
            one.join()
        return answers
    alone = DcpCheckpoints(root / "alone", asynchronous=True)
    tensor = torch.ones(5)
    alone.save(7, {"x": tensor})
    tensor.fill_(2)
    single = {"x": torch.zeros(5)}
    output = {"alone": [alone.load(single), single["x"].tolist()]}
    alone.close()
    output |= {"saved": together(2, save), "loaded": together(3, load), "failed": together(2, fail)}
    print(json.dumps(output))
"""


def test_dcp__saves_in_the_background_and_loads_on_another_number_of_processes(tmp_path: Path) -> None:
    needs("torch")
    output = run(PROGRAM, tmp_path)
    assert output["alone"] == [7, [1.0] * 5]
    assert output["saved"] == [[True, True, ["dcp-2", "dcp-3"]]] * 2
    assert output["loaded"] == [[3, 3.0, 26.0]] * 3
    assert output["failed"] == [[True, False, 3]] * 2
