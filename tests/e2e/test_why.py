"""Ten jobs in ten kinds of wait: ten different sentences of `perdure jobs why`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.helpers.controllers import Controller, running_controller

pytestmark = pytest.mark.slow

CONFIG = """
local:
  max_machines: 7
  zones: {local-a: {region: open}, local-b: {region: brief}, local-c: {region: sold, capacity: 0}}
"""
OPEN, BRIEF, SOLD = ("--infra", "local/open"), ("--infra", "local/brief"), ("--infra", "local/sold")
SLEEP = ("--", "sleep 600")


@pytest.fixture(scope="module")
def controller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controller]:
    home = tmp_path_factory.mktemp("why") / "home"
    home.mkdir(mode=0o700)
    (home / "config.yaml").write_text(CONFIG)
    with running_controller(home) as one:
        try:
            yield one
        finally:
            one.perdure("down", "--all", "--yes", check=False)


def launch(controller: Controller, *words: object) -> int:
    done = controller.perdure("jobs", "launch", "-y", "-d", "--cpus", 1, *words)
    return int(re.findall(r"Job (\d+) ", done.stdout)[0])


def queued(controller: Controller, cluster: str, *words: object) -> int:
    return int(json.loads(controller.perdure("exec", cluster, "-o", "json", *words).stdout)["job"]["job_id"])


def why(controller: Controller, job: int) -> dict[str, Any]:
    return dict(json.loads(controller.perdure("jobs", "why", job, "-o", "json").stdout))


def test_why__says_what_each_of_ten_jobs_waits_for(controller: Controller, tmp_path: Path) -> None:
    perdure = controller.perdure
    setup = tmp_path / "setup.yaml"
    setup.write_text("setup: sleep 600\nrun: 'true'\n")
    for name in ("busy", "rests", "lost"):
        spot = ("--use-spot",) if name == "lost" else ()
        perdure("launch", "-c", name, "--cpus", 2, *spot, *OPEN, "--yes")
    queued(controller, "busy", "--cpus", 2, *SLEEP)
    jobs = {
        "must leave room for 2 CPUs": queued(controller, "busy", "--cpus", 2, *SLEEP),
        "queued behind job 2": queued(controller, "busy", "--cpus", 2, *SLEEP),
        "the cluster rests is stopped": queued(controller, "rests", *SLEEP),
        "the cluster lost has lost its machines": queued(controller, "lost", *SLEEP),
        "`setup` runs on node 0 in local/local-a": launch(controller, *OPEN, setup),
        "every matching offer was unavailable": launch(controller, *SOLD, *SLEEP),
    }
    perdure("stop", "rests", "--yes")
    perdure("jobs", "preempt", json.loads(perdure("status", "lost", "-o", "json").stdout)[0]["host_job_id"], "--kill")
    perdure("launch", "-c", "coming", "--cpus", 1, *SOLD, "--async", "--yes", "--", "true")
    coming = json.loads(perdure("queue", "coming", "-o", "json").stdout)["coming"][0]["job_id"]
    jobs["the machines of the cluster coming are being launched"] = coming
    cancelled = launch(controller, *OPEN, "--", "trap '' TERM; echo deaf; while :; do sleep 0.1; done")
    recovering = launch(controller, "--use-spot", *BRIEF, *SLEEP)
    controller.until(lambda: "deaf\n" in controller.log(cancelled), "the job that ignores SIGTERM")
    perdure("jobs", "cancel", cancelled, "--graceful-timeout", 600, "-y")
    jobs["it was cancelled"] = cancelled
    controller.until(lambda: controller.job(recovering)["status"] == "RUNNING", "the job that is preempted")
    (controller.home / "local" / "zones.json").write_text(json.dumps({"local-b": {"capacity": 0}}))
    perdure("jobs", "preempt", recovering, "--kill")
    jobs["attempt 1 ended (the cloud took the machine back (preemption));"] = recovering
    jobs["local has "] = launch(controller, *OPEN, "--num-nodes", 7, *SLEEP)

    assert len(jobs) == 10
    for expected, job in jobs.items():

        def says(expected: str = expected, job: int = job) -> bool:
            return expected in why(controller, job)["waits_for"]

        controller.until(says, f"{expected!r} instead of {why(controller, job)}")
    answers = [why(controller, job) for job in jobs.values()]
    assert len({one["waits_for"] for one in answers}) == 10
    assert all(one["waits_since"] for one in answers)
    assert re.search(r"the next attempt is at \d{4}-", answers[5]["waits_for"])
    shown = perdure("jobs", "why", jobs["local has "]).stdout
    assert re.fullmatch(r"Job \d+ \(.*\) is PENDING since .*: local has \d of 7 machines \(.*\)\.\n", shown)
    perdure("jobs", "cancel", "--all", "-y", "--no-graceful")
