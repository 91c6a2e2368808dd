"""Two nodes, each with its own write-back mount of one bucket, save and load together. A rank sees the files of the
other only after their upload, and after its own mount has refreshed its listing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from integration.storage.buckets import S3Bucket
from integration.storage.node import Node
from support.helpers.timing import scaled

pytestmark = [pytest.mark.fuse, pytest.mark.slow, pytest.mark.timeout(600)]

BEGIN = """
    import json, os, sys
    from perdure.checkpoint import Checkpointer
    from perdure.checkpoint.folders import Folders
    from perdure.checkpoint.ranks.group import detect_group
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
    folders = Folders(directory, group=detect_group(directory))
    before = folders.newest()
    seen = before and sorted(name for name in os.listdir(before.path) if name.startswith("rank"))
    step = (before.step if before else 0) + 1
    with folders.saving(step) as path:
        with open(os.path.join(path, f"rank-{rank}.bin"), "wb") as file:
            file.write(bytes([rank]) * 1000)
    print(json.dumps([step, seen]))
"""


def run_on(nodes: list[Node], program: str) -> list[Any]:
    """The output of each rank of the program, with one rank per node. Their files are in the bucket at the end."""
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
    output = []
    for process in ranks:
        out, err = process.communicate(timeout=scaled(400))
        assert process.returncode == 0, err[-3000:]
        output.append(json.loads(out.splitlines()[-1]))
    for mounts in nodes[0].made:  # as the agent does at the end of an attempt
        mounts.flush(None)
    return output


@pytest.fixture
def nodes(tmp_path: Path, node: Node, s3_bucket: S3Bucket) -> list[Node]:
    other = type(node)(tmp_path / "node" / "other", node.rclone)
    other.directory.mkdir()
    for one in (node, other):
        mounts = one.mounts(one.spec(s3_bucket, options={"vfs_write_back": "1s"}))
        mounts.mount_all()
        (one.directory / "run").mkdir()
        (one.directory / "run" / "mounts.json").write_text(json.dumps(mounts.describe()))
    node.made.extend(other.made)
    return [node, other]


def test_two_nodes__load_shards_of_each_other(nodes: list[Node]) -> None:
    assert run_on(nodes, SHARDED) == [[0, None, True], [0, None, True]]
    assert run_on(nodes, SHARDED) == [[2, [0, 1000], True], [2, [1, 1000], True]]


def test_two_nodes__write_one_folder(nodes: list[Node]) -> None:
    assert run_on(nodes, FOLDERS) == [[1, None], [1, None]]
    assert run_on(nodes, FOLDERS) == [[2, ["rank-0.bin", "rank-1.bin"]]] * 2
