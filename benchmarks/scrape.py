"""CPU time of a scrape of `/metrics`, and of counting one decision, with 100 and with 10,000 jobs."""

from __future__ import annotations

import statistics
import time
from concurrent.futures import Future

from benchmarks.machine import print_machine

from perdure.controller.reconcile.recorder import Decision
from perdure.controller.reconcile.reports.job_metrics import JobMetrics
from perdure.controller.reconcile.work_items import JobEvent, OwnedJob
from perdure.controller.runtime.clock import ManualClock
from perdure.controller.runtime.metrics.daemon_metrics import DaemonMetrics
from perdure.controller.store.records.job_claims import Claim
from perdure.recovery.actions import Step
from perdure.recovery.events import CheckpointDurable
from perdure.recovery.frozen import replace
from perdure.recovery.job import AttemptView, JobView, NodeView, TaskView
from perdure.recovery.market.offers import Market, Offer
from perdure.recovery.statuses import AttemptState, TaskState

JOBS = (100, 10_000)
TRIALS = 200
SCRAPES_PER_S = 1 / 15
TARGET_SHARE = 0.01  # of a core, at 10,000 jobs that each report a checkpoint every ten minutes
EVENTS_PER_JOB_S = 1 / 600
_REQUESTS = 40


def main() -> list[str]:
    """Print the table; returns a line if the target is missed."""
    print_machine()
    print(f"\na scrape and the counting of decisions (median of {TRIALS}, CPU time)")
    print(f"  {'jobs':>8}{'lines':>10}{'scrape':>12}{'a decision':>14}{'share of a core':>18}")
    misses = []
    for jobs in JOBS:
        lines, scrape_s, decision_s = _measure(jobs)
        share = scrape_s * SCRAPES_PER_S + decision_s * jobs * EVENTS_PER_JOB_S
        print(f"  {jobs:>8,}{lines:>10}{scrape_s * 1e3:>9.2f} ms{decision_s * 1e6:>11.1f} us{share:>17.3%}")
        if share > TARGET_SHARE:
            misses.append(f"metrics take {share:.2%} of a core at {jobs} jobs")
    return misses


def _measure(jobs: int) -> tuple[int, float, float]:
    clock, metrics = ManualClock(), DaemonMetrics()
    counted = JobMetrics(metrics, clock)
    views = [_job(number, clock.now()) for number in range(1, jobs + 1)]
    for view in views:
        counted.on_owned(view)
    for number in range(_REQUESTS):
        metrics.http_requests.inc(f"/api/v1/{number}", "GET", "200")
        metrics.http_seconds.observe(0.01, f"/api/v1/{number}")
        for what in ("read", "write", "commit"):
            metrics.database_seconds.observe(0.001, what)
        metrics.refusals.inc("aws", "us-east-1", f"us-east-1-{number}", "p5.48xlarge", "spot", "avoid-zone")
    scrapes, decisions = [], []
    for trial in range(TRIALS):
        started = time.process_time()
        text = metrics.registry.render()
        scrapes.append(time.process_time() - started)
        before = views[trial % jobs]
        task = replace(before.tasks[0], saved_s=float(trial + 1))
        event = JobEvent(before.id, CheckpointDurable(0, 1, clock.now(), trial), done=Future())
        decision = Decision(OwnedJob(Claim(before.id, "me", 1), before, 0.0), event, Step(before.with_task(task)))
        started = time.process_time()
        counted.on_recorded(decision, clock.now())
        decisions.append(time.process_time() - started)
        views[trial % jobs] = decision.step.job
    return text.count("\n"), statistics.median(scrapes), statistics.median(decisions)


def _job(number: int, now: float) -> JobView:
    zone = number % 24
    offer = Offer("aws", f"region-{zone // 3}", f"zone-{zone}", "p5.48xlarge", Market.SPOT, 30.0, 98.0, 192, 2048)
    attempt = AttemptView(1, AttemptState.RUNNING, offer, (NodeView(0),), now, booted_at=now, running_at=now)
    task = TaskView(0, (), state=TaskState.RUNNING, attempts=(attempt,), has_run=True, run_since=now, last_offer=offer)
    return JobView(number, (task,))


if __name__ == "__main__":
    if missed := main():
        raise SystemExit("\n".join(missed))
