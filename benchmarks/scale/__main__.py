"""`python -m benchmarks.scale [--jobs 10000] [--database postgresql://…] [--growth] [--write]`: the whole table.

`--growth` measures the cost of a job at 100, 1,000 and 10,000 jobs instead. `--controllers 2` compares several
controllers with one, each limited to `--share` of a core (`controllers`). `--write` adds the table to
benchmarks/RESULTS.md; with `--growth` it also draws docs/figures/growth.svg.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from contextlib import redirect_stdout
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path

from benchmarks.latency import Figure, exit_code, report
from benchmarks.machine import Machine, print_machine
from benchmarks.scale import controllers, growth, scenarios
from benchmarks.scale.daemon import running_daemon
from benchmarks.scale.log_followers import followed

RESULTS = Path(__file__).parent.parent / "RESULTS.md"


def main() -> int:
    parser = argparse.ArgumentParser(description="One controller with many running jobs.")
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--database", default="", help="the URL of an empty PostgreSQL database; without it, SQLite")
    parser.add_argument("--growth", action="store_true", help="the cost of a job at 100, 1,000 and so on")
    parser.add_argument("--controllers", type=int, default=1, help="compare this number with one")
    parser.add_argument("--share", type=float, default=0.25, help="of a core for each controller; 0: no limit")
    parser.add_argument("--write", action="store_true", help=f"add the table to {RESULTS.name}")
    words = parser.parse_args()
    if words.controllers > 1 and not words.database:
        parser.error("--controllers: several need a PostgreSQL; give the URL of an empty database with --database")
    machine = print_machine()
    grown: list[growth.Growth] = []
    if words.controllers > 1:
        figures = asyncio.run(controllers.measure(words.jobs, words.database, words.controllers, words.share))
    elif words.growth:
        sizes = [size for size in growth.SIZES if size <= words.jobs]
        grown = [asyncio.run(growth.measure(size, words.database)) for size in sizes]
        figures = [figure for one in grown for figure in one.figures()]
    else:
        figures = asyncio.run(whole(words.jobs, words.database))
    text = StringIO()
    with redirect_stdout(text):
        report(figures)
    print(text.getvalue(), end="")
    if words.write:
        what = "growth" if words.growth else f"{words.jobs:,} jobs"
        what += f", {words.controllers} controllers" if words.controllers > 1 else ""
        write(text.getvalue(), f"{what}, {'PostgreSQL' if words.database else 'SQLite'}", machine)
        if grown:
            growth.draw(grown, day=str(datetime.now(UTC).date()))
    return exit_code(figures)


async def whole(jobs: int, database: str) -> list[Figure]:
    async with running_daemon(database) as daemon:
        figures = await scenarios.submitted(daemon, jobs)
        for measure in (
            scenarios.steady,
            followed,
            scenarios.noticed,
            scenarios.zone_dies,
            scenarios.broken,
            scenarios.silent,
            scenarios.shipped,
            scenarios.restarted,
            scenarios.cancelled,
        ):
            began = time.monotonic()
            figures += await measure(daemon)
            print(f"{measure.__name__}: {time.monotonic() - began:.0f} s", file=sys.stderr)
        return figures


def write(table: str, what: str, machine: Machine) -> None:
    """Append the table to RESULTS.md, with the date and the machine."""
    day = datetime.now(UTC).date()
    shared = "Daemon, load generator and database share the machine."
    with RESULTS.open("a") as file:
        file.write(f"\n## {day}: {what}\n\n{shared}\n\n```\n{machine}\n{table}```\n")


if __name__ == "__main__":
    sys.exit(main())
