"""Probes of a real daemon: their number, their cost, their effect, and that none is left running."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perdure.controller.maintenance.offer_probes import USER
from support.helpers.controllers import Controller, running_controller

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

ZONES = ("local-east-a", "local-east-b")
CONFIG = """\
local: {{zones: {{local-east-a: {{region: local-east}}, local-east-b: {{region: local-east, capacity: 0}}}}}}
probes: {{interval: 1h, infra: [local/local-east], instance_types: [local-1], budget_per_day: {budget}}}
"""


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[Controller]:
    (tmp_path / "config.yaml").write_text(CONFIG.format(budget=0.5))
    with running_controller(tmp_path) as one:
        yield one


def settled(controller: Controller, count: int) -> list[dict[str, Any]]:
    """Wait for `count` probes and the end of their machines."""

    def seen() -> list[dict[str, Any]] | None:
        jobs = [dict(job) for job in controller.client.jobs()["jobs"] if job["user"] == USER]
        done = len(jobs) == count and all(job["ended_at"] for job in jobs) and not living(controller)
        return jobs if done else None

    return controller.until(seen, f"{count} probes and their end")


def living(controller: Controller) -> list[Path]:
    return list(controller.home.glob("local/instances/*/machine"))


def test_probes__run_once_per_period_and_show_their_cost(controller: Controller) -> None:
    had, refused = sorted(settled(controller, 2), key=lambda job: job["cost_usd"], reverse=True)
    stories = [str(controller.job(job["job_id"])["timeline"]) for job in (had, refused)]
    assert "the offer is available" in stories[0]
    assert "the launch was refused" in stories[1]
    assert had["cost_usd"] < 0.01
    assert "2 in the last day, " in controller.perdure("controller", "status").stdout
    # Their results count for every task: the default strategy uses them.
    output = controller.perdure(
        "jobs", "launch", "--instance-type", "local-1", "--use-spot", "--dryrun", "-y", "true"
    ).stdout
    assert "Policy VALUE: the 2 cheapest spot offers that fit were seen within three days." in output
    assert len(settled(controller, 2)) == 2, "not again within the period"


def test_probes__are_ended_after_a_controller_crash(controller: Controller) -> None:
    controller.until(lambda: living(controller), "a probe's machine")
    status = controller.perdure("controller", "status").stdout
    pid = int(next(line.split()[1] for line in status.splitlines() if line.strip().startswith("process")))
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    controller.perdure("jobs", "queue")
    settled(controller, 2)
