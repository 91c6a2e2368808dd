"""`--keep-on-failure`: the machine of a failed job stays for a look, at a price that is shown, and then ends."""

from __future__ import annotations

import pytest

from e2e.enter.conftest import Entered, launch
from support.helpers.controllers import Controller


def machines(controller: Controller) -> int:
    return len(list(controller.home.glob("local/instances/*/machine")))


def failed(controller: Controller, *words: str) -> Entered:
    job = Entered(controller, launch(controller, *words, "--", "echo evidence > seen.txt; exit 3"))
    controller.until(lambda: controller.job(job.job_id)["status"] == "FAILED", "the job to fail")
    return job


@pytest.mark.slow
def test_kept_machine__can_be_entered_and_ends_with_a_cancel(controller: Controller) -> None:
    job = failed(controller, "--keep-on-failure", "30m")
    assert job.out("cat seen.txt") == b"evidence\n"
    detail = controller.job(job.job_id)
    assert "keeping 1 machine(s) until" in detail["cleanup"]
    assert "per hour" in detail["cleanup"]
    assert ", kept" in controller.perdure("jobs", "queue").stdout
    shown = controller.perdure("jobs", "show", job.job_id).stdout
    assert "attempt.kept" in shown
    assert "keeping 1 machine(s)" in shown
    assert machines(controller) == 1
    cost = detail["cost_usd"]
    controller.until(lambda: controller.job(job.job_id)["cost_usd"] > cost, "the cost to grow")
    controller.perdure("controller", "stop")
    controller.perdure("controller", "start")
    controller.until(lambda: job.exec("cat seen.txt").stdout == b"evidence\n", "the machine, after a restart")
    done = controller.perdure("jobs", "cancel", job.job_id, "--yes")
    assert "scheduled to be cancelled" in done.stdout
    controller.until(lambda: machines(controller) == 0, "the end of the machine")
    assert controller.job(job.job_id)["status"] == "FAILED"


def test_kept_machine__ends_by_itself(controller: Controller) -> None:
    job = failed(controller, "--keep-on-failure", "5s")
    assert job.out("cat seen.txt") == b"evidence\n"
    controller.until(lambda: machines(controller) == 0, "the end of the machine")
    assert "has ended" in job.exec("true").stderr.decode()
    assert controller.job(job.job_id)["cleanup"] is None


def test_machine_of_a_failed_job__ends_at_once_unless_it_is_kept(controller: Controller) -> None:
    failed(controller)
    controller.until(lambda: machines(controller) == 0, "the end of the machine", timeout_s=30)


def test_keep_on_failure__that_is_no_duration_is_rejected(controller: Controller) -> None:
    done = controller.perdure("jobs", "launch", "--yes", "--keep-on-failure", "soon", "--", "true", check=False)
    assert done.returncode == 2
    assert "--keep-on-failure" in done.stderr
