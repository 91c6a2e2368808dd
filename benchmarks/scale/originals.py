"""Real jobs that end in a few seconds: what the jobs of the past in these benchmarks are copies of."""

from __future__ import annotations

import time
from collections.abc import Callable

import perdure.sdk as perdure
from perdure.sdk import records

PATIENCE_S = 60.0
_STAYS = "trap 'exit 0' TERM; while :; do sleep 0.1; done"


def run_originals() -> None:
    """Run jobs on the local cloud that succeed, fail, are preempted, are cancelled, and a pipeline; all have settled
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
        perdure.jobs.wait(job_id, timeout_s=PATIENCE_S, poll_s=0.1)
    _until("every machine is gone", lambda: all(_is_over(job_id) for job_id in (*launched, staying)))


def _task(name: str, run: str) -> perdure.Task:
    return perdure.Task(name, run=run, resources=perdure.Resources(use_spot=True))


def _is_over(job_id: int) -> bool:
    return all(attempt["state"] == "GONE" for attempt in perdure.jobs.get(job_id)["attempts"])


def _until_running(job_id: int, generation: int) -> None:
    def runs() -> bool:
        attempts: list[records.Attempt] = perdure.jobs.get(job_id)["attempts"]
        return any(a["generation"] == generation and a["running_at"] for a in attempts)

    _until(f"attempt {generation} of job {job_id} runs", runs)


def _until(what: str, is_so: Callable[[], bool]) -> None:
    give_up_at = time.monotonic() + PATIENCE_S
    while not is_so():
        if time.monotonic() > give_up_at:
            raise SystemExit(f"waited {PATIENCE_S:.0f} s in vain until {what}")
        time.sleep(0.1)
