"""Builds what a daemon needs for services, and wires it together."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from urllib.parse import urlsplit

from sqlalchemy import Engine

from perdure.controller.api.serve.listing import ServiceListing
from perdure.controller.api.serve.proxies import ServiceProxies
from perdure.controller.maintenance.serve import acme_orders
from perdure.controller.maintenance.serve.acme_orders import IssuedCertificate, OrderFailed
from perdure.controller.maintenance.serve.certificates import ServiceCertificates
from perdure.controller.maintenance.serve.metrics import ServiceMetrics
from perdure.controller.maintenance.serve.shared_state import ServiceSharing
from perdure.controller.maintenance.serve.timeline import ServiceTimeline
from perdure.controller.maintenance.serve.watch import ServiceWatch
from perdure.controller.nodes.session import NodeSessions
from perdure.controller.peers.membership import Membership
from perdure.controller.peers.ownership import JobOwnership
from perdure.controller.runtime.config.acme_config import AcmeConfig, read_acme_config
from perdure.controller.runtime.config.settings import Settings
from perdure.controller.runtime.metrics.daemon_metrics import DaemonMetrics
from perdure.controller.runtime.security.tls import Tls
from perdure.controller.store.logs.protocol import LogStore
from perdure.controller.store.queries.log_attempts import load_log_attempts
from perdure.controller.submit.plan import plan
from perdure.controller.submit.serve.services import ServiceRequests
from perdure.controller.submit.service import Accepted, Submission, SubmissionService
from perdure.sdk.connection.installation import installed_clouds

_SHARED_HINT = (
    "have the load balancer at {host} pass the port of the endpoint on to all controllers: the one that runs the "
    "service's proxy listens there, and another one after its death"
)
_MOVES_HINT = (
    "the endpoint is on the computer of the controller that runs the service's proxy: its address changes if that "
    "controller dies; set listen.advertise to the address of a load balancer"
)
_LOCAL_HINT = (
    "the machines of the local cloud share this computer's network, so no two replicas can listen at the same port of "
    "all addresses: have the program listen at $SKYPILOT_NODE_IPS"
)
NO_ACME = "add services.acme to config.yaml: docs/guides/services.md"
_ANY_HOST = ("0.0.0.0", "::")
_MAX_TAIL_BYTES, _MAX_TAIL_LINES = 4096, 3


@dataclass(frozen=True)
class Services:
    """The parts of a daemon that handle services."""

    requests: ServiceRequests
    watch: ServiceWatch
    proxies: ServiceProxies
    listing: ServiceListing
    sharing: ServiceSharing
    certificates: ServiceCertificates

    def start(self) -> None:
        """Before requests are served."""
        self.watch.start()
        self.certificates.start()

    def stop(self) -> None:
        self.certificates.stop()
        self.watch.stop()


def build_services(
    settings: Settings,
    database: Engine,
    member: Membership,
    tls: Tls | None,
    timeline: ServiceTimeline,
    ownership: JobOwnership,
    submissions: SubmissionService,
    accept: Callable[[Submission], Accepted],
    cancel: Callable[[Sequence[int], float | None], None],
    nodes: NodeSessions,
    logs: LogStore,
    metrics: DaemonMetrics,
) -> Services:
    """The services of a daemon. Its watch is not started. `tls`: the daemon's certificate, also of endpoints."""
    clock, keyring, readiness = member.clock, member.keyring, nodes.readiness
    proxies = ServiceProxies(settings.home, settings.host)
    acme = read_acme_config(settings.home)
    sharing = ServiceSharing(
        database,
        clock,
        readiness,
        member.owner,
        alone=settings.is_single_controller,
        may_claim=lambda: ownership.may_claim,
        why_no_proxy=proxies.unsupported,
    )

    def changed() -> None:
        watch.wake()
        certificates.wake()

    requests = ServiceRequests(
        database,
        clock,
        keyring,
        check=lambda submission: check(submissions, submission),
        renew=submissions.renew,
        accept=accept,
        cancel=cancel,
        find_port=proxies.find_port,
        unsupported=proxies.unsupported,
        changed=changed,
        owner=member.owner,
        hints=partial(hints, settings),
        wait_open=proxies.wait_open,
        why_no_acme=partial(_why_no_acme, acme),
        certificate=(tls.key.read_text(), tls.cert.read_text()) if tls is not None else None,
    )
    watch = ServiceWatch(
        database,
        clock,
        requests,
        proxies,
        readiness,
        sharing,
        replace(timeline, config_of=requests.config_of),
        ServiceMetrics(metrics),
        cancel=cancel,
        last_lines=lambda job_id: last_lines(database, logs, job_id),
    )
    readiness.on_change = watch.job_changed

    def order(domain: str) -> IssuedCertificate:
        if acme is None:
            raise OrderFailed(NO_ACME)
        return acme_orders.order(acme, keyring, settings.host, domain)

    certificates = ServiceCertificates(database, clock, keyring, sharing, order=order, on_change=watch.wake)

    def url(port: int, has_certificate: bool, owner: str) -> str:
        return _url(settings, port, owner, tls=has_certificate or tls is not None)

    note = "" if settings.is_single_controller or settings.advertise else _MOVES_HINT
    listing = ServiceListing(watch.reader, url, sharing, note, certificates.problem)
    return Services(requests, watch, proxies, listing, sharing, certificates)


def _why_no_acme(config: AcmeConfig | None) -> str | None:
    if config is None:
        return NO_ACME
    return None if acme_orders.is_installed() else acme_orders.NOT_INSTALLED


def check(submissions: SubmissionService, submission: Submission) -> tuple[str, ...]:
    """The warnings of the replicas of a service. Raises RequestRejected if they could not be accepted now, or if no
    offer could ever run one: as for a job that a user launches."""
    warnings = submissions.check(submission)
    plan(submissions.compiler, submission.name, submission.configs, submissions.clock.now())
    return warnings


def last_lines(database: Engine, logs: LogStore, job_id: int) -> str:
    """The last lines that the program of a replica has written, in one line; "" if there are none."""
    rows = load_log_attempts(database, job_id)
    if not rows:
        return ""
    newest = rows[-1]
    chunks = logs.reader((job_id, newest.task_index, newest.generation)).read_new()
    data = b""
    for chunk in reversed(chunks):
        if len(data) >= _MAX_TAIL_BYTES:
            break
        read = logs.read_chunk((job_id, newest.task_index, newest.generation), chunk)
        data = read + data
    lines = [line.strip() for line in data[-_MAX_TAIL_BYTES:].decode("utf-8", "replace").splitlines() if line.strip()]
    return " | ".join("".join(c for c in line if c.isprintable()) for line in lines[-_MAX_TAIL_LINES:])


def hints(settings: Settings, num_replicas: int) -> tuple[str, ...]:
    """What the user who starts a service should know."""
    where_hints = [_LOCAL_HINT] if num_replicas > 1 and _is_local_only(settings) else []
    if not settings.is_single_controller:
        host = urlsplit(settings.advertise).hostname
        where_hints.append(_SHARED_HINT.format(host=host) if host else _MOVES_HINT)
    return tuple(where_hints)


def _is_local_only(settings: Settings) -> bool:
    """Whether replicas can only be on the local cloud."""
    return settings.local_home is not None and not settings.sections.keys() & (set(installed_clouds()) - {"local"})


def _url(settings: Settings, port: int, owner: str, *, tls: bool) -> str:
    """The endpoint at a port, as callers reach it. `owner`: the address of another controller that listens there."""
    host = urlsplit(settings.advertise).hostname or urlsplit(owner).hostname or settings.host
    if host in _ANY_HOST:
        host = socket.gethostname()
    shown = f"[{host}]" if ":" in host else host
    return f"{'https' if tls else 'http'}://{shown}:{port}"
