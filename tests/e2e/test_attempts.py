"""The logs of a job that was preempted many times, attempt by attempt, and those of a job that has not begun."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from support.helpers.controllers import Controller, running_controller
from support.helpers.timing import scaled

pytestmark = pytest.mark.slow

LOSSES = 5


@pytest.fixture(scope="module")
def controller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controller]:
    home = tmp_path_factory.mktemp("attempts") / "home"
    home.mkdir(mode=0o700)
    (home / "config.yaml").write_text("local: {zones: {local-a: {region: local}}, max_machines: 1}\n")
    with running_controller(home) as one:
        yield one


def test_logs__of_each_attempt_are_kept_after_the_end(controller: Controller) -> None:
    perdure = controller.perdure
    perdure("jobs", "launch", "-y", "-d", "--use-spot", "--infra", "local", "--", "echo in $RANDOM$RANDOM; sleep 600")
    job = controller.client.jobs(limit=1)["jobs"][0]["job_id"]
    for losses in range(LOSSES):

        def runs(number: int = losses + 1) -> bool:
            return controller.log(job).count("\nin ") == number

        controller.until(runs, f"attempt {losses + 1}")
        perdure("jobs", "preempt", job, "--kill")
    controller.until(lambda: controller.log(job).count("\nin ") == LOSSES + 1, "the last attempt")
    followed = perdure("jobs", "logs", job, "--attempt", 2, check=False)
    assert (followed.returncode, followed.stdout.count("\n")) == (101, 3), "it ends with the attempt, not with the job"
    perdure("jobs", "cancel", job, "-y", "--no-graceful")
    controller.until(lambda: controller.job(job)["status"] == "CANCELLED", "the end of the job")
    whole = controller.log(job)
    parts = [perdure("jobs", "logs", job, "--attempt", n, check=False).stdout for n in range(1, LOSSES + 2)]
    assert "".join(parts) == whole
    assert parts[1] == followed.stdout
    assert parts[1].startswith("--- attempt 2 on local/local/local-a ")
    assert parts[1].endswith("\n--- attempt 2 ended: PREEMPTED ---\n")
    assert perdure("jobs", "logs", job, "--attempt", 2, "--tail", 2, check=False).stdout == "".join(
        parts[1].splitlines(True)[-2:]
    )
    missing = perdure("jobs", "logs", job, "--attempt", LOSSES + 2, check=False)
    assert (missing.returncode, missing.stdout) == (102, "")
    assert f"it has had {LOSSES + 1}" in missing.stderr


def test_no_follow__of_a_job_that_waits_returns_at_once(controller: Controller) -> None:
    perdure = controller.perdure
    for name in ("first", "waiting"):
        perdure("jobs", "launch", "-y", "-d", "-n", name, "--infra", "local", "--", "sleep 600")
    job = controller.client.jobs(limit=1, name="waiting")["jobs"][0]["job_id"]
    controller.until(lambda: controller.job(job)["status"] == "PENDING", "the second job to wait for the only machine")
    for words in (("--no-follow",), ("--no-follow", "--controller"), ("--no-follow", "--tail", "10")):
        began = time.monotonic()
        done = perdure("jobs", "logs", job, *words, check=False)
        assert time.monotonic() - began < scaled(1)
        assert done.returncode == 101
    perdure("jobs", "cancel", "--all", "-y", "--no-graceful")
