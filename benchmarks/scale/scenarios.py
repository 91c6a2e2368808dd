"""The measurements of one controller with many running jobs. Each is a function that returns figures with targets.

Times are of the monotonic clock of this process, where the machines are; CPU and memory are the daemon's, as the kernel
counts them. A replacement counts as requested when the simulated cloud has been asked for it.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Callable, Sequence

from benchmarks.latency import Figure
from benchmarks.scale.daemon import LAUNCH_S, Daemon
from benchmarks.scale.nodes import Node

TASK = {"name": "train", "run": "train", "resources": {"use_spot": True, "job_recovery": "FAILOVER"}}
_TIMEOUT_S = 600.0
_BATCH_SIZE = 1000
_USERS = 4
_PEER_RUNNING_S = 280.0  # SkyPilot: 200 jobs with launches of 50 ms
_PAGE_TARGET_S = 0.5  # for a page of the queue, whatever else the daemon is doing
_PEER_JOB_KIB = 182 * 1024 / 200


async def submitted(daemon: Daemon, count: int) -> list[Figure]:
    """`count` jobs from nothing to RUNNING: some one by one, the others a thousand per call."""
    world, before_mib, before_s = daemon.world, daemon.memory_mib, daemon.cpu_s
    singles = min(1000, count // 5)
    began = time.monotonic()
    one_by_one_s, calls_s = await daemon.submit({"tasks": [TASK]}, count=singles, users=_USERS)
    left, slowest_s = count - len(calls_s), 0.0
    pages_s: list[float] = []
    async with daemon.queue_polled(pages_s):
        while left > 0:
            asked = time.monotonic()
            await daemon.request("POST", "/api/v1/jobs", {"tasks": [TASK], "num_jobs": min(_BATCH_SIZE, left)})
            slowest_s, left = max(slowest_s, time.monotonic() - asked), left - _BATCH_SIZE
        if not await world.until(lambda: len(world.running_at) >= count, _TIMEOUT_S):
            raise SystemExit(f"only {len(world.running_at)} of {count} jobs ran: {dict(world.counts)}")
    all_s = time.monotonic() - began
    await asyncio.sleep(5.0)  # until the last events are stored
    kib = (daemon.memory_mib - before_mib) * 1024 / count
    peer_s = _PEER_RUNNING_S * count / 200
    return [
        Figure("submitted one by one, per job", one_by_one_s / len(calls_s) * 1000, "ms", 5.0),
        Figure(f"… one call, {_USERS} users at once, p99", _p99(calls_s) * 1000, "ms", 200.0),
        Figure("submitted by 1,000, per call", slowest_s, "s", 6.0),
        Figure(f"{count:,} submitted → all RUNNING", all_s, "s", 120.0, peer_s, "scaled from 200 in 280 s"),
        Figure("… a page of the queue meanwhile, p99", _p99(pages_s), "s", _PAGE_TARGET_S),
        Figure("CPU of the daemon per job", (daemon.cpu_s - before_s) * 1000 / count, "ms", 12.0),
        Figure("memory per running job", kib, "KiB", 40.0, _PEER_JOB_KIB, "182 MiB for 200"),
    ]


async def steady(daemon: Daemon, *, seconds: float = 30.0) -> list[Figure]:
    """Only heartbeats, and a line of log per second from every tenth job."""
    world = daemon.world
    world.log_delays.clear()
    missed, began, before_s = world.counts["missed heartbeats"], time.monotonic(), daemon.cpu_s
    await world.print_lines(world.living()[::10], seconds=seconds)
    cores = (daemon.cpu_s - before_s) / (time.monotonic() - began)
    return [
        Figure("steady, with a line a second from 10 %", cores, "cores", 0.6),
        Figure("… memory of the daemon", daemon.memory_mib, "MiB", 700.0),
        Figure("… missed heartbeats", world.counts["missed heartbeats"] - missed, "", 0.0),
        Figure("… line printed → stored, p99", _p99(world.log_delays), "s", 0.3),
    ]


async def noticed(daemon: Daemon) -> list[Figure]:
    """Single machines receive a preemption notice, one after another."""
    delays = await notice_delays_s(daemon)
    return [Figure("notice → replacement requested, p99", _p99(delays), "s", 1.0, 15.0, "polls every 15 s")]


async def notice_delays_s(daemon: Daemon, *, count: int = 200, each_s: float = 0.05, seed: int = 1) -> list[float]:
    """The seconds from each notice until a replacement was requested. Ends when all replacements run."""
    taken = random.Random(seed).sample(daemon.world.living(), count)
    noticed_at: dict[int, float] = {}
    for node in taken:
        noticed_at[_job(node)] = time.monotonic()
        node.give_notice(30.0)
        await asyncio.sleep(each_s)
    return await _replaced(daemon, noticed_at)


async def zone_dies(daemon: Daemon, *, count: int = 1000) -> list[Figure]:
    """Many machines receive a preemption notice at once."""
    taken = random.Random(2).sample(daemon.world.living(), min(count, len(daemon.world.living()) // 2))
    noticed_at = {_job(node): time.monotonic() for node in taken}
    pages_s: list[float] = []
    async with daemon.queue_polled(pages_s):
        for node in taken:
            node.give_notice(30.0)
        delays = await _replaced(daemon, noticed_at)
    return [
        Figure(f"{len(taken):,} notices → all requested", max(delays), "s", 15.0),
        Figure("… a page of the queue meanwhile, p99", _p99(pages_s), "s", _PAGE_TARGET_S),
    ]


async def broken(daemon: Daemon, *, count: int = 100, each_s: float = 0.05) -> list[Figure]:
    """Machines are preempted without a notice: their connections break."""
    lost: dict[int, float] = {}
    for node in random.Random(3).sample(daemon.world.living(), count):
        lost[_job(node)] = time.monotonic()
        daemon.world.preempt([node])
        await asyncio.sleep(each_s)
    delays = await _replaced(daemon, lost)
    return [Figure("machine gone → replacement requested, p99", _p99(delays), "s", 3.0, 45.0, "allowed by its tests")]


async def silent(daemon: Daemon, *, count: int = 20) -> list[Figure]:
    """Machines freeze: their connections stay open, and they send nothing."""
    taken = random.Random(4).sample(daemon.world.living(), count)
    lost = {_job(node): time.monotonic() for node in taken}
    daemon.world.freeze(taken)
    delays = await _replaced(daemon, lost)
    return [
        Figure("machine silent → replacement requested, p99", _p99(delays), "s", 30.0, 45.0, "allowed by its tests")
    ]


async def shipped(daemon: Daemon, *, nodes: int = 64, seconds: float = 10.0) -> list[Figure]:
    """Some nodes print as fast as the daemon stores it."""
    frame = (b"x" * 127 + b"\n") * 256  # 32 KiB, as agents cut it
    printing = daemon.world.living()[:nodes]
    daemon.world.log_delays.clear()
    before = sum(node.log_size for node in printing)
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        for node in printing:
            if len(node.printed_at) < 4:
                node.print_bytes(frame)
        await asyncio.sleep(0)
    took_s = time.monotonic() - began
    mb_s = (sum(node.log_size for node in printing) - before) / 1e6 / took_s
    return [Figure("logs shipped by 64 nodes at once", mb_s, "MB/s", -50.0)]


async def restarted(daemon: Daemon, *, begun: Callable[[], None] = lambda: None) -> list[Figure]:
    """Kill the daemon and restart it. Calls `begun` when the new process exists."""
    world = daemon.world
    running, launched = len(world.living()), len(world.launched_at)
    daemon.kill()
    for node in world.living():
        node.hang_up()
    began = time.monotonic()
    serving_s = await daemon.start(begun)
    await world.until(lambda: sum(node.is_welcome for node in world.living()) >= running, _TIMEOUT_S)
    return [
        Figure(f"killed with {running:,} running → serving", serving_s, "s", 3.0),
        Figure("… → every node reconnected", time.monotonic() - began, "s", 20.0),
        Figure("… machines launched again", len(world.launched_at) - launched, "", 0.0),
    ]


async def cancelled(daemon: Daemon) -> list[Figure]:
    """Cancel every job."""
    world = daemon.world
    running = len(world.living())
    began = time.monotonic()
    await daemon.request("POST", "/api/v1/jobs/cancel", {"all": True, "graceful": False})
    accepted_s = time.monotonic() - began
    if not await world.until(lambda: not world.living(), _TIMEOUT_S):
        raise SystemExit(f"{len(world.living())} machines are left after all jobs were cancelled")
    return [
        Figure(f"cancel of {running:,}, accepted", accepted_s, "s", 2.0),
        Figure("… → every machine terminated", time.monotonic() - began, "s", 60.0),
    ]


async def _replaced(daemon: Daemon, since: dict[int, float]) -> list[float]:
    """For each job, the seconds from `since` until its cloud was asked for another machine."""
    world = daemon.world
    delays: dict[int, float] = {}

    def all_replaced() -> bool:
        for id in list(world.new):
            job = _job(world.machines[id])
            if job in since and world.launched_at[id] > since[job]:
                delays[job] = world.launched_at[id] - LAUNCH_S - since[job]
        world.new.clear()
        return len(delays) == len(since)

    if not await world.until(all_replaced, _TIMEOUT_S):
        raise SystemExit(f"{len(since) - len(delays)} of {len(since)} jobs were not replaced")
    await world.until(
        lambda: all(world.machines[id].phase == "running" for id in world.launched_at if not world.machines[id].is_off),
        _TIMEOUT_S,
    )
    return list(delays.values())


def _job(node: Node) -> int:
    return int(node.machine["owner"][1])


def _p99(values: Sequence[float]) -> float:
    return statistics.quantiles(values, n=100)[98] if len(values) > 1 else max(values, default=0.0)
