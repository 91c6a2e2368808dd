"""Controllers beside one another on one PostgreSQL: `python -m benchmarks.scale --controllers 2 --database …`.

The same jobs are submitted to one controller, and then to all of them in turn; nodes call one after the other, as a
balancer has them do. So half of what nodes say, or more, reaches its job's owner by the database. Each controller
is held to the same share of a core (`shares`); the database and the machines are not. How many jobs come to run in a
second with several, beside how many with one, is what is asked for.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.latency import Figure
from benchmarks.scale.daemon import Daemon
from benchmarks.scale.nodes import World
from benchmarks.scale.scenarios import TASK
from benchmarks.scale.server import Server
from benchmarks.scale.shares import hold, shared

_AT_ONCE = 50  # jobs a call: so are they spread evenly
_FIRST = 50
_PATIENCE_S = 900.0
_BUDGET_S = 0.012  # of CPU, for each job
_LEAST = 0.85  # of what one more controller is worth: two do 1.7 times the work of one; and of a share, that it is used


@dataclass(frozen=True)
class Rate:
    """`jobs_s`: jobs that came to run, a second. CPU in ms a job, `daemons_ms` of all controllers together. `used`: of
    the shares that they were held to."""

    controllers: int
    jobs_s: float
    daemons_ms: float
    database_ms: float
    used: float


async def measure(jobs: int, database: str, controllers: int, share: float) -> list[Figure]:
    """The table. Raises SystemExit where it can not be measured."""
    server = Server(database)
    if not server.is_empty():
        raise SystemExit(f"{database}: the benchmark clears its database, and this one is not empty; give another")
    rates, after = [], []
    for count in (1, controllers):
        async with several(database, count, share) as daemons:
            rates.append(await _rate(daemons, server, jobs, share))
            _say(rates[-1], share)
            if count > 1:
                after = await _one_dies(daemons)
        server.clear()
    return [*_figures(rates[0], rates[1], share, server), *after]


def _figures(one: Rate, many: Rate, share: float, server: Server) -> list[Figure]:
    count = many.controllers
    by_cost = count * one.daemons_ms / many.daemons_ms
    ratio = [Figure(f"{count} beside 1, by their CPU", by_cost, "×", -_LEAST * count)]
    if share:
        held = f"held to {share:.0%} of a core each"
        ratio = [
            Figure(f"1, {held}", one.jobs_s, "jobs/s", -share / _BUDGET_S),
            Figure(f"{count}, the same", many.jobs_s, "jobs/s", -_LEAST * count * share / _BUDGET_S),
            Figure("… of their shares used, the least", 100 * min(one.used, many.used), "%", -_LEAST * 100),
            Figure(f"{count} beside 1", many.jobs_s / one.jobs_s, "×", -_LEAST * count),
            *ratio,
        ]
    both, most_ms = (one, many), _BUDGET_S * 1000
    costs = [Figure(f"CPU of {r.controllers} for each job", r.daemons_ms, "ms", most_ms) for r in both]
    if server.is_here:
        costs += [Figure(f"… of the database, with {r.controllers}", r.database_ms, "ms", most_ms) for r in both]
    return [*ratio, *costs]


def _say(rate: Rate, share: float) -> None:
    used = f", {rate.used:.0%} of their shares used" if share else ""
    print(f"{rate.controllers} controller(s): {rate.jobs_s:.1f} jobs/s{used}", file=sys.stderr)


@contextlib.asynccontextmanager
async def several(database: str, count: int, share: float) -> AsyncIterator[list[Daemon]]:
    """`count` controllers that run, each held to `share` of a core (0: not held), and nothing left of them."""
    with tempfile.TemporaryDirectory(prefix="perdure-scale-") as folder, contextlib.ExitStack() as stack:
        homes = [Path(folder, f"controller-{number}") for number in range(count)]
        world = World(Path(folder, "cloud.sock"))
        await world.begin()
        for home in homes:
            home.mkdir()
        daemons = [Daemon(home, world, database, Path(folder, "keyring")) for home in homes]
        try:
            for number, daemon in enumerate(daemons):
                group = stack.enter_context(shared(str(number), share)) if share else None
                if share and group is None:
                    raise SystemExit("no cgroup can be made here: be root, or say --share 0 to compare CPU times alone")
                stack.callback(daemon.stop)
                await daemon.start()
                if group is not None:
                    hold(group, daemon.pid)
            yield daemons
        finally:
            await world.end()


async def _rate(daemons: Sequence[Daemon], server: Server, jobs: int, share: float) -> Rate:
    """Submit `jobs`, and wait until all of them run. Some go before, that make each daemon build what it keeps."""
    await _run(daemons, _FIRST * len(daemons))
    before_s, before_database_s, began = sum(d.cpu_s for d in daemons), server.cpu_s, time.monotonic()
    await _run(daemons, jobs)
    all_s, spent_s = time.monotonic() - began, sum(d.cpu_s for d in daemons) - before_s
    used = spent_s / (all_s * share * len(daemons)) if share else 0.0
    await asyncio.sleep(5.0)  # the last of them is written down
    cpu_s, database_s = sum(d.cpu_s for d in daemons) - before_s, server.cpu_s - before_database_s
    return Rate(len(daemons), jobs / all_s, cpu_s * 1000 / jobs, database_s * 1000 / jobs, used)


async def _run(daemons: Sequence[Daemon], jobs: int) -> None:
    world = daemons[0].world
    wanted = len(world.running_at) + jobs
    await asyncio.gather(*(_submit(daemon, part) for daemon, part in zip(daemons, _parts(jobs, daemons), strict=True)))
    if not await world.until(lambda: len(world.running_at) >= wanted, _PATIENCE_S):
        raise SystemExit(f"only {len(world.running_at)} of {wanted} jobs ran: {dict(world.counts)}")


def _parts(jobs: int, daemons: Sequence[Daemon]) -> list[int]:
    return [len(range(number, jobs, len(daemons))) for number in range(len(daemons))]


async def _submit(daemon: Daemon, count: int) -> None:
    for first in range(0, count, _AT_ONCE):
        await daemon.ask("POST", "/api/v1/jobs", {"tasks": [TASK], "num_jobs": min(_AT_ONCE, count - first)})


async def _one_dies(daemons: Sequence[Daemon]) -> list[Figure]:
    """The last controller is killed: its nodes call the others, who take over its jobs."""
    world, dead = daemons[0].world, daemons[-1]
    running, launched = len(world.living()), len(world.launched_at)
    began = time.monotonic()
    dead.kill()
    world.addresses.pop(dead.home)
    moved = [node for node in world.living() if node.at == dead.address]
    if not await world.until(lambda: all(n.is_welcome and n.at != dead.address for n in moved), _PATIENCE_S):
        raise SystemExit(f"of {len(moved)} nodes that called it, {sum(n.is_welcome for n in moved)} are heard again")
    heard_s = time.monotonic() - began
    await asyncio.sleep(max(0.0, 30.0 - heard_s))  # its lease has run out, and its jobs are looked at
    bought = len(world.launched_at) - launched
    before = len(world.launched_at)
    told = time.monotonic()
    taken = world.living()[:: max(1, running // 50)]
    for node in taken:
        node.give_notice(30.0)
    if not await world.until(lambda: len(world.launched_at) >= before + len(taken), _PATIENCE_S):
        raise SystemExit(f"{len(taken)} were told of their end, and {len(world.launched_at) - before} replaced")
    return [
        Figure("one is killed → its nodes are heard", heard_s, "s", 20.0),
        Figure("… machines bought again", bought, "", 0.0),
        Figure(f"… {len(taken)} notices then → replaced", time.monotonic() - told, "s", 15.0),
    ]
