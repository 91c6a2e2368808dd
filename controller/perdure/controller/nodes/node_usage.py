"""What nodes report of their use: the newest report of each connected node, what is not in the database yet, and when
GPUs and steps count as progress.

On the event loop, except `newest` and `busy_jobs`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass

from perdure.controller.nodes.frames import UsageFrame
from perdure.controller.reconcile.inbox import ReconcilerInbox
from perdure.controller.reconcile.work_items import JobEvent
from perdure.controller.runtime.keys import AttemptKey
from perdure.controller.store.logs.series.pending_metrics import PendingMetrics
from perdure.controller.store.records.agent_connections import Place
from perdure.recovery import events

BUSY_UTILIZATION = 0.05
# A report that repeats the last one is recorded this often, of the time after which the task is stuck.
_RECORDED_SHARE = 0.2
# Another controller owns the job, and knows whether it limits how long GPUs may idle.
_FORWARDED_INTERVAL_S = 120.0
_MAX_AGE_S = 150.0  # nodes report once a minute


@dataclass(frozen=True)
class UsageReport:
    frame: UsageFrame
    at: float  # by the controller's clock


class NodeUsage:
    """`now`: the controller's clock, which runs at `speed`."""

    def __init__(self, inbox: ReconcilerInbox, now: Callable[[], float], speed: float = 1.0) -> None:
        self._inbox = inbox
        self._now = now
        self._speed = speed
        self._newest: dict[Place, UsageReport | None] = {}  # None: connected, and has reported nothing yet
        self._recorded_at: dict[AttemptKey, float] = {}
        self._busy: set[Place] = set()
        self._unrecorded: dict[tuple[AttemptKey, type], Future[None]] = {}  # the last event of each kind
        self._new_steps: dict[AttemptKey, int] = {}  # that are not recorded yet
        self._recorded_steps: dict[AttemptKey, tuple[int, float]] = {}  # and when
        #: Reports since this process started.
        self.total = 0
        #: What is not in the series of the database yet.
        self.pending = PendingMetrics(now, speed)

    def expect(self, place: Place) -> None:
        """The node is connected."""
        self._newest.setdefault(place, None)

    def busy_jobs(self, floors: Mapping[int, float]) -> set[int]:
        """Those of the jobs, each with a share of 1, of which a connected node uses at least that share of its
        processors or of a GPU. A node whose report is missing or late counts as busy. From any thread."""
        oldest = self._now() - _MAX_AGE_S * self._speed
        return {
            place[0][0]
            for place, report in list(self._newest.items())
            if (floor := floors.get(place[0][0])) is not None
            and (report is None or report.at < oldest or report.frame.busy_share >= floor)
        }

    def on_usage(self, place: Place, frame: UsageFrame) -> None:
        """Keep the report. If its job limits how long it may stand still, tell the reconciler whether its GPUs are at
        work, and of steps that its program reports."""
        now, key = self._now(), place[0]
        self.total += 1
        self._newest[place] = UsageReport(frame, now)
        self.pending.add(place, now, machine_values(frame), frame.step, frame.values)
        interval_s = self._interval_s(key)
        if interval_s is not None:
            self._on_gpus(place, frame, now, interval_s)
            self._on_step(key, frame, now, interval_s)

    def _on_gpus(self, place: Place, frame: UsageFrame, now: float, interval_s: float) -> None:
        if not frame.gpus:
            return
        key = place[0]
        is_busy = any(gpu.utilization >= BUSY_UTILIZATION for gpu in frame.gpus)
        # GPUs that were at work until now have not idled yet, however long ago that was recorded.
        was_busy = is_busy or place in self._busy
        if is_busy:
            self._busy.add(place)
        last = self._recorded_at.get(key)
        if last is None or (was_busy and not is_busy) or now - last >= interval_s:
            if not self._submit(key, events.GpusReported(key[1], key[2], busy=was_busy)):
                return  # the next report says it
            self._recorded_at[key] = now
        if not is_busy:
            self._busy.discard(place)

    def _on_step(self, key: AttemptKey, frame: UsageFrame, now: float, interval_s: float) -> None:
        """A new step that comes too soon after the last one is recorded later: never too early, so that no task counts
        as stuck before its time."""
        recorded_step, recorded_at = self._recorded_steps.get(key, (None, -math.inf))
        if frame.step is not None and frame.step != recorded_step:
            self._new_steps[key] = frame.step
        if key in self._new_steps and now - recorded_at >= interval_s:
            step = self._new_steps[key]
            if self._submit(key, events.StepSaved(key[1], key[2], step)):
                del self._new_steps[key]
                self._recorded_steps[key] = step, now

    def _submit(self, key: AttemptKey, event: events.Event) -> bool:
        """False, and nothing is sent, while the last event of this kind is not recorded: a node may report, and
        reconnect, faster than that."""
        kind = (key, type(event))
        if (last := self._unrecorded.get(kind)) is not None and not last.done():
            return False
        self._unrecorded[kind] = self._inbox.submit(JobEvent(key[0], event))
        return True

    def forget(self, place: Place) -> None:
        """The node is disconnected."""
        self._newest.pop(place, None)
        self.pending.make_due(place)
        self._busy.discard(place)
        for recorded in (self._recorded_at, self._new_steps, self._recorded_steps):
            recorded.pop(place[0], None)
        for kind in ((place[0], events.GpusReported), (place[0], events.StepSaved)):
            if (last := self._unrecorded.get(kind)) is not None and last.done():
                del self._unrecorded[kind]

    def newest(self, job_id: int) -> list[tuple[Place, UsageReport]]:
        """The newest report of each connected node of the job. From any thread."""
        of_job = [(place, report) for place, report in list(self._newest.items()) if place[0][0] == job_id]
        reports = [(place, report) for place, report in of_job if report is not None]
        return sorted(reports, key=lambda item: item[0])

    def _interval_s(self, key: AttemptKey) -> float | None:
        """How often the state of GPUs is recorded; None if the job does not limit how long they may idle."""
        view = self._inbox.view(key[0])
        if view is None:
            return _FORWARDED_INTERVAL_S * self._speed
        if key[1] >= len(view.tasks):
            return None
        recovery = view.tasks[key[1]].recovery
        given = [s for s in (recovery.stuck_after_s, recovery.restart_when_stuck_s) if s is not None]
        return min(given) * _RECORDED_SHARE if given else None


def machine_values(frame: UsageFrame) -> Iterable[float]:
    """The values of a frame, in the order of `metric_series.MACHINE`; NaN where the machine has none."""
    gpus = frame.gpus
    total = sum(gpu.memory_total for gpu in gpus)
    return (
        _share(frame.cpu_used, frame.cpus),
        _share(frame.memory_used, frame.memory_total),
        _share(frame.disk_used, frame.disk_total),
        frame.received_per_s,
        frame.sent_per_s,
        sum(gpu.utilization for gpu in gpus) / len(gpus) if gpus else math.nan,
        _share(sum(gpu.memory_used for gpu in gpus), total),
        sum(gpu.power_w for gpu in gpus) if gpus else math.nan,
        max(gpu.temperature_c for gpu in gpus) if gpus else math.nan,
    )


def _share(used: float, total: float) -> float:
    """Finite, whatever a node reports: JSON has no infinity."""
    return min(1.0, used / total) if total else math.nan
