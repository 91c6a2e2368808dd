"""Several controllers on one PostgreSQL, compared with one: `python -m benchmarks.scale --controllers 2 --database …`.

The same jobs are submitted to one controller, and then to all of them in turn. Nodes connect to the controllers in
turn, as behind a load balancer, so half or more of their reports reach the owner of their job through the database.
Each controller is limited to the same share of a core (`cgroups`); the database and the machines are not. The result is
the ratio of the jobs that start to run per second with several controllers to those with one.
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
from benchmarks.scale.cgroups import hold, shared
from benchmarks.scale.daemon import Daemon
from benchmarks.scale.nodes import World
from benchmarks.scale.postgres import Server
from benchmarks.scale.scenarios import TASK

_BATCH_SIZE = 50  # jobs per call; small, so that they are spread evenly
_WARM_UP_JOBS = 50
_TIMEOUT_S = 900.0
_CPU_BUDGET_S = 0.012  # of CPU, per job
_MIN_RATIO = 0.85  # two controllers must do at least 1.7 times the work of one, and use at least 85 % of their shares


@dataclass(frozen=True)
class Rate:
    """The throughput of some controllers, and what it cost."""

    controllers: int
    jobs_s: float  # jobs that started to run, per second
    daemons_ms: float  # CPU per job, of all controllers together
    database_ms: float  # CPU per job
    used: float  # part of the CPU shares that was used


async def measure(jobs: int, database: str, controllers: int, share: float) -> list[Figure]:
    """The table. Raises SystemExit if it cannot be measured."""
    server = Server(database)
    if not server.is_empty():
        raise SystemExit(f"{database}: the benchmark clears its database, and this one is not empty; give another")
    rates, after = [], []
    for count in (1, controllers):
        async with several(database, count, share) as daemons:
            rates.append(await _rate(daemons, server, jobs, share))
            _print_rate(rates[-1], share)
            if count > 1:
                after = await _one_dies(daemons)
        server.clear()
    return [*_figures(rates[0], rates[1], share, server), *after]


def _figures(one: Rate, many: Rate, share: float, server: Server) -> list[Figure]:
    count = many.controllers
    by_cost = count * one.daemons_ms / many.daemons_ms
    ratio = [Figure(f"{count} compared with 1, by CPU", by_cost, "×", -_MIN_RATIO * count)]
    if share:
        limit = f"limited to {share:.0%} of a core each"
        ratio = [
            Figure(f"1, {limit}", one.jobs_s, "jobs/s", -share / _CPU_BUDGET_S),
            Figure(f"{count}, the same", many.jobs_s, "jobs/s", -_MIN_RATIO * count * share / _CPU_BUDGET_S),
            Figure("… least part of a share used", 100 * min(one.used, many.used), "%", -_MIN_RATIO * 100),
            Figure(f"{count} compared with 1", many.jobs_s / one.jobs_s, "×", -_MIN_RATIO * count),
            *ratio,
        ]
    both, max_ms = (one, many), _CPU_BUDGET_S * 1000
    costs = [Figure(f"CPU of {r.controllers} per job", r.daemons_ms, "ms", max_ms) for r in both]
    if server.is_here:
        costs += [Figure(f"… of the database, with {r.controllers}", r.database_ms, "ms", max_ms) for r in both]
    return [*ratio, *costs]


def _print_rate(rate: Rate, share: float) -> None:
    used = f", {rate.used:.0%} of their shares used" if share else ""
    print(f"{rate.controllers} controller(s): {rate.jobs_s:.1f} jobs/s{used}", file=sys.stderr)


@contextlib.asynccontextmanager
async def several(database: str, count: int, share: float) -> AsyncIterator[list[Daemon]]:
    """Run `count` controllers, each limited to `share` of a core (0: not limited); afterwards stop and remove them."""
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
                    raise SystemExit("cannot create a cgroup: be root, or use --share 0 to compare CPU times alone")
                stack.callback(daemon.stop)
                await daemon.start()
                if group is not None:
                    hold(group, daemon.pid)
            yield daemons
        finally:
            await world.end()


async def _rate(daemons: Sequence[Daemon], server: Server, jobs: int, share: float) -> Rate:
    """Submit `jobs` and wait until all of them run, after a few that let each daemon fill its caches."""
    await _run(daemons, _WARM_UP_JOBS * len(daemons))
    before_s, before_database_s, began = sum(d.cpu_s for d in daemons), server.cpu_s, time.monotonic()
    await _run(daemons, jobs)
    total_s, spent_s = time.monotonic() - began, sum(d.cpu_s for d in daemons) - before_s
    used = spent_s / (total_s * share * len(daemons)) if share else 0.0
    await asyncio.sleep(5.0)  # until the last events are stored
    cpu_s, database_s = sum(d.cpu_s for d in daemons) - before_s, server.cpu_s - before_database_s
    return Rate(len(daemons), jobs / total_s, cpu_s * 1000 / jobs, database_s * 1000 / jobs, used)


async def _run(daemons: Sequence[Daemon], jobs: int) -> None:
    world = daemons[0].world
    wanted = len(world.running_at) + jobs
    await asyncio.gather(*(_submit(daemon, part) for daemon, part in zip(daemons, _parts(jobs, daemons), strict=True)))
    if not await world.until(lambda: len(world.running_at) >= wanted, _TIMEOUT_S):
        raise SystemExit(f"only {len(world.running_at)} of {wanted} jobs ran: {dict(world.counts)}")


def _parts(jobs: int, daemons: Sequence[Daemon]) -> list[int]:
    return [len(range(number, jobs, len(daemons))) for number in range(len(daemons))]


async def _submit(daemon: Daemon, count: int) -> None:
    for first in range(0, count, _BATCH_SIZE):
        await daemon.request("POST", "/api/v1/jobs", {"tasks": [TASK], "num_jobs": min(_BATCH_SIZE, count - first)})


async def _one_dies(daemons: Sequence[Daemon]) -> list[Figure]:
    """Kill the last controller: its nodes connect to the others, which take over its jobs."""
    world, dead = daemons[0].world, daemons[-1]
    running, launched = len(world.living()), len(world.launched_at)
    began = time.monotonic()
    dead.kill()
    world.addresses.pop(dead.home)
    orphaned = [node for node in world.living() if node.daemon_address == dead.address]
    if not await world.until(
        lambda: all(n.is_welcome and n.daemon_address != dead.address for n in orphaned), _TIMEOUT_S
    ):
        raise SystemExit(f"only {sum(n.is_welcome for n in orphaned)} of its {len(orphaned)} nodes have reconnected")
    reconnected_s = time.monotonic() - began
    await asyncio.sleep(max(0.0, 30.0 - reconnected_s))  # until its lease has expired and its jobs are adopted
    bought = len(world.launched_at) - launched
    before = len(world.launched_at)
    noticed_at = time.monotonic()
    taken = world.living()[:: max(1, running // 50)]
    for node in taken:
        node.give_notice(30.0)
    if not await world.until(lambda: len(world.launched_at) >= before + len(taken), _TIMEOUT_S):
        raise SystemExit(f"{len(taken)} nodes were preempted, but only {len(world.launched_at) - before} replaced")
    return [
        Figure("one killed → its nodes reconnected", reconnected_s, "s", 20.0),
        Figure("… machines launched again", bought, "", 0.0),
        Figure(f"… {len(taken)} notices later → replaced", time.monotonic() - noticed_at, "s", 15.0),
    ]
