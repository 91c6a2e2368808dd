"""What a hundred open dashboards cost a controller with many running jobs, and whether recoveries wait for them.

    python -m benchmarks.dashboard.viewers [--jobs 10000] [--viewers 100] [--logs 10] [--rounds 3]

Every tenth job prints a line a second. A viewer does what the page does: it follows the stream of hints, reads the list
of jobs when one that it shows changes, at most every 0.7 s, and every 30 s; some read a log, too. They are in a process
of their own. Each round measures the controller without them and then with them, so that other work on the computer
meets both; the figures are those of all rounds together. At the end the controller is killed while they watch.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gzip
import json
import random
import statistics
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.latency import Figure, exit_code, report
from benchmarks.machine import print_machine
from benchmarks.scale.daemon import Daemon, running_daemon
from benchmarks.scale.scenarios import notice_delays_s, restarted, steady, submitted

LIST = "/api/v1/jobs?limit=50&skip_finished=1&shared=1"
MIN_INTERVAL_S, POLL_S = 0.7, 30.0
RETRY_S = (0.25, 1.0, 2.0)
MAX_ADDED_CORES, MAX_RATIO, MAX_RESTART_S = 0.10, 1.10, 3.0
STEADY_S = 15.0
_CONNECT_S = 60.0


@dataclass
class Measured:
    """Of all rounds: the cores of the daemon while lines are printed, the milliseconds of its CPU time for each notice,
    and the seconds from each notice to the request."""

    cores: list[float] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)
    delays_s: list[float] = field(default_factory=list)

    @property
    def p99_s(self) -> float:
        return statistics.quantiles(self.delays_s, n=100)[98]

    def __str__(self) -> str:
        times = f"p50 {statistics.median(self.delays_s) * 1000:.0f} ms, p99 {self.p99_s * 1000:.0f} ms"
        return (
            f"{statistics.mean(self.cores):.3f} cores ({', '.join(f'{one:.3f}' for one in self.cores)}); "
            f"notice → request {times}; {statistics.mean(self.cpu_ms):.1f} ms of CPU a notice"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--viewers", type=int, default=100)
    parser.add_argument("--logs", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--watch", nargs=2, metavar=("PORT", "TOKEN_FILE"), help=argparse.SUPPRESS)
    words = parser.parse_args()
    if words.watch:
        asyncio.run(watch(int(words.watch[0]), Path(words.watch[1]), words.viewers, words.logs))
        return 0
    print_machine()
    figures = asyncio.run(measured(words.jobs, words.viewers, words.logs, words.rounds))
    report(figures)
    return exit_code(figures)


async def measured(jobs: int, viewers: int, logs: int, rounds: int) -> list[Figure]:
    without, watched, requests = Measured(), Measured(), 0
    async with running_daemon("") as daemon:
        await submitted(daemon, jobs)
        for number in range(rounds):
            await _measure(daemon, without, 2 * number)
            async with watching(daemon, viewers, logs) as counted:
                await _measure(daemon, watched, 2 * number + 1)
            requests += await counted
        print(f"without viewers: {without}")
        print(f"{viewers} viewers, {logs} of them with logs, who made {requests:,} requests: {watched}")
        async with watching(daemon, viewers, logs):
            serving = (await restarted(daemon))[0]
    added = statistics.mean(watched.cores) - statistics.mean(without.cores)
    return [
        Figure(f"{viewers} viewers: added to the daemon", added, "cores", MAX_ADDED_CORES),
        Figure("notice → request p99, times that without", watched.p99_s / without.p99_s, "", MAX_RATIO),
        Figure("killed while they watch → serving", serving.value, "s", MAX_RESTART_S),
    ]


async def _measure(daemon: Daemon, measured: Measured, seed: int) -> None:
    measured.cores.append((await steady(daemon, seconds=STEADY_S))[0].value)
    before_s = daemon.cpu_s
    delays_s = await notice_delays_s(daemon, seed=seed)
    measured.cpu_ms.append((daemon.cpu_s - before_s) * 1000 / len(delays_s))
    measured.delays_s += delays_s


@contextlib.asynccontextmanager
async def watching(daemon: Daemon, viewers: int, logs: int) -> AsyncIterator[asyncio.Future[int]]:
    """Viewers during the block. The future has, afterwards, how many requests they made."""
    pipe = asyncio.subprocess.PIPE
    options = [
        "--watch",
        str(daemon.address[1]),
        str(daemon.tokens / "token"),
        "--viewers",
        str(viewers),
        "--logs",
        str(logs),
    ]
    words = [sys.executable, "-m", "benchmarks.dashboard.viewers", *options]
    process = await asyncio.create_subprocess_exec(*words, stdin=pipe, stdout=pipe)
    assert process.stdout is not None
    requests: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    try:
        async with asyncio.timeout(_CONNECT_S):
            assert await process.stdout.readline() == b"ready\n", "the viewers did not connect"
        yield requests
    finally:
        output, _ = await process.communicate(b"")
        requests.set_result(int(output or 0))


async def watch(port: int, token: Path, viewers: int, logs: int) -> None:
    """Be the viewers until stdin ends; then print the number of requests."""
    one = Viewers(port, token.read_text().strip())
    tasks = [asyncio.create_task(one.view(number / viewers)) for number in range(viewers)]
    await one.all_follow(viewers)
    tasks += [asyncio.create_task(one.follow_log(job_id)) for job_id in one.shown[:logs]]
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    print(one.requests, flush=True)


class Viewers:
    """Browsers that show the list of jobs."""

    def __init__(self, port: int, token: str) -> None:
        self.requests = 0
        self.shown: list[int] = []
        self._port = port
        self._head = f"Host: 127.0.0.1:{port}\r\nAuthorization: Bearer {token}\r\n"
        self._following = 0

    async def all_follow(self, viewers: int) -> None:
        while self._following < viewers or not self.shown:
            await asyncio.sleep(0.05)

    async def view(self, phase: float) -> None:
        """One browser. `phase`: when its polls are, as a share of the interval."""
        changed = asyncio.Event()
        reading = asyncio.create_task(self._read_list(changed, phase))
        try:
            failures = 0
            while True:
                with contextlib.suppress(OSError, AssertionError, EOFError):
                    await self._follow(changed)
                    failures = 0
                wait_s = RETRY_S[min(failures, len(RETRY_S) - 1)]
                await asyncio.sleep(wait_s * random.uniform(0.5, 1.0))
                failures += 1
        finally:
            reading.cancel()

    async def _follow(self, changed: asyncio.Event) -> None:
        """Read the stream of hints until it ends."""
        reader, writer = await self._get("/api/v1/events")
        try:
            while line := await reader.readline():
                if line.startswith(b"event: hello"):
                    self._following += 1
                    changed.set()
                elif line.startswith(b"data: "):
                    ids = json.loads(line[6:]).get("ids")
                    if ids is None or set(ids) & set(self.shown):
                        changed.set()
        finally:
            writer.close()

    async def _read_list(self, changed: asyncio.Event, phase: float) -> None:
        loop = asyncio.get_running_loop()
        wait_s = POLL_S * phase
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(changed.wait(), wait_s)
            changed.clear()
            began = loop.time()
            with contextlib.suppress(OSError, EOFError):  # the page shows that the controller does not answer
                await self._read_once()
            await asyncio.sleep(max(0.0, began + MIN_INTERVAL_S - loop.time()))
            wait_s = POLL_S

    async def _read_once(self) -> None:
        # A connection of its own for each: the server closes those that are idle for some seconds.
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            writer.write(f"GET {LIST} HTTP/1.1\r\n{self._head}Accept-Encoding: gzip\r\n\r\n".encode())
            page = json.loads(gzip.decompress(await _body(reader)))
            self.shown = [job["job_id"] for job in page["jobs"]]
            self.requests += 1
        finally:
            writer.close()

    async def follow_log(self, job_id: int) -> None:
        reader, writer = await self._get(f"/api/v1/jobs/{job_id}/logs?follow=1&tail=5000")
        self.requests += 1
        try:
            while await reader.read(65536):
                pass
        finally:
            writer.close()

    async def _get(self, path: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        writer.write(f"GET {path} HTTP/1.1\r\n{self._head}\r\n".encode())
        status = await reader.readline()
        assert b" 200 " in status, status
        return reader, writer


async def _body(reader: asyncio.StreamReader) -> bytes:
    """The body of a response that says how long it is."""
    head = await reader.readuntil(b"\r\n\r\n")
    assert b" 200 " in head.partition(b"\r\n")[0], head
    length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    return await reader.readexactly(length)


if __name__ == "__main__":
    sys.exit(main())
