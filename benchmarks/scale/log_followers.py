"""Users that follow a job's log: the time from when a workload prints a line until `perdure jobs logs` has written it.

Both moments are read from the clock of the load generator.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import statistics
import sys
import time
from collections.abc import AsyncIterator

from benchmarks.latency import Figure
from benchmarks.scale.daemon import Daemon
from benchmarks.scale.nodes import Node

_FOLLOWERS = 16
_STAMP = b"printed at "
_MAX_GAP_S = 0.03
_TIMEOUT_S = 60.0


async def followed(daemon: Daemon, *, seconds: float = 30.0) -> list[Figure]:
    """Some jobs are followed and print at random times; every tenth of the others prints a line per second."""
    living = daemon.world.living()
    nodes = random.Random(5).sample(living, min(_FOLLOWERS, len(living)))
    delays: list[float] = []
    async with contextlib.AsyncExitStack() as commands:
        for node in nodes:
            await commands.enter_async_context(_follower(daemon, node, delays))
        await _until_all_follow(nodes, delays)
        before_s, began = daemon.cpu_s, time.monotonic()
        others = [node for node in living if node not in nodes][::10]
        printed = await asyncio.gather(
            daemon.world.print_lines(others, seconds=seconds), *(_print(node, seconds) for node in nodes)
        )
        cores = (daemon.cpu_s - before_s) / (time.monotonic() - began)
        count = sum(filter(None, printed))
        if not await daemon.world.until(lambda: len(delays) >= count, _TIMEOUT_S):
            raise SystemExit(f"only {len(delays)} of {count} lines were shown")
    cuts = statistics.quantiles(delays, n=100)
    return [
        Figure("line printed → shown by jobs logs, p50", cuts[49] * 1000, "ms", 100.0),
        Figure("… p99", cuts[98] * 1000, "ms", 300.0),
        Figure("… slowest", max(delays) * 1000, "ms", 1000.0),
        Figure(f"… CPU with {len(nodes)} followers", cores, "cores", 0.6),
    ]


async def _until_all_follow(nodes: list[Node], delays: list[float]) -> None:
    """Wait until every command has shown a first line."""
    give_up_at = time.monotonic() + _TIMEOUT_S
    for node in nodes:
        _print_now(node)
    while len(delays) < len(nodes):
        if time.monotonic() > give_up_at:
            raise SystemExit(f"only {len(delays)} of {len(nodes)} commands showed a line")
        await asyncio.sleep(0.05)
    delays.clear()


async def _print(node: Node, seconds: float) -> int:
    """Print pairs of lines at random times, on average one pair per second. Returns the number of lines."""
    chance, count = random.Random(node.machine["id"]), 0
    ends_at = time.monotonic() + seconds
    while time.monotonic() + (pause_s := chance.expovariate(1.0)) < ends_at:
        for wait_s in (pause_s, chance.uniform(0.0, _MAX_GAP_S)):
            await asyncio.sleep(wait_s)
            _print_now(node)
            count += 1
    return count


def _print_now(node: Node) -> None:
    node.print_bytes(_STAMP + b"%.6f\n" % time.monotonic())


@contextlib.asynccontextmanager
async def _follower(daemon: Daemon, node: Node, delays: list[float]) -> AsyncIterator[None]:
    """Run the command in a process. For each line that it writes, append the seconds since its stamp to `delays`."""
    (host, port), token = daemon.address, (daemon.tokens / "token").read_text().strip()
    where = {"PERDURE_ENDPOINT": f"http://{host}:{port}", "PERDURE_TOKEN": token}
    command = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "perdure.cli", "jobs", "logs", str(node.machine["owner"][1])),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, **where},
    )
    reading = asyncio.create_task(_read(command.stdout, delays))
    try:
        yield
    finally:
        command.kill()
        await command.wait()
        await reading


async def _read(pipe: asyncio.StreamReader | None, delays: list[float]) -> None:
    assert pipe is not None
    while line := await pipe.readline():
        if line.startswith(_STAMP):
            delays.append(time.monotonic() - float(line.removeprefix(_STAMP)))
