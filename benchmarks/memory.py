"""The memory of an idle controller: a real daemon, without a cloud and with each one. Measured on this machine.

    PYTHONPATH=tests python -m benchmarks.memory [--cloud none|aws|gcp|azure] [--idle 40]

Each daemon is new and creates its database. Its cloud is a fake of the tests in a separate process, called by the
real SDK. The daemon then idles long enough to fetch its prices and sweep twice.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.latency import Figure, exit_code, report
from benchmarks.machine import print_machine

from support.helpers.controllers import Controller, running_controller
from support.worlds.jobs_on_clouds import FAKES, running_jobs_on_clouds

TARGETS_MIB = {"none": 105.0, "aws": 120.0, "gcp": 180.0, "azure": 130.0}
KIB_PER_MIB = 1024


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--cloud", choices=TARGETS_MIB, action="append", help="default: each")
    parser.add_argument("--idle", type=float, default=40.0, help="seconds")
    words = parser.parse_args()
    print_machine()
    figures = [figure for cloud in words.cloud or TARGETS_MIB for figure in idle_figures(cloud, words.idle)]
    report(figures)
    return exit_code(figures)


def idle_figures(cloud: str, idle_s: float) -> list[Figure]:
    with idle_controller(cloud) as controller:
        pid = controller.client.controller()["pid"]
        time.sleep(idle_s)
        refuse_unused(controller, cloud)
        rss, pss = (mib(pid, "smaps_rollup", what) for what in ("Rss", "Pss"))
        peak, threads = mib(pid, "status", "VmHWM"), len(list(Path(f"/proc/{pid}/task").iterdir()))
    print(f"{cloud}: {threads} threads, at most {peak:.1f} MiB", file=sys.stderr)
    target = TARGETS_MIB[cloud]
    return [Figure(f"{cloud}: RSS", rss, "MiB", target), Figure(f"{cloud}: PSS", pss, "MiB", target)]


@contextlib.contextmanager
def idle_controller(cloud: str) -> Iterator[Controller]:
    with tempfile.TemporaryDirectory(prefix="perdure-bench-") as folder:
        if cloud in FAKES:
            with running_jobs_on_clouds(Path(folder), cloud) as one:
                yield one.controller
        else:
            home = Path(folder, "home")
            home.mkdir()
            with running_controller(home) as controller:
                yield controller


def refuse_unused(controller: Controller, cloud: str) -> None:
    """Fail if the cloud cannot be used, since it would then cost nothing."""
    if cloud in FAKES and (answer := controller.perdure("check", cloud, check=False)).returncode != 0:
        raise SystemExit(answer.stdout + answer.stderr)


def mib(pid: int, file: str, what: str) -> float:
    match = re.search(rf"^{what}:\s+(\d+) kB", Path(f"/proc/{pid}/{file}").read_text(), re.MULTILINE)
    assert match is not None
    return int(match[1]) / KIB_PER_MIB


if __name__ == "__main__":
    sys.exit(main())
