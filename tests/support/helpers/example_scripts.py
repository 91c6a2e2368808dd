"""The examples' scripts, run on this machine with no controller."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

from support.helpers.ports import unused_port
from support.helpers.timing import scaled

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "examples"


def start(script: str, *arguments: object, run_dir: Path, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
    """`run_dir`: what an agent would share with it."""
    path = EXAMPLES / script
    return subprocess.Popen(
        [sys.executable, path.name, *map(str, arguments)],
        cwd=path.parent,
        env={
            **os.environ,
            "PERDURE_RUN_DIR": str(run_dir),
            "OMP_NUM_THREADS": "1",  # adds numbers up in one order
            "OPENBLAS_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
            **(env or {}),
        },
        stdout=subprocess.PIPE,
        text=True,
    )


def start_two(script: str, *arguments: object, run_dirs: list[Path]) -> list[subprocess.Popen[str]]:
    """Two ranks that find each other, as two nodes of a job would, by themselves or as torchrun would tell them."""
    addresses = f"{own_address()}\n127.0.0.1"
    torchrun = {"WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(unused_port())}
    nodes = [{"SKYPILOT_NODE_RANK": rank, "SKYPILOT_NODE_IPS": addresses, "RANK": rank} for rank in ("0", "1")]
    return [
        start(script, *arguments, run_dir=run_dir, env={**torchrun, **node})
        for run_dir, node in zip(run_dirs, nodes, strict=True)
    ]


def finish(process: subprocess.Popen[str], timeout_s: float = 60) -> list[str]:
    """The lines that it prints until it ends well."""
    try:
        output, _ = process.communicate(timeout=scaled(timeout_s))
    finally:
        process.kill()
    assert process.returncode == 0
    return output.splitlines()


def own_address() -> str:
    """A loopback address of this test process's own, so that tests that run side by side do not share a port."""
    number = os.getpid()
    address = f"127.{1 + number % 200}.{number // 200 % 250}.{1 + number // 50000 % 250}"
    with socket.create_server((address, 0)):
        return address
