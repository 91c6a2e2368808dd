"""`make bench`: what a command costs, and how long a job waits for its controller, measured on this machine.

Command cost is the CPU time of whole processes. Waiting times come from the jobs' own timelines, on the local cloud:
its machines boot immediately, so the rest is the controller's share. The peer's figures are SkyPilot's: its own
`--help`, and the limits that its own tests allow on real clouds.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from benchmarks.machine import print_machine

import perdure.sdk as perdure
from perdure.sdk.connection import api_types
from perdure.sdk.connection.endpoint import ClientError

RUNS = 5
TRIALS = 3
NOTICE_S = 5.0
TIMEOUT_S = 60.0
WORK = "trap 'exit 0' TERM; while :; do sleep 0.1; done"


@dataclass(frozen=True)
class Figure:
    """One line of the report. `value`, `target` and `peer` are in `unit`; `peer_text` describes the peer's figure.

    A negative target is a minimum.
    """

    name: str
    value: float
    unit: str
    target: float
    peer: float | None = None
    peer_text: str = ""

    @property
    def is_missed(self) -> bool:
        return self.value < -self.target if self.target < 0 else self.value > self.target


@dataclass(frozen=True)
class Cost:
    cpu_s: float
    peak_mib: float


def main() -> int:
    print_machine()
    with running_controller():
        figures = [*command_figures(), *recovery_figures()]
    report(figures)
    return exit_code(figures)


# --- what a command costs ---------------------------------------------------------------------------------------------


def command_figures() -> list[Figure]:
    help_cost = median_cost("--help")
    queue_cost = median_cost("jobs", "queue")
    return [
        Figure("perdure --help, CPU", help_cost.cpu_s, "s", 0.15, 4.0, "sky --help"),
        Figure("perdure --help, peak memory", help_cost.peak_mib, "MiB", 40.0),
        Figure("perdure jobs queue, CPU", queue_cost.cpu_s, "s", 0.30),
        Figure("perdure jobs queue, peak memory", queue_cost.peak_mib, "MiB", 60.0),
    ]


def median_cost(*words: str) -> Cost:
    measured = [cost(*words) for _ in range(RUNS)]
    return Cost(statistics.median(c.cpu_s for c in measured), statistics.median(c.peak_mib for c in measured))


def cost(*words: str) -> Cost:
    """CPU and peak memory of one whole process, from its start to its end, as counted by the kernel."""
    command = [sys.executable, "-I", "-S", "-c", MEASURE, Path(sys.executable).with_name("perdure"), *words]
    status, cpu_s, peak_kib = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    if status != 0:
        raise SystemExit(f"`perdure {' '.join(words)}` ended with {status}")
    return Cost(cpu_s, peak_kib / 1024)


# The kernel counts the memory of the process that forks as the child's, until it runs its own program. A bare
# interpreter therefore forks, which is smaller than anything that is measured here.
MEASURE = """
import os, posix, sys
silence = [(posix.POSIX_SPAWN_OPEN, 1, "/dev/null", os.O_WRONLY, 0)]
pid = posix.posix_spawn(sys.argv[1], sys.argv[1:], os.environ, file_actions=silence)
_, status, usage = os.wait4(pid, 0)
print([os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime, usage.ru_maxrss])
"""


# --- how long a job waits ---------------------------------------------------------------------------------------------


def recovery_figures() -> list[Figure]:
    trials = [trial() for _ in range(TRIALS)]
    submitted, noticed, killed, recovered = (statistics.median(times) for times in zip(*trials, strict=True))
    return [
        Figure("submit → RUNNING", submitted, "s", 2.0),
        Figure("notice given → replacement requested", noticed, "s", 0.5, 15.0, "polls every 15 s, reads no notice"),
        Figure("kill → RECOVERING", killed, "s", 2.0, 45.0, "allowed by its tests"),
        Figure("kill → RUNNING again", recovered, "s", 7.0, 200.0, "allowed by its tests"),
    ]


def trial() -> tuple[float, float, float, float]:
    """Launch a job with a cached bucket; preempt it with a notice, then without. Returns the seconds of each wait."""
    task = perdure.Task.from_yaml_config(
        {
            "name": "bench",
            "resources": {"use_spot": True},
            "file_mounts": {"/checkpoint": {"name": "perdure-bench", "mode": "MOUNT_CACHED"}},
            "run": WORK,
        }
    )
    job_id = perdure.jobs.launch(task).job_id
    first = running_attempt(job_id, 1)
    submitted_s = moment(first["running_at"]) - moment(perdure.jobs.get(job_id)["submitted_at"])

    noticed_at = time.time()
    perdure.jobs.preempt(job_id, notice_s=NOTICE_S)
    second = running_attempt(job_id, 2)
    noticed_s = moment(second["requested_at"]) - noticed_at

    killed_at = time.time()
    perdure.jobs.preempt(job_id, notice_s=None)
    third = running_attempt(job_id, 3)
    lost = [e["at"] for e in perdure.jobs.get(job_id)["timeline"] if e["kind"] == "attempt.lost"]
    killed_s = moment(lost[-1]) - killed_at
    recovered_s = moment(third["running_at"]) - killed_at

    perdure.jobs.cancel(job_id, graceful=False)
    perdure.jobs.wait(job_id, poll_s=0.1)
    return submitted_s, noticed_s, killed_s, recovered_s


def running_attempt(job_id: int, generation: int) -> api_types.Attempt:
    """The attempt of that number, once its workload runs."""
    matching: list[api_types.Attempt] = []

    def runs() -> bool:
        job = perdure.jobs.get(job_id)
        matching[:] = [a for a in job["attempts"] if a["generation"] == generation and a["running_at"]]
        return bool(matching)

    until(runs, f"attempt {generation} of job {job_id} runs")
    return matching[0]


def until(condition: Callable[[], bool], what: str) -> None:
    give_up_at = time.monotonic() + TIMEOUT_S
    while not condition():
        if time.monotonic() > give_up_at:
            raise SystemExit(f"waited {TIMEOUT_S:.0f} s until {what}, which did not happen")
        time.sleep(0.05)


def moment(text: str | None) -> float:
    assert text is not None
    return datetime.fromisoformat(text).timestamp()


# --- the controller, and the report -----------------------------------------------------------------------------------


@contextlib.contextmanager
def running_controller() -> Iterator[None]:
    """Run a controller with a temporary home, which is removed at the end."""
    home = tempfile.mkdtemp(prefix="perdure-bench-")
    for name in ("PERDURE_ENDPOINT", "PERDURE_TOKEN", "PERDURE_TOKEN_FILE"):
        os.environ.pop(name, None)
    os.environ["PERDURE_HOME"] = home
    try:
        perdure.jobs.queue()
        yield
    finally:
        with contextlib.suppress(ClientError):
            perdure.jobs.cancel(all=True, graceful=False)
            everything_gone()
        subprocess.run([sys.executable, "-m", "perdure.cli", "controller", "stop"], check=False, capture_output=True)
        shutil.rmtree(home, ignore_errors=True)


def everything_gone() -> None:
    ids = {job["job_id"] for job in perdure.jobs.queue()["jobs"]}
    until(
        lambda: all(a["state"] == "GONE" for job_id in ids for a in perdure.jobs.get(job_id)["attempts"]),
        "every machine is gone",
    )


def report(figures: list[Figure]) -> None:
    print(f"{'':38}{'here':>12}{'target':>12}{'SkyPilot':>12}{'ratio':>9}")
    for figure in figures:
        here, target = (f"{x:.2f} {figure.unit}" for x in (figure.value, figure.target))
        peer = f"{figure.peer:.1f} {figure.unit}" if figure.peer else "-"
        ratio = f"{figure.peer / figure.value:.0f} ×" if figure.peer and figure.value > 0 else "-"
        print(f"{figure.name:38}{here:>12}{target:>12}{peer:>12}{ratio:>9}   {figure.peer_text}")


def exit_code(figures: list[Figure]) -> int:
    """0 if no target is missed, else 1; then the figures that miss theirs are named on stderr."""
    missed = [figure.name for figure in figures if figure.is_missed]
    if missed:
        print(f"\nmissed: {', '.join(missed)}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
