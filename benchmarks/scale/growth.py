"""Measures and draws what a job costs its controller at different numbers of jobs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.latency import Figure
from benchmarks.scale import scenarios
from benchmarks.scale.daemon import running_daemon

SIZES = (100, 1_000, 10_000)
PICTURE = Path(__file__).parents[2] / "docs" / "figures" / "growth.svg"


@dataclass(frozen=True)
class Growth:
    """What a job costs among `jobs`: CPU time from submission to RUNNING (ms), memory while it runs (KiB)."""

    jobs: int
    cpu: Figure
    memory: Figure

    def figures(self) -> list[Figure]:
        return [Figure(f"{self.jobs:,}: {f.name}", f.value, f.unit, f.target) for f in (self.cpu, self.memory)]


async def measure(jobs: int, database: str) -> Growth:
    async with running_daemon(database) as daemon:
        return Growth(jobs, *(await scenarios.submitted(daemon, jobs))[-2:])


def draw(measured: Sequence[Growth], *, day: str, path: Path = PICTURE) -> None:
    """Draw two panels over the number of jobs. Equal figures produce an identical SVG."""
    import matplotlib
    from matplotlib.figure import Figure as Canvas

    rc = {"svg.hashsalt": "growth", "svg.fonttype": "none", "font.size": 10, "axes.spines.top": False}
    with matplotlib.rc_context({**rc, "axes.spines.right": False}):
        canvas = Canvas(figsize=(9, 3.2), layout="constrained")
        left, right = canvas.subplots(1, 2)
        jobs = [one.jobs for one in measured]
        _panel(left, jobs, [one.cpu for one in measured], "CPU of the daemon until a job runs, ms", "#1f77b4")
        _panel(right, jobs, [one.memory for one in measured], "memory of a running job, KiB", "#d62728")
        canvas.suptitle(f"One controller, {day}, {os.cpu_count()} cores, load generator beside it", fontsize=10)
        path.parent.mkdir(parents=True, exist_ok=True)
        canvas.savefig(path, metadata={"Date": None})


def _panel(axes: Any, jobs: Sequence[int], figures: Sequence[Figure], title: str, colour: str) -> None:
    values = [figure.value for figure in figures]
    axes.axhline(figures[0].target, color="#999999", linewidth=1, linestyle="--")
    axes.annotate("target", (jobs[0], figures[0].target), xytext=(0, 3), textcoords="offset points", color="#666666")
    axes.plot(jobs, values, marker="o", color=colour)
    for x, y in zip(jobs, values, strict=True):
        axes.annotate(f"{y:.1f}", (x, y), xytext=(6, 5), textcoords="offset points")
    axes.set_xscale("log")
    axes.set_xticks(jobs, [f"{count:,}" for count in jobs])
    axes.minorticks_off()
    axes.set_xlim(jobs[0] * 0.7, jobs[-1] * 2)
    axes.set_ylim(0, 1.15 * max(*values, figures[0].target))
    axes.set_xlabel("jobs")
    axes.set_title(title, fontsize=10)
