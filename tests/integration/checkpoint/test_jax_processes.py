"""Processes of jax.distributed are ranks: each saves and loads its own part."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from support.helpers.timing import scaled

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

PROGRAM = """
import sys
import jax
rank, port, root = int(sys.argv[1]), sys.argv[2], sys.argv[3]
jax.distributed.initialize(f"127.0.0.1:{port}", 2, rank)
from perdure.checkpoint import Checkpointer
with Checkpointer(root, sharded=True) as checkpointer:
    state = checkpointer.load() or {"step": 0, "rank": rank, "w": jax.numpy.full(5, rank)}
    print(state["step"], state["rank"], state["w"].tolist(), flush=True)
    checkpointer.save(state["step"] + 1, {**state, "step": state["step"] + 1})
"""


def test_checkpointer__of_two_jax_processes(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    for step in (0, 1):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        ranks = [
            subprocess.Popen(
                [sys.executable, "-c", PROGRAM, str(rank), str(port), str(tmp_path)], stdout=subprocess.PIPE, text=True
            )
            for rank in range(2)
        ]
        outputs = [rank.communicate(timeout=scaled(120))[0] for rank in ranks]
        assert [output.splitlines()[-1] for output in outputs] == [f"{step} {r} {[r] * 5}" for r in range(2)]
    assert len(list(tmp_path.glob("*of2-*.safetensors"))) == 4
