"""Two nodes, each with a write-back mount of its own over one bucket, save and load together: a rank sees what the
other wrote only after its upload, and after its own mount has looked at the bucket again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.fuse, pytest.mark.slow, pytest.mark.timeout(600)]

BEGIN = """
    import json, os, sys
    from perdure.checkpoint import Checkpointer
    from perdure.checkpoint.folders import Folders
    from perdure.checkpoint.group import group_of
    directory, rank = sys.argv[1], int(os.environ["RANK"])
"""

SHARDED = """
    with Checkpointer(directory, sharded=True) as checkpointer:
        before = checkpointer.load()
        first = before["step"] if before else 0
        for step in (first + 1, first + 2):
            checkpointer.save(step, {"step": step, "rank": rank, "w": bytes([rank]) * 1000})
        durable = checkpointer.wait_durable(timeout_s=60)
    print(json.dumps([first, before and [before["rank"], len(before["w"])], durable]))
"""

FOLDERS = """
    folders = Folders(directory, group=group_of(directory))
    before = folders.newest()
    seen = before and sorted(name for name in os.listdir(before.path) if name.startswith("rank"))
    step = (before.step if before else 0) + 1
    with folders.saving(step) as path:
        with open(os.path.join(path, f"rank-{rank}.bin"), "wb") as file:
            file.write(bytes([rank]) * 1000)
    print(json.dumps([step, seen]))
"""


def run_on(nodes: list[Any], program: str) -> list[Any]:
    """What each rank of the program printed, one rank a node; the bucket has all that they wrote."""
    code, world = textwrap.dedent(BEGIN) + textwrap.dedent(program), {"WORLD_SIZE": str(len(nodes))}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(node.directory / "checkpoint")],
            env={**os.environ, **world, "RANK": str(rank), "PERDURE_RUN_DIR": str(node.directory / "run")},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, node in enumerate(nodes)
    ]
    said = []
    for process in ranks:
        out, err = process.communicate(timeout=400)
        assert process.returncode == 0, err[-3000:]
        said.append(json.loads(out.splitlines()[-1]))
    for mounts in nodes[0].made:  # as the agent does at the end of an attempt
        mounts.flush(None)
    return said


@pytest.fixture
def nodes(tmp_path: Path, node: Any, s3_bucket: Any) -> list[Any]:
    other = type(node)(tmp_path / "node" / "other", node.rclone)
    other.directory.mkdir()
    for one in (node, other):
        mounts = one.mounts(one.spec(s3_bucket, options={"vfs_write_back": "1s"}))
        mounts.mount_all()
        (one.directory / "run").mkdir()
        (one.directory / "run" / "mounts.json").write_text(json.dumps(mounts.describe()))
    node.made.extend(other.made)
    return [node, other]


def test_shards(nodes: list[Any]) -> None:
    assert run_on(nodes, SHARDED) == [[0, None, True], [0, None, True]]
    assert run_on(nodes, SHARDED) == [[2, [0, 1000], True], [2, [1, 1000], True]]


def test_a_folder_that_all_write_into(nodes: list[Any]) -> None:
    assert run_on(nodes, FOLDERS) == [[1, None], [1, None]]
    assert run_on(nodes, FOLDERS) == [[2, ["rank-0.bin", "rank-1.bin"]]] * 2
