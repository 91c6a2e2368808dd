"""What the watch of services does when one of them, or the proxies, cannot be had."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.exc import DataError, OperationalError

from perdure.controller.api.serve import proxies
from perdure.controller.daemon import Daemon
from perdure.controller.maintenance.serve import watch as module
from perdure.controller.maintenance.serve.proxy_state import ProxyReport, ProxyState
from perdure.controller.maintenance.serve.watch import ServiceWatch
from perdure.controller.runtime.clock import ManualClock
from perdure.controller.runtime.config.settings import Settings
from perdure.controller.store.services import records
from perdure.controller.store.services.records import Replicas, ServiceLost
from perdure.controller.submit.errors import RequestRejected
from perdure.controller.submit.requester import Requester
from perdure.controller.submit.serve.services import ServiceRequests
from support.helpers.timing import scaled

TASK = {"service": {"readiness_probe": "/up"}, "resources": {"ports": 8080}, "run": "serve"}


@dataclass
class AppliedProxies:
    """Proxies that remember what is wanted of them. `failures`: so many starts find the disk full."""

    failures: int = 0
    states: dict[str, ProxyState] = field(default_factory=dict)
    num_applied: int = 0
    num_applied_at_start: int = 0
    started: threading.Event = field(default_factory=threading.Event)

    def apply(self, states: Sequence[ProxyState]) -> None:
        self.states = {state.settings.name: state for state in states}
        self.num_applied += 1

    def report(self, service_id: int, now: float) -> ProxyReport:
        return ProxyReport()

    def problem(self, service_id: int) -> str:
        return ""

    def start(self) -> None:
        if self.failures:
            self.failures -= 1
            raise OSError(28, "No space left on device")
        self.num_applied_at_start = self.num_applied
        self.started.set()

    def stop(self) -> None:
        """Nothing runs."""


@dataclass(frozen=True)
class Services:
    daemon: Daemon
    watch: ServiceWatch
    proxies: AppliedProxies

    def up(self, name: str) -> None:
        self.watch._requests.up(name, TASK, Requester("u"), name, with_token=False, tls={})

    def launched(self) -> list[str]:
        with self.daemon.database.connect() as conn:
            query = select(records.Services.c.name).join(Replicas, Replicas.c.service_id == records.Services.c.id)
            return sorted(conn.execute(query.where(Replicas.c.job_id.is_not(None))).scalars())

    def damage(self, name: str, **columns: Any) -> None:
        with self.daemon.database.begin() as conn:
            conn.execute(records.Services.update().where(records.Services.c.name == name).values(**columns))


@pytest.fixture
def services(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Services]:
    """A controller with an embedded database."""
    monkeypatch.setattr(proxies, "OPEN_TIMEOUT_S", 0.0)  # nothing opens endpoints here
    monkeypatch.setattr(proxies, "find_haproxy", lambda: "/usr/sbin/haproxy")
    daemon = Daemon(Settings(tmp_path), ManualClock())
    assert daemon.api_context.services is not None
    watch, applied = daemon.api_context.services.watch, AppliedProxies()
    watch._proxies = applied
    yield Services(daemon, watch, applied)
    watch.stop()
    daemon.socket.close()
    daemon.close()


def test_renewal__that_is_refused_leaves_the_service_alone(services: Services) -> None:
    asked = []

    def refuse(*_: Any) -> None:
        asked.append(True)
        raise RequestRejected("the notify channel was removed")

    services.watch._requests = replace(services.watch._requests, renew=refuse)
    services.up("a")
    services.watch.evaluate()
    assert list(services.proxies.states) == ["a"]
    services.watch.evaluate()
    assert (services.launched(), len(asked)) == (["a"], 1), "its replica is launched, and the renewal is due in an hour"


@pytest.mark.parametrize("damage", [{"secrets": b"not sealed"}, {"mode": "of another version"}, {"version": 9}])
def test_service__that_cannot_be_evaluated_keeps_its_proxy(services: Services, damage: dict[str, Any]) -> None:
    services.up("a")
    services.watch.evaluate()
    before = services.proxies.states["a"]
    services.damage("a", **damage)
    services.up("b")
    for _ in range(2):
        services.watch.evaluate()
    assert services.proxies.states["a"] == before
    assert "b" in services.proxies.states
    assert "b" in services.launched(), "others do not depend on it"
    services.damage("a", wanted=records.DOWN, active_name=None)
    services.watch.evaluate()
    assert list(services.proxies.states) == ["b"]


def raising(error: Exception, real: Callable[..., Any]) -> Callable[..., Any]:
    """Fails for the service `a`."""

    def endpoint_of(requests: ServiceRequests, service: Any) -> Any:
        if service.name == "a":
            raise error
        return real(requests, service)

    return endpoint_of


@pytest.mark.parametrize("is_down", [False, True])
def test_database__that_rejects_one_value_is_not_taken_for_one_that_is_down(
    services: Services, monkeypatch: pytest.MonkeyPatch, is_down: bool
) -> None:
    for name in ("a", "b"):
        services.up(name)
    services.watch.evaluate()
    before, num_applied = services.proxies.states, services.proxies.num_applied
    error = (OperationalError if is_down else DataError)("INSERT", {}, Exception())
    with monkeypatch.context() as patch:
        patch.setattr(ServiceRequests, "endpoint_of", raising(error, ServiceRequests.endpoint_of))
        if is_down:
            with pytest.raises(OperationalError):
                services.watch.evaluate()
        else:
            services.watch.evaluate()
    assert services.proxies.num_applied == num_applied + (not is_down)
    assert services.proxies.states == before
    services.watch.evaluate()
    assert services.proxies.states == before


def test_service__of_another_controller_loses_its_proxy(services: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        services.up(name)
    services.watch.evaluate()
    monkeypatch.setattr(ServiceRequests, "endpoint_of", raising(ServiceLost("a"), ServiceRequests.endpoint_of))
    services.watch.evaluate()
    assert list(services.proxies.states) == ["b"]


def test_proxies__that_cannot_start_are_started_later(services: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "INTERVAL_S", 0.01)
    services.proxies.failures = 2
    services.up("a")
    services.watch.start()
    assert services.proxies.started.wait(scaled(10))
    assert services.proxies.num_applied_at_start >= 2, "services are evaluated meanwhile"
    services.watch.stop()
    assert services.launched() == ["a"]


@pytest.mark.parametrize(("ready_s", "failures"), [(1.0, 4), (59.0, 4), (61.0, 1)])
def test_failures__of_replicas_that_were_ready_for_a_moment_are_a_row(
    services: Services, ready_s: float, failures: int
) -> None:
    services.up("a")
    with services.daemon.database.begin() as conn:
        (row,) = records.active(conn)
        now = row.created_at
        for _ in range(4):
            records.insert_replica(conn, row.id, 1, is_spot=False, now=now)
            columns = {"ready_at": now + 10, "retired_at": now + 10 + ready_s, "retired_as": "FAILED"}
            records.change_replica(conn, row.id, records.replicas(conn, [row.id])[row.id][-1].row.number, **columns)
            records.change_version(conn, row.id, 1, ready_at=now + 10)
            now += 100.0
        (service,) = services.watch.reader.load(conn, [row])
    assert service.view.failures == failures
    assert service.view.was_ready
