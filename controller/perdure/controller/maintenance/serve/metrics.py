"""Counts what services do. Services are labelled by their ids: names are their users'."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from perdure.controller.maintenance.serve.reader import ReadService
from perdure.controller.runtime.metrics.daemon_metrics import DaemonMetrics
from perdure.controller.store.services.records import UP
from perdure.recovery.market.services.replicas import service_status


@dataclass(frozen=True)
class ServiceMetrics:
    """Of the services of one controller."""

    metrics: DaemonMetrics

    def observe(self, services: Sequence[ReadService]) -> None:
        """Set the gauges, and count what the proxies have reported since the last time."""
        metrics = self.metrics
        statuses, replicas, spend = Counter[str](), Counter[tuple[str, ...]](), dict[tuple[str, ...], float]()
        in_flight, queued = Counter[str](), Counter[str]()
        for service in services:
            label, report, views = str(service.row.id), service.report, [one.view for one in service.replicas]
            is_wanted, has_failed = service.row.wanted == UP, service.view.has_failed
            statuses[str(service_status(views, is_wanted=is_wanted, has_failed=has_failed))] += 1
            in_flight[label], queued[label] = report.traffic.in_flight, report.queued
            for one in service.replicas:
                replicas[label, str(one.view.status)] += 1
            spend |= {(label, market): price for market, price in service.prices().items()}
            for digit, count in report.answers.items():
                metrics.service_requests.inc(label, f"{digit}xx", by=count)
            for times in report.times:
                metrics.service_seconds.observe(times.total_s, label)
                if times.first_byte_s is not None:
                    metrics.service_first_byte.observe(times.first_byte_s, label)
        metrics.services.replace(_labelled(statuses))
        metrics.service_in_flight.replace(_labelled(in_flight))
        metrics.service_queue.replace(_labelled(queued))
        metrics.service_replicas.replace(dict(replicas))
        metrics.service_spend.replace(spend)

    def ended(self, service_id: int, status: str) -> None:
        """A replica is over."""
        self.metrics.service_replicas_ended.inc(str(service_id), status)


def _labelled(values: Mapping[str, float]) -> dict[tuple[str, ...], float]:
    return {(label,): value for label, value in values.items()}
