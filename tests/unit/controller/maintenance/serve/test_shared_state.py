"""Services of several controllers on one database: owners, takeover, and what each reports for the others."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from sqlalchemy import Engine, select

from perdure.controller.maintenance.serve.proxy_state import ProxyReport
from perdure.controller.maintenance.serve.shared_state import NO_OWNER, ServiceSharing
from perdure.controller.nodes.frames import ReadinessFrame
from perdure.controller.nodes.readiness import NodeReadiness
from perdure.controller.runtime.clock import REAL_TIME, ManualClock
from perdure.controller.store.records import agent_connections
from perdure.controller.store.records.job_claims import Controller
from perdure.controller.store.services import records
from perdure.controller.store.services.records import DOWN, UP, ServiceLost, Services
from perdure.recovery.market.services.replicas import Probe
from perdure.recovery.market.services.scale import Traffic
from support.helpers.leases import insert_lease

KEY = (7, 0, 1)
MINE = ProxyReport(Traffic(1, 2), {3: 2})


@dataclass
class Peer:
    """One controller. `may_claim`, `why_no_proxy`: of the moment."""

    database: Engine
    clock: ManualClock
    name: str
    may_claim: bool = True
    why_no_proxy: str | None = None
    readiness: NodeReadiness = field(init=False)
    sharing: ServiceSharing = field(init=False)

    def __post_init__(self) -> None:
        self.readiness = NodeReadiness(self.clock.now, REAL_TIME)
        self.sharing = ServiceSharing(
            self.database,
            self.clock,
            self.readiness,
            self.name,
            alone=False,
            may_claim=lambda: self.may_claim,
            why_no_proxy=lambda: self.why_no_proxy,
        )

    def owned(self) -> list[str]:
        with self.database.connect() as conn:
            return sorted(row.name for row in records.unsettled(conn) if self.sharing.owns(row))

    def report_of(self, service_id: int) -> ProxyReport:
        with self.database.connect() as conn:
            rows = list(conn.execute(select(Services).where(Services.c.id == service_id)))
            return self.sharing.reports(conn, rows, lambda _: MINE)[service_id]

    def probes(self) -> dict[Any, Probe]:
        with self.database.connect() as conn:
            return dict(self.sharing.probes(conn, [KEY[0]]))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def a(database: Engine, clock: ManualClock) -> Peer:
    insert_lease(database, clock, "a", 3600)
    return Peer(database, clock, "a")


@pytest.fixture
def b(database: Engine, clock: ManualClock) -> Peer:
    insert_lease(database, clock, "b", 3600)
    return Peer(database, clock, "b")


def add_service(database: Engine, owner: str | None, name: str = "model", **more: Any) -> int:
    columns = {"name": name, "active_name": name, "user": "u", "wanted": UP, "created_at": 0.0, "version": 1}
    columns |= {"mode": "rolling", "next_replica": 1, "target": 1, "owner": owner, **more}
    with database.begin() as conn:
        return records.insert_service(conn, columns)


def end_lease(database: Engine, owner: str) -> None:
    with database.begin() as conn:
        conn.execute(Controller.update().where(Controller.c.id == owner).values(lease_until=0.0))


def test_claim__takes_services_of_the_dead_alone(database: Engine, a: Peer, b: Peer) -> None:
    add_service(database, "a", "of-a")
    add_service(database, "nobody-known", "of-nobody")
    add_service(database, None, "of-none")
    add_service(database, None, "settled", wanted=DOWN, active_name=None)
    b.sharing.claim()
    assert b.owned() == ["of-nobody", "of-none"]
    assert a.owned() == ["of-a"]
    end_lease(database, "a")
    b.sharing.claim()
    assert b.owned() == ["of-a", "of-nobody", "of-none"]
    assert a.owned() == []


@pytest.mark.parametrize("why", ["lapsed", "no proxy"])
def test_claim__is_left_to_others_that_can(database: Engine, b: Peer, why: str) -> None:
    add_service(database, None)
    b.may_claim, b.why_no_proxy = (False, None) if why == "lapsed" else (True, "install HAProxy")
    b.sharing.claim()
    assert b.owned() == []


def test_writing__is_refused_after_a_takeover(database: Engine, a: Peer, b: Peer) -> None:
    service_id = add_service(database, "a")
    with a.sharing.writing(service_id) as conn:
        records.change(conn, service_id, target=2)
    end_lease(database, "a")
    b.sharing.claim()
    with pytest.raises(ServiceLost), a.sharing.writing(service_id) as conn:
        records.change(conn, service_id, target=9)
    with database.connect() as conn:
        row = records.get(conn, service_id)
    assert row is not None
    assert row.target == 2


def test_probes__are_seen_by_the_others_until_the_connection_moves(
    database: Engine, a: Peer, b: Peer, clock: ManualClock
) -> None:
    place = (KEY, 0)
    with database.begin() as conn:
        agent_connections.record(conn, place, controller="b", session_id="1", now=clock.now())
    b.readiness.on_report(place, ReadinessFrame(type="readiness", ready=True, failing_s=None, message=""))
    b.sharing.publish_probes()
    assert a.probes() == {KEY: Probe(ready=True, revision=None)}
    failed = ReadinessFrame(type="readiness", ready=False, failing_s=3.0, message="503", revision=2, running_s=5.0)
    b.readiness.on_report(place, failed)
    b.sharing.publish_probes()
    since = clock.now() - 3
    assert a.probes() == {KEY: Probe(False, since, "503", revision=2, running_since=clock.now() - 5)}
    with database.begin() as conn:  # the node has reconnected to `a`, and has not reported yet
        agent_connections.record(conn, place, controller="a", session_id="2", now=clock.now())
    assert b.probes() == {}
    b.sharing.publish_probes()
    assert b.probes() == {}, "a controller that has lost a node writes nothing of it"


def test_probes__of_a_dead_controller_do_not_count(database: Engine, a: Peer, b: Peer, clock: ManualClock) -> None:
    with database.begin() as conn:
        agent_connections.record(conn, (KEY, 0), controller="b", session_id="1", now=clock.now())
    b.readiness.on_report((KEY, 0), ReadinessFrame(type="readiness", ready=True, failing_s=None, message=""))
    b.sharing.publish_probes()
    end_lease(database, "b")
    assert a.probes() == {}


def test_reports__are_those_of_the_owner(database: Engine, a: Peer, b: Peer) -> None:
    service_id = add_service(database, "a")
    assert b.report_of(service_id).problem == "its proxy is being started"
    report = ProxyReport(Traffic(5, 4), {1: 3, 2: 1}, "", queued=2, held_since=90.0)
    a.sharing.publish_reports({service_id: report})
    assert (a.report_of(service_id), b.report_of(service_id)) == (MINE, report)
    end_lease(database, "a")
    assert b.report_of(service_id).problem == NO_OWNER


def test_address__is_that_of_another_owner(database: Engine, a: Peer, b: Peer) -> None:
    service_id = add_service(database, "a")
    with database.begin() as conn:
        conn.execute(Controller.update().where(Controller.c.id == "a").values(peer_url="http://10.0.0.1:80"))
        row = records.get(conn, service_id)
        assert row is not None
        assert (a.sharing.address_of(conn, row), b.sharing.address_of(conn, row)) == ("", "http://10.0.0.1:80")
