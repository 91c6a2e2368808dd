"""Counts what happens to jobs, from the decisions that were recorded. Never from a scan of jobs, nor the database.

The reconcile thread calls everything here, except `collect`. Sums start at zero with the daemon.
"""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field
from functools import lru_cache

from perdure.controller.reconcile.recorder import Decision
from perdure.controller.runtime.clock import Clock
from perdure.controller.runtime.metrics.daemon_metrics import DaemonMetrics
from perdure.controller.runtime.metrics.oldest_time import OldestTime
from perdure.recovery import events
from perdure.recovery.actions import TimelineEntry
from perdure.recovery.job import AttemptView, JobView, TaskView
from perdure.recovery.market.offers import Offer
from perdure.recovery.market.slot_queue import SLOT_CLOUD
from perdure.recovery.reasons import PREEMPTIONS
from perdure.recovery.statuses import AttemptState, TaskState

TaskKey = tuple[int, int]
_HOUR_S = 3600.0
_LAUNCH_ENDS = {"attempt.launched": "launched", "attempt.refused": "refused", "attempt.withdrawn": "withdrawn"}
# Sums of prices must come back to zero when the last machine is gone.
_MICRO = 1_000_000


@dataclass(frozen=True)
class _Counted:
    """What one job adds to the gauges."""

    statuses: Counter[str] = field(default_factory=Counter)
    attempts: Counter[tuple[str, str, str]] = field(default_factory=Counter)  # (state, cloud, market)
    #: (cloud, market) → machines, and their prices in micro-dollars per hour: paid, and on demand.
    machines: dict[tuple[str, str], tuple[int, int, int]] = field(default_factory=dict)
    stuck: int = 0


_NOTHING = _Counted()


@lru_cache(maxsize=1024)
def _shared(counted: tuple[tuple[tuple, ...], ...], stuck: int) -> _Counted:  # type: ignore[type-arg]
    """What many jobs have in common exists once: of ten thousand jobs nearly all are alike.

    `counted`: the items of `statuses`, `attempts` and `machines`. Nobody changes the result.
    """
    statuses, attempts, machines = counted
    return _Counted(Counter(dict(statuses)), Counter(dict(attempts)), dict(machines), stuck)


@dataclass(frozen=True)
class _Lost:
    """A run that was lost: where its work stood."""

    at: float
    progress_s: float
    cause: str


class JobMetrics:
    """Counts the jobs of one controller. `clock`: of the times in decisions."""

    def __init__(self, metrics: DaemonMetrics, clock: Clock) -> None:
        self.metrics = metrics
        self._clock = clock
        self._counted: dict[int, _Counted] = {}
        self._lost: dict[TaskKey, _Lost] = {}
        self._noticed: dict[TaskKey, float] = {}
        self._waiting: OldestTime[TaskKey] = OldestTime()
        self._durable: OldestTime[TaskKey] = OldestTime()
        self._rates: Counter[tuple[str, str]] = Counter()  # micro-dollars per hour
        self._on_demand_rates: Counter[tuple[str, str]] = Counter()
        self._accrued_at = clock.now()
        self._lock = threading.Lock()  # of what `collect` reads
        metrics.registry.on_scrape(self.collect)

    def collect(self) -> None:
        """Set the gauges that depend on the time. From any thread."""
        now = self._clock.now()
        with self._lock:
            self._accrue(now)
            waiting, durable = self._waiting.oldest(), self._durable.oldest()
        self.metrics.oldest_waiting.set(0.0 if waiting is None else max(0.0, now - waiting))
        self.metrics.oldest_checkpoint.set(0.0 if durable is None else max(0.0, now - durable))

    def on_owned(self, job: JobView) -> None:
        """This controller has taken the job over, or accepted it."""
        with self._lock:
            self._count(job)

    def on_dropped(self, job_id: int) -> None:
        """The job is finalized, or belongs to another controller."""
        with self._lock:
            counted = self._counted.pop(job_id, None)
            if counted is None:
                return
            self._apply(counted, _NOTHING)
            for index in range(sum(counted.statuses.values())):
                self._forget((job_id, index))

    def on_transaction(self, seconds: float) -> None:
        """Decisions were recorded, in a transaction that took `seconds`."""
        self.metrics.record_seconds.observe(seconds)

    def on_recorded(self, decision: Decision, now: float) -> None:
        """The decision is recorded; its job still has the view from before."""
        before, after = decision.owned.view, decision.step.job
        self.metrics.decisions.inc()
        with self._lock:
            if after is not before:
                self._count(after)
                ran = sum(task.run_seconds for task in after.tasks) - sum(task.run_seconds for task in before.tasks)
                if ran > 0:
                    self.metrics.work_done.inc(by=ran)
            for action in (*decision.event.notes, *decision.step.actions):
                if isinstance(action, TimelineEntry) and action.task is not None:
                    self._on_entry(action, before.tasks[action.task], after.tasks[action.task], (after.id, now))
            event = decision.event.event
            if isinstance(event, events.CheckpointDurable) and 0 <= event.task < len(after.tasks):
                self._on_durable(event, (after.id, event.task), now)
        if decision.event.checkpoint is not None:
            self.metrics.checkpoints.inc(decision.event.checkpoint.note.kind.rpartition(".")[2])

    # --- gauges -------------------------------------------------------------------------------------------------------

    def _count(self, job: JobView) -> None:
        counted = _count_job(job)
        self._apply(self._counted.get(job.id, _NOTHING), counted)
        self._counted[job.id] = counted
        current = job.current_task
        for task in job.tasks:
            key = (job.id, task.index)
            if task is current and task.state is TaskState.WAITING:
                if key not in self._waiting:
                    self._waiting.set(key, self._clock.now())
            else:
                self._waiting.discard(key)
            if task.run_since is None:
                self._durable.discard(key)
            elif key not in self._durable:
                self._durable.set(key, task.run_since)

    def _forget(self, key: TaskKey) -> None:
        self._waiting.discard(key)
        self._durable.discard(key)
        self._lost.pop(key, None)
        self._noticed.pop(key, None)

    def _apply(self, before: _Counted, after: _Counted) -> None:
        """Replace what a job adds to the gauges."""
        if before is after:
            return
        metrics = self.metrics
        for status, number in _difference(before.statuses, after.statuses):
            metrics.tasks.add(number, status)
        for labels, number in _difference(before.attempts, after.attempts):
            metrics.attempts.add(number, *labels)
        if after.stuck != before.stuck:
            metrics.stuck_tasks.add(after.stuck - before.stuck)
        if before.machines == after.machines:
            return
        self._accrue(self._clock.now())
        for key in before.machines.keys() | after.machines.keys():
            old, new = before.machines.get(key, (0, 0, 0)), after.machines.get(key, (0, 0, 0))
            metrics.machines.add(new[0] - old[0], *key)
            self._rates[key] += new[1] - old[1]
            self._on_demand_rates[key] += new[2] - old[2]
        metrics.spend.replace({place: rate / _MICRO for place, rate in self._rates.items() if rate})

    def _accrue(self, now: float) -> None:
        """Add what the machines have cost since the last call."""
        hours = max(0.0, now - self._accrued_at) / _HOUR_S
        self._accrued_at = max(now, self._accrued_at)
        if not hours:
            return
        for key, rate in self._rates.items():
            self.metrics.cost.inc(*key, by=hours * rate / _MICRO)
            self.metrics.on_demand_cost.inc(*key, by=hours * self._on_demand_rates[key] / _MICRO)

    # --- sums ---------------------------------------------------------------------------------------------------------

    def _on_entry(self, entry: TimelineEntry, before: TaskView, after: TaskView, when: tuple[int, float]) -> None:
        """Count a timeline entry. `when`: the job's id, and the time."""
        job_id, now = when
        key = (job_id, after.index)
        generation = entry.generation or 0
        attempt = after.attempt(generation) or before.attempt(generation)
        if entry.kind == "task.ended":
            self.metrics.tasks_ended.inc(after.status.value, (entry.reason or "").lower())
        if attempt is None:
            return
        if (outcome := _LAUNCH_ENDS.get(entry.kind)) is not None:
            self._on_launch_end(outcome, entry, attempt, now)
        elif entry.kind == "attempt.running":
            self._on_running(key, attempt, after, now)
        elif entry.kind in ("attempt.lost", "attempt.failed", "attempt.moving"):
            self._on_given_up(key, entry, attempt, (before, now))
        elif entry.kind == "node.notice":
            if _has_machines(attempt.offer):
                self.metrics.notices.inc(attempt.offer.cloud, attempt.offer.market.value)
            self._noticed.setdefault(key, now)

    def _on_launch_end(self, outcome: str, entry: TimelineEntry, attempt: AttemptView, now: float) -> None:
        offer = attempt.offer
        if not _has_machines(offer):
            return
        self.metrics.launches.inc(offer.cloud, offer.market.value, outcome)
        if outcome == "launched":
            self.metrics.launch_seconds.observe(now - attempt.requested_at, offer.cloud)
        elif outcome == "refused":
            self.metrics.refusals.inc(*_labels(offer), str(entry.data.get("kind", "")))

    def _on_running(self, key: TaskKey, attempt: AttemptView, after: TaskView, now: float) -> None:
        if _has_machines(attempt.offer):
            self.metrics.startup_seconds.observe(now - attempt.requested_at, attempt.offer.cloud)
        if (noticed_at := self._noticed.pop(key, None)) is not None:
            self.metrics.notice_to_replacement.observe(now - noticed_at)
        if (lost := self._lost.pop(key, None)) is not None:
            self.metrics.recovery_seconds.observe(now - lost.at)
            self.metrics.work_lost.inc(lost.cause, by=max(0.0, lost.progress_s - after.resumed_s))

    def _on_given_up(
        self, key: TaskKey, entry: TimelineEntry, attempt: AttemptView, was: tuple[TaskView, float]
    ) -> None:
        """`was`: the task before, and the time."""
        before, now = was
        cause = (entry.reason or "").lower()
        self.metrics.recoveries.inc(cause)
        if entry.kind == "attempt.lost" and entry.reason in PREEMPTIONS and _has_machines(attempt.offer):
            noticed = any(node.notice_deadline is not None for node in attempt.nodes)
            self.metrics.preemptions.inc(*_labels(attempt.offer), str(noticed).lower())
        if before.run_since is not None:
            self._lost[key] = _Lost(now, before.progress_s(now), cause)
            self.metrics.checkpoint_age_at_loss.observe(max(0.0, before.progress_s(now) - before.durable_s))

    def _on_durable(self, event: events.CheckpointDurable, key: TaskKey, now: float) -> None:
        self.metrics.durable_lag.observe(max(0.0, now - event.at))
        if key in self._durable:
            self._durable.set(key, min(event.at, now))


def _count_job(job: JobView) -> _Counted:
    attempts: Counter[tuple[str, str, str]] = Counter()
    machines: dict[tuple[str, str], tuple[int, int, int]] = {}
    for attempt in (attempt for task in job.tasks for attempt in task.attempts):
        offer = attempt.offer
        if not _has_machines(offer):
            continue
        attempts[attempt.state.value, offer.cloud, offer.market.value] += 1
        exist = sum(node.gone_reason is None for node in attempt.nodes)
        if attempt.booted_at is None or attempt.state is AttemptState.GONE or not exist:
            continue
        key = (offer.cloud, offer.market.value)
        number, price, on_demand = machines.get(key, (0, 0, 0))
        machines[key] = (
            number + exist,
            price + round(exist * offer.price_per_hour * _MICRO),
            on_demand + round(exist * offer.on_demand_price_per_hour * _MICRO),
        )
    stuck = sum(task.stuck_since is not None for task in job.tasks)
    statuses = Counter(task.status.value for task in job.tasks)
    return _shared((tuple(statuses.items()), tuple(attempts.items()), tuple(machines.items())), stuck)


def _difference(before: Counter, after: Counter) -> list[tuple]:  # type: ignore[type-arg]
    """What `after` has more (or, negative, less) than `before`."""
    if before == after:
        return []
    return [(key, after[key] - before[key]) for key in before.keys() | after.keys() if after[key] != before[key]]


def _has_machines(offer: Offer) -> bool:
    """Whether a launch of the offer buys machines. A slot of a cluster is a share of one that is counted already."""
    return offer.cloud != SLOT_CLOUD


def _labels(offer: Offer) -> tuple[str, str, str, str, str]:
    return offer.cloud, offer.region, offer.zone, offer.instance_type, offer.market.value
