"""`python -m benchmarks.scale.drought [--jobs 4000]`: what a minute costs while a cloud has no free machines.

A real daemon on SQLite, whose local cloud has one zone without room: every launch fails, and every job waits.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.latency import Figure, report
from benchmarks.machine import print_machine
from benchmarks.scale.queue import cpu_s
from benchmarks.scale.user import Caller, wait_until_ready

_CONFIG = "local:\n  zones:\n    local-a: {region: local, capacity: 0}\n"
_BATCH_SIZE = 500
_START_S = 60.0
_TASK = {"name": "train", "run": "train"}


def main() -> int:
    parser = argparse.ArgumentParser(description="A cloud without free machines.")
    parser.add_argument("--jobs", type=int, default=4000)
    parser.add_argument("--seconds", type=float, default=60.0)
    words = parser.parse_args()
    print_machine()
    home = Path(tempfile.mkdtemp(prefix="perdure-drought-"))
    (home / "config.yaml").write_text(_CONFIG)
    daemon = subprocess.Popen([sys.executable, "-m", "perdure.controller", "serve", "--home", home])
    try:
        figures = _measure(home, words.jobs, words.seconds)
    finally:
        daemon.terminate()
        daemon.wait()
        shutil.rmtree(home, ignore_errors=True)
    report(figures)
    return 1 if any(figure.value > figure.target for figure in figures) else 0


def _measure(home: Path, jobs: int, seconds: float) -> list[Figure]:
    ready = wait_until_ready(str(home), str(_START_S))
    if ready is None:
        raise SystemExit(f"the daemon did not start; see {home / 'controller.log'}")
    user = Caller(("127.0.0.1", ready["port"]), home / "token")
    before_s = cpu_s(ready["pid"])
    for first in range(0, jobs, _BATCH_SIZE):
        user.request("POST", "/api/v1/jobs", {"tasks": [_TASK], "num_jobs": min(_BATCH_SIZE, jobs - first)})
    time.sleep(seconds)
    cores = (cpu_s(ready["pid"]) - before_s) / seconds
    began = time.monotonic()
    Caller(("127.0.0.1", ready["port"]), home / "token").request("GET", "/api/v1/jobs?limit=50")
    page_s = time.monotonic() - began
    failed = (home / "controller.log").read_text().count('"launch.failed"')
    return [
        Figure(f"{jobs:,} jobs without a free machine", cores, "cores", 0.25),
        Figure("… failed launches per job", failed / jobs, "", 5.0),
        Figure("… a page of the queue meanwhile", page_s, "s", 0.5),
    ]


if __name__ == "__main__":
    sys.exit(main())
