"""Gauges that are read from the daemon's parts at each scrape. Each costs a few microseconds, however many jobs run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import version

from perdure.controller.nodes.session import NodeSessions
from perdure.controller.reconcile.inbox import ReconcilerInbox
from perdure.controller.runtime.clock import Clock
from perdure.controller.runtime.metrics.daemon_metrics import DaemonMetrics
from perdure.recovery.market.slot_queue import SLOT_CLOUD


def register_gauges(
    metrics: DaemonMetrics,
    *,
    inbox: ReconcilerInbox,
    sessions: NodeSessions,
    launch_queues: Callable[[], Mapping[str, int]],
    has_lease: Callable[[], bool],
    count_set_aside: Callable[[], int],
    clock: Clock,
    speed: float,
    started_at: float,
) -> None:
    """`launch_queues`: how many launches wait, by cloud. `started_at`: of the daemon, by the wall clock. `speed`: of
    `clock`, relative to real time, which lags are given in."""
    metrics.build_info.set(1, version("perdure"))
    metrics.start_time.set(started_at)

    def collect() -> None:
        now, due_at, queued_at = clock.now(), inbox.queue.next_due, inbox.queue.oldest_queued()
        metrics.timer_lag.set(0.0 if due_at is None else max(0.0, (now - due_at) / speed))
        metrics.queue_lag.set(0.0 if queued_at is None else max(0.0, (now - queued_at) / speed))
        metrics.queue_depth.set(inbox.backlog())
        waiting: dict[tuple[str, ...], float] = {
            (cloud,): depth for cloud, depth in launch_queues().items() if cloud != SLOT_CLOUD
        }
        metrics.launch_queue.replace(waiting)
        metrics.nodes.set(sessions.num_connections)
        metrics.rejected_frames.set(sessions.rejected_frames.total)
        metrics.lease.set(int(has_lease()))
        metrics.set_aside.set(count_set_aside())

    metrics.registry.on_scrape(collect)
