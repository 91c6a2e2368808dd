"""Controllers, machines and the market, as the dashboard reads them."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import insert, update

from perdure.controller.store.records.clusters import Cluster
from perdure.controller.store.records.jobs import Attempt, Job, Node, Task, insert_batch
from perdure.recovery.market.history import OfferObservation
from perdure.recovery.market.offers import Market, OfferKey
from perdure.recovery.market.unavailable import FaultKind, UnavailableOffer
from unit.controller.api.dashboard.conftest import Dashboard

OFFER = {
    "cloud": "local", "region": "r", "zone": "z", "instance_type": "local-2", "market": "spot", "price_per_hour": 1.0,
    "on_demand_price_per_hour": 2.0, "vcpus": 2, "memory_gib": 8, "accelerators": None,
}  # fmt: skip


def add_job(dashboard: Dashboard, states: list[str], nodes: int = 1) -> int:
    """A job with an attempt in each of `states`."""
    now = dashboard.clock.now()
    with dashboard.daemon.database.begin() as conn:
        columns = {"name": "j", "submitted_at": now, "user": "ada", "priority": 0, "num_tasks": 1}
        (job_id,) = insert_batch(conn, columns)
        task: dict[str, Any] = {
            "job_id": job_id, "index": 0, "task_id": f"t{job_id}", "status": "RUNNING", "config": {}, "spec": {},
            "requirements": [], "recovery": {}, "state": "RUNNING", "reason": "STARTED", "message": "", "name": "t",
        }  # fmt: skip
        conn.execute(insert(Task).values(**task))
        for generation, state in enumerate(states, 1):
            key = {"job_id": job_id, "task_index": 0, "generation": generation}
            conn.execute(insert(Attempt).values(**key, state=state, offer=OFFER, requested_at=now, booted_at=now))
            for rank in range(nodes):
                node = {"rank": rank, "phase": "running", "instance_id": f"i-{job_id}-{rank}", "message": ""}
                conn.execute(insert(Node).values(**key, **node))
    return job_id


def test_nodes__are_those_of_attempts_that_are_not_over(dashboard: Dashboard) -> None:
    first, second = add_job(dashboard, ["GONE", "RUNNING"], nodes=2), add_job(dashboard, ["GONE"])
    page = dashboard.caller.get("/api/v1/nodes").json()
    assert [(n["job_id"], n["generation"], n["rank"]) for n in page["nodes"]] == [(first, 2, 0), (first, 2, 1)]
    node = page["nodes"][0]
    assert (node["user"], node["zone"], node["price_per_hour"], node["attempt_state"]) == ("ada", "z", 1.0, "RUNNING")
    assert second not in {n["job_id"] for n in page["nodes"]}


def test_nodes__of_a_cluster_are_its_machines_without_slots(dashboard: Dashboard) -> None:
    host, on_cluster = add_job(dashboard, ["RUNNING"]), add_job(dashboard, ["RUNNING"])
    with dashboard.daemon.database.begin() as conn:
        row = {"name": "dev", "wanted": "UP", "created_at": 0.0, "launched_at": 0.0, "active_at": 0.0}
        conn.execute(insert(Cluster).values(id=1, config={}, command="", **row))
        conn.execute(update(Job).where(Job.c.id == host).values(name="dev", cluster_id=1))
        conn.execute(update(Job).where(Job.c.id == on_cluster).values(cluster_id=1, cluster_job=1))
    (node,) = dashboard.caller.get("/api/v1/nodes").json()["nodes"]
    assert (node["job_id"], node["name"]) == (host, "cluster dev")
    shown = [dashboard.caller.get(f"/api/v1/jobs/{job_id}").json() for job_id in (host, on_cluster)]
    assert [(job["cluster"], job["cluster_job"]) for job in shown] == [("dev", None), ("dev", 1)]
    managed = dashboard.caller.get(f"/api/v1/jobs/{add_job(dashboard, ['RUNNING'])}").json()
    assert (managed["cluster"], managed["cluster_job"]) == (None, None)


def test_nodes__are_paged_by_jobs(dashboard: Dashboard) -> None:
    jobs = [add_job(dashboard, ["RUNNING"], nodes=2) for _ in range(3)]
    listed, before = [], ""
    for _ in range(2):
        page = dashboard.caller.get(f"/api/v1/nodes?limit=2{before}").json()
        listed += [n["job_id"] for n in page["nodes"]]
        before = f"&before={page['next']}"
    assert listed == [jobs[2]] * 2 + [jobs[1]] * 2 + [jobs[0]] * 2
    assert page["next"] is None


def test_nodes__are_found_by_the_index_of_live_attempts(dashboard: Dashboard) -> None:
    from perdure.controller.api.dashboard import fleet

    with dashboard.daemon.database.connect() as conn:
        query = str(fleet._JOBS.limit(50).compile(conn, compile_kwargs={"literal_binds": True}))
        plan = str(conn.exec_driver_sql(f"EXPLAIN QUERY PLAN {query}").all())
    assert "ix_attempt_live" in plan, plan


def test_controllers__hold_their_lease(dashboard: Dashboard) -> None:
    dashboard.daemon._ownership._lease.renew()
    (row,) = dashboard.caller.get("/api/v1/controllers").json()
    assert row["is_alive"] is True
    dashboard.clock.at += 3600
    assert dashboard.caller.get("/api/v1/controllers").json()[0]["is_alive"] is False


@pytest.fixture
def market(dashboard: Dashboard) -> Dashboard:
    dashboard.caller.get("/api/v1/market")  # reads the offers
    return dashboard


def rows(dashboard: Dashboard, query: str = "") -> dict[str, dict[str, Any]]:
    table = dashboard.caller.get(f"/api/v1/market{query}").json()
    return {row["zone"]: row for row in table["offers"] if row["instance_type"] == "local-1"}


def test_market__has_both_prices_of_each_zone(market: Dashboard) -> None:
    by_zone = rows(market)
    assert len(by_zone) == 3
    for row in by_zone.values():
        assert row["spot_per_hour"] < row["on_demand_per_hour"]
        assert (row["avoided_until"], row["last_tried"], row["lost_in_a_day"]) == (None, None, 0)


def test_market__says_what_is_avoided_and_why(market: Dashboard) -> None:
    now, state = market.clock.now(), market.daemon.api_context.compiler.market
    zone = min(rows(market))
    region = rows(market)[zone]["region"]
    refusal = UnavailableOffer(
        "local", now + 600, FaultKind.AVOID_ZONE, now, region, zone, "local-1", Market.SPOT, "NoCapacity", "sold out"
    )
    state.add_unavailable([refusal], 1)
    state.add_observations([OfferObservation(OfferKey("local", region, zone, "local-1", Market.SPOT), now, False)])
    row = rows(market)[zone]
    assert (row["avoided_why"], row["was_available"]) == ("sold out", False)
    (avoided,) = market.caller.get("/api/v1/market").json()["avoided"]
    assert (avoided["zone"], avoided["code"], avoided["kind"]) == (zone, "NoCapacity", "avoid-zone")
    others = [other for name, other in rows(market).items() if name != zone]
    assert all(other["avoided_until"] is None for other in others)
    market.clock.at += 601
    assert rows(market)[zone]["avoided_until"] is None


def test_market__is_filtered(market: Dashboard) -> None:
    assert rows(market, "?cloud=aws") == {}
    assert rows(market, "?accelerator=H100") == {}
    assert len(rows(market, "?instance_type=local-1")) == 3
