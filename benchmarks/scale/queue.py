"""What the queue costs among many past jobs, measured on this machine: a real daemon, its HTTP API, the command.

    python -m benchmarks.scale.queue [--past 1000000] [--waiting 10000] [--database postgresql://…]

Runs a few real jobs, fills the database with copies of them (`benchmarks.scale.past_jobs`; some minutes and 5 GB for a
million), and starts the daemon anew. `--home DIR` keeps everything there and reuses it. The peer is SkyPilot
with 100,000 past jobs, as it was measured elsewhere.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.latency import Figure, cost, exit_code, median_cost, report
from benchmarks.machine import print_machine
from benchmarks.scale.originals import run_originals
from benchmarks.scale.past_jobs import fill

import perdure.sdk as perdure
from perdure.controller.store.engine.database import open_database
from perdure.sdk.connection import discovery
from perdure.sdk.connection.client import Client

CALLS = 200
PAGES: dict[str, dict[str, Any]] = {
    "newest 50": {},
    "50 in the middle": {"before": 500_000},
    "--skip-finished": {"skip_finished": True},
    "--status SUCCEEDED": {"statuses": ["SUCCEEDED"]},
    "--status RUNNING (none)": {"statuses": ["RUNNING"]},
    "--name (many)": {"name": "train-bert-7"},
    "--name (none)": {"name": "nobody"},
    "--name --status": {"name": "train-bert-7", "statuses": ["SUCCEEDED", "FAILED"]},
    "newest of a name": {"name": "train-bert-7", "limit": 1},
    # Of a million names 203,000 are different (`past_jobs`); in brackets, how many jobs match.
    "--name 'train-gpt-1234*' (111)": {"name": "train-gpt-1234*"},
    "--name 'train-*' (all)": {"name": "train-*"},
    "--name '*-7' (801)": {"name": "*-7"},
    "--name '*t-4321' (1)": {"name": "*t-4321"},
}
TARGET_MS = 20.0
# For a pattern that begins with a wildcard, the newest 50 matches may lie far back, and a rare one reads all names.
PATTERN_TARGET_MS = {"--name '*-7' (801)": 50.0, "--name '*t-4321' (1)": 150.0}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--past", type=int, default=1_000_000)
    parser.add_argument("--waiting", type=int, default=10_000)
    parser.add_argument("--database", help="the URL of an empty PostgreSQL database; without it, SQLite")
    parser.add_argument("--home", type=Path, help="where to keep everything; without it, a temporary folder")
    words = parser.parse_args()
    print_machine(words.home and words.home.parent)
    with perdure_home(words.home, words.database) as home:
        url = words.database or f"sqlite:///{home / 'perdure.db'}"
        if not (home / "filled").exists():
            prepare(url, past=words.past, waiting=words.waiting)
            (home / "filled").touch()
        with running_daemon():
            figures = [*page_figures(), *command_figures(), *whole_figures()]
    report(figures)
    return exit_code(figures)


@contextlib.contextmanager
def perdure_home(given: Path | None, database: str | None) -> Iterator[Path]:
    """Set PERDURE_HOME and the database's URL in the environment."""
    for name in ("PERDURE_ENDPOINT", "PERDURE_TOKEN", "PERDURE_TOKEN_FILE", "PERDURE_DATABASE_URL"):
        os.environ.pop(name, None)
    home = given or Path(tempfile.mkdtemp(prefix="perdure-bench-"))
    home.mkdir(parents=True, exist_ok=True)
    os.environ["PERDURE_HOME"] = str(home)
    if database:
        os.environ["PERDURE_DATABASE_URL"] = database
    try:
        yield home
    finally:
        if given is None:
            shutil.rmtree(home, ignore_errors=True)


@contextlib.contextmanager
def running_daemon() -> Iterator[None]:
    """Run the embedded controller until the end of the block."""
    perdure.jobs.queue()
    try:
        yield
    finally:
        subprocess.run([sys.executable, "-m", "perdure.cli", "controller", "stop"], check=False, capture_output=True)


def prepare(url: str, *, past: int, waiting: int) -> None:
    with running_daemon():
        run_originals()
    time.sleep(1.0)  # until the daemon has closed its database
    engine = open_database(url)
    filled = fill(engine, past=past, waiting=waiting)
    engine.dispose()
    print(
        f"{filled.past:,} past and {filled.waiting:,} waiting jobs, made in {filled.seconds:.0f} s\n", file=sys.stderr
    )


def page_figures() -> list[Figure]:
    """Milliseconds over loopback from the call until the response is decoded, and the daemon's CPU time for it, which
    does not depend on other work on this machine."""
    client = Client(discovery.ensure())
    pid = daemon_pid()
    figures = []
    calls: dict[str, Callable[[], object]] = {name: partial(client.jobs, **query) for name, query in PAGES.items()}
    for name, call in {**calls, "counts alone": client.controller}.items():
        taken_ms = []
        before_s = cpu_s(pid)
        for _ in range(CALLS):
            begun = time.perf_counter()
            call()
            taken_ms.append((time.perf_counter() - begun) * 1000)
        cpu_ms = (cpu_s(pid) - before_s) / CALLS * 1000
        is_page, target_ms = name == "newest 50", PATTERN_TARGET_MS.get(name, TARGET_MS)
        median_ms, p99_ms = statistics.median(taken_ms), statistics.quantiles(taken_ms, n=100)[98]
        figures += [
            Figure(f"{name}, p50", median_ms, "ms", target_ms, *((3000.0, "a page of 50") if is_page else ())),
            Figure(f"{name}, p99", p99_ms, "ms", 2 * target_ms),
            Figure(f"{name}, daemon's CPU", cpu_ms, "ms", target_ms, *((1100.0, "the same") if is_page else ())),
        ]
    return figures


def command_figures() -> list[Figure]:
    queue = median_cost("jobs", "queue")
    skipping = median_cost("jobs", "queue", "--skip-finished")
    return [
        Figure("perdure jobs queue, CPU", queue.cpu_s, "s", 0.30, 4.0, "sky jobs queue"),
        Figure("… --skip-finished, CPU", skipping.cpu_s, "s", 0.30),
        Figure("perdure jobs queue, peak memory", queue.peak_mib, "MiB", 60.0),
    ]


def whole_figures() -> list[Figure]:
    """`perdure jobs queue -a`. Times are scaled to 100,000 jobs, since the peer's are for that number."""
    pid = daemon_pid()
    Path(f"/proc/{pid}/clear_refs").write_text("5")  # forget the peak
    before_mib, before_s = memory_mib(pid, "VmRSS"), cpu_s(pid)
    begun = time.perf_counter()
    spent = cost("jobs", "queue", "-a")
    taken_s = time.perf_counter() - begun
    tasks = sum(Client(discovery.ensure()).controller()["jobs"].values())
    log_line(f"jobs queue -a: {tasks:,} tasks in {taken_s:.0f} s")
    share = 100_000 / tasks
    return [
        Figure("-a, for each 100,000 tasks", taken_s * share, "s", 5.0, 17.0, "all of 100,000"),
        Figure("-a, the same: CPU of the command", spent.cpu_s * share, "s", 5.0),
        Figure("-a, the same: CPU of the daemon", (cpu_s(pid) - before_s) * share, "s", 5.0),
        Figure("-a, peak memory of the command", spent.peak_mib, "MiB", 60.0, 611.0, "all of 100,000"),
        Figure("-a, memory added to the daemon", memory_mib(pid, "VmHWM") - before_mib, "MiB", 60.0),
    ]


def log_line(line: str) -> None:
    print(line, file=sys.stderr)


def daemon_pid() -> int:
    return Client(discovery.ensure()).controller()["pid"]


def memory_mib(pid: int, what: str) -> float:
    match = re.search(rf"{what}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert match is not None
    return int(match[1]) / 1024


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    sys.exit(main())
