"""Services and their replicas as users see them. Read-only."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row

from perdure.controller.api.serve.upstreams import HOLD_S
from perdure.controller.maintenance.serve.proxy_state import ProxyReport
from perdure.controller.maintenance.serve.reader import ReadReplica, ReadService, ServiceReader
from perdure.controller.maintenance.serve.shared_state import ServiceSharing
from perdure.controller.store.queries.job_listing import iso
from perdure.controller.store.services import records
from perdure.controller.store.services.records import UP, StoredReplica
from perdure.controller.submit.serve.endpoints import acme_domain
from perdure.recovery.market.services.replicas import Replica, ServiceStatus, service_status
from perdure.recovery.market.services.spec import ReplicaPolicy
from perdure.sdk.spec import service_fields as schema_service

MAX_ENDED = 10
"""So many replicas that are over are shown, unless all are asked for."""


@dataclass(frozen=True)
class ServiceListing:
    """Describes services.

    `endpoint_url`: of a port, whether it has a certificate of its own, and where the controller is that listens there
    ("": here). `note`: what users of any service that answers should know.
    """

    reader: ServiceReader
    endpoint_url: Callable[[int, bool, str], str]
    sharing: ServiceSharing
    note: str = ""
    #: Why there is no new certificate of a domain; "" if none is needed.
    certificate_problem: Callable[[str], str] = lambda _domain: ""

    def describe(
        self, conn: Connection, rows: Sequence[Row[Any]], now: float, *, all_replicas: bool = False
    ) -> list[dict[str, Any]]:
        """The API's Service objects, in the order of `rows` (of the table `service`)."""
        return [self._service(conn, service, now, all_replicas) for service in self.reader.load(conn, rows)]

    def url_of(self, conn: Connection, row: Row[Any], section: Mapping[str, Any]) -> str | None:
        """The endpoint of a service; None once it is down."""
        if row.port is None:
            return None
        if domain := acme_domain(section):
            return f"https://{domain}:{row.port}"
        return self.endpoint_url(row.port, "tls" in section, self.sharing.address_of(conn, row))

    def _service(self, conn: Connection, service: ReadService, now: float, all_replicas: bool) -> dict[str, Any]:
        row, newest = service.row, service.newest
        views = [one.view for one in service.replicas]
        status = service_status(views, is_wanted=row.wanted == UP, has_failed=service.view.has_failed)
        if status is ServiceStatus.READY and service.report.problem:
            status = ServiceStatus.NO_REPLICA  # nothing answers at the endpoint
        section = newest.section
        ended = [one for one in records.replicas(conn, [row.id], ended=True).get(row.id, ()) if one.row.ended_at]
        replicas = [_replica(row.name, one) for one in service.replicas]
        replicas += [_ended(row.name, one) for one in (ended if all_replicas else ended[-MAX_ENDED:])]
        since = row.ready_since if status is ServiceStatus.READY else None
        return {
            "name": row.name,
            "service_id": row.id,
            "user": row.user,
            "version": row.version,
            "status": str(status),
            "message": self._message(conn, service, status, now),
            "uptime_s": None if since is None else max(0.0, now - since),
            "created_at": iso(row.created_at),
            "endpoint": self.url_of(conn, row, section),
            "has_token": row.secrets is not None,
            "ready_replicas": sum(view.is_ready for view in views),
            "target_replicas": row.target if row.wanted == UP else 0,
            "requests": service.report.traffic.in_flight,
            "recent_requests": service.report.traffic.recent,
            "waiting_requests": service.report.queued,
            "waiting_since": iso(service.report.held_since),
            "autoscaling_policy": _policy_text(service.view.spec.policy),
            "load_balancing_policy": section.get("load_balancing_policy", schema_service.LEAST_LOAD),
            "requested_resources": newest.resources,
            "price_per_hour": round(sum(service.prices().values()), 4),
            "replicas": sorted(replicas, key=lambda one: one["number"]),
        }

    @staticmethod
    def _failure(conn: Connection, service: ReadService) -> str:
        """Why the newest version has failed last; "" if it has not."""
        if service.newest.failure and service.newest.ready_at is None:
            return str(service.newest.failure)
        failure = records.last_failure(conn, service.row.id) if service.failures else None
        if failure is None or failure.version != service.row.version:
            return ""
        return f"replica {failure.number} of version {failure.version} is {failure.retired_as}: {failure.message}"

    def _message(self, conn: Connection, service: ReadService, status: ServiceStatus, now: float) -> str:
        """The cause of a status, or what users should know of a service that answers."""
        if service.row.wanted == UP and service.report.problem:
            return service.report.problem
        if text := self._failure(conn, service):
            goes_on = service.has_failed and (status is ServiceStatus.READY or not service.view.has_failed)
            return f"the update has failed, and the earlier version goes on; {text}" if goes_on else text
        domain = acme_domain(service.newest.section)
        if domain and (problem := self.certificate_problem(domain)):
            return problem
        if status is ServiceStatus.READY:
            return self.note
        waiting = [one.view for one in service.replicas if not one.view.is_ready and not one.view.is_ending]
        why = next((text for view in waiting if (text := _why_not_ready(view))), "")
        return "; ".join(filter(None, (_held_text(service.report, now), why)))


def _held_text(report: ProxyReport, now: float) -> str:
    """How many requests are held, and how long they may be; "" if none is."""
    if not report.queued or report.held_since is None:
        return ""
    what = "a request waits" if report.queued == 1 else f"{report.queued} requests wait"
    waited_s = max(0.0, now - report.held_since)
    return f"{what} for a replica, the oldest for {waited_s:.0f} s; each is held for {HOLD_S:.0f} s at most"


def _replica(service_name: str, one: ReadReplica) -> dict[str, Any]:
    text = one.stored.row.message or _why_not_ready(one.view)
    return {**_common(service_name, one.stored), "status": str(one.view.status), "message": text} | {
        "requests": one.view.in_flight
    }


def _ended(service_name: str, stored: StoredReplica) -> dict[str, Any]:
    row = stored.row
    return {**_common(service_name, stored), "status": row.final_status, "message": row.message, "requests": 0}


def _common(service_name: str, stored: StoredReplica) -> dict[str, Any]:
    row, offer = stored.row, stored.offer
    return {
        "service_name": service_name,
        "number": row.number,
        "version": row.version,
        "is_spot": row.is_spot,
        "job_id": row.job_id,
        "infra": f"{offer['cloud']} ({offer['zone']})" if offer else "-",
        "resources": _machine(offer) if offer else "-",
        "launched_at": iso(row.created_at),
        "ready_at": iso(row.ready_at),
        "ended_at": iso(row.ended_at),
    }


def _machine(offer: Mapping[str, Any]) -> str:
    parts = [f"cpus={offer['vcpus']:g}", f"mem={offer['memory_gib']:g}", offer["instance_type"]]
    if offer.get("accelerators"):
        parts.insert(0, f"gpus={offer['accelerators'][0]}:{offer['accelerators'][1]:g}")
    return f"1x({', '.join(parts)})" + ("[Spot]" if offer["market"] == "spot" else "")


def _why_not_ready(view: Replica) -> str:
    """What a replica that is not ready waits for."""
    if view.is_ready or view.is_ending:
        return ""
    if view.changes_to is not None:
        return f"it answers its last requests, and gets version {view.changes_to} then"
    if view.probe is not None:
        return view.probe.message
    return view.message


def _policy_text(policy: ReplicaPolicy) -> str:
    """As SkyServe writes it."""
    if not policy.scales:
        replicas = "replica" if policy.min_replicas == 1 else "replicas"
        return f"Fixed {policy.min_replicas} {replicas}"
    targets = []
    if policy.target_qps is not None:
        targets.append(f"target {policy.target_qps} qps per replica")
    if policy.target_ongoing is not None:
        targets.append(f"target {policy.target_ongoing:g} requests at a time per replica")
    return f"Autoscaling from {policy.min_replicas} to {policy.limit} replicas ({', '.join(targets)})"
