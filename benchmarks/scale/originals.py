"""Real jobs that end in a few seconds, of which the past jobs in these benchmarks are copies."""

from __future__ import annotations

import time
from collections.abc import Callable

import perdure.sdk as perdure
from perdure.sdk.connection import api_types

TIMEOUT_S = 60.0
_STAYS = "trap 'exit 0' TERM; while :; do sleep 0.1; done"


def run_originals() -> None:
    """Run jobs on the local cloud that succeed, fail, are preempted, are cancelled, and a pipeline; all are finalized
    when this returns. Uses the controller of the environment."""
    with perdure.Dag("pipeline") as pipeline:
        _task("prepare", "echo prepared") >> _task("train", "echo trained")
    launched = [
        perdure.jobs.launch(what).job_id
        for what in (_task("bert", "echo done"), _task("bert", "echo done"), _task("gpt", "exit 3"), pipeline)
    ]
    staying = perdure.jobs.launch(_task("resnet", _STAYS)).job_id
    _until_running(staying, 1)
    perdure.jobs.preempt(staying, notice_s=None)
    _until_running(staying, 2)
    perdure.jobs.cancel(staying, graceful=False)
    for job_id in (*launched, staying):
        perdure.jobs.wait(job_id, timeout_s=TIMEOUT_S, poll_s=0.1)
    _until("every machine is gone", lambda: all(_is_over(job_id) for job_id in (*launched, staying)))


def _task(name: str, run: str) -> perdure.Task:
    return perdure.Task(name, run=run, resources=perdure.Resources(use_spot=True))


def _is_over(job_id: int) -> bool:
    return all(attempt["state"] == "GONE" for attempt in perdure.jobs.get(job_id)["attempts"])


def _until_running(job_id: int, generation: int) -> None:
    def runs() -> bool:
        attempts: list[api_types.Attempt] = perdure.jobs.get(job_id)["attempts"]
        return any(a["generation"] == generation and a["running_at"] for a in attempts)

    _until(f"attempt {generation} of job {job_id} runs", runs)


def _until(what: str, condition: Callable[[], bool]) -> None:
    give_up_at = time.monotonic() + TIMEOUT_S
    while not condition():
        if time.monotonic() > give_up_at:
            raise SystemExit(f"waited {TIMEOUT_S:.0f} s until {what}, which did not happen")
        time.sleep(0.1)
