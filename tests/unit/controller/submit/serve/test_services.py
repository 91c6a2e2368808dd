"""Requests about services, through the API of a daemon without a reconciler, and what the watch makes of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import insert

from perdure.controller.api.serve import proxies, services
from perdure.controller.api.serve.listing import MAX_ENDED
from perdure.controller.maintenance.serve.launches import PLACED_WITHIN_S
from perdure.controller.reconcile.market_state import record_unavailable
from perdure.controller.runtime.clock import ManualClock
from perdure.controller.store.codec import decode_recovery
from perdure.controller.store.engine.batch_writer import WriteBatch
from perdure.controller.store.records.jobs import Attempt, Job, Task
from perdure.controller.store.records.peer_messages import PeerMessages
from perdure.controller.store.services import records
from perdure.controller.store.services.records import Replicas, Versions
from perdure.controller.submit.service import Accepted, Submission
from perdure.recovery.market.cooldown import unavailable_after_preemption
from perdure.sdk.serve import types
from support.worlds.job_driver import OFFERS
from unit.controller.submit.serve.conftest import SERVICE, Controller


def test_up__of_several_controllers_says_where_the_endpoint_is(alone: Controller) -> None:
    shared = replace(alone.daemon.settings, database_url="postgresql://db/perdure")
    (hint,) = services.hints(shared, 1)
    assert "set listen.advertise" in hint
    (hint,) = services.hints(replace(shared, advertise="https://perdure.lan:8080"), 1)
    assert "load balancer at perdure.lan" in hint
    assert services.hints(alone.daemon.settings, 1) == ()


def test_services__belong_to_the_controller_that_starts_them(alone: Controller) -> None:
    alone.up()
    (row,) = alone.rows(records.Services)
    assert row.owner == alone.daemon.api_context.services.sharing.owner  # type: ignore[union-attr]


def test_up__says_what_to_install(alone: Controller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxies, "find_haproxy", lambda: None)
    answer = alone.up()
    assert (answer.status_code, answer.json()["error"]["fix"]) == (409, proxies.NOT_INSTALLED)
    assert alone.rows(records.Services) == []


def test_up__repeated_with_its_key_is_done_once(alone: Controller) -> None:
    first, again = alone.up(), alone.up()
    assert first.json() == again.json()
    assert first.json()["token"]
    assert alone.up(key="other").status_code == 409
    assert len(alone.rows(records.Services)) == 1


@pytest.mark.parametrize(
    ("request_", "where"),
    [
        ({"name": "No Name"}, "name"),
        ({"task": {**SERVICE, "resources": {}}}, "service.ports"),
        ({"task": {**SERVICE, "service": {"readiness_probe": "up"}}}, "service.readiness_probe"),
        ({"task": {**SERVICE, "service": None}}, "service"),
        ({"task": {**SERVICE, "pool": {"workers": 1}}}, "pool"),
        (
            {"task": {**SERVICE, "service": {"readiness_probe": "/", "tls": {"keyfile": "k", "certfile": "c"}}}},
            "service.tls",
        ),
        ({"task": {**SERVICE, "workdir": {"upload": "0" * 64}}}, "tasks"),
    ],
)
def test_up__names_what_is_wrong_and_changes_nothing(alone: Controller, request_: dict[str, Any], where: str) -> None:
    answer = alone.up(**request_)
    assert (answer.status_code, answer.json()["error"]["where"]) == (400, where)
    assert alone.rows(records.Services) == alone.rows(Job) == []


def test_watch__submits_each_replica_once(alone: Controller) -> None:
    alone.up()
    for _ in range(3):
        alone.evaluate()
    replicas = [(row.number, row.version, row.job_id) for row in alone.rows(Replicas)]
    assert replicas == [(1, 1, 1), (2, 1, 2)]
    assert [(row.name, row.idempotency_key, row.service_id) for row in alone.rows(Job)] == [
        ("model-1", "service/1/1", 1),
        ("model-2", "service/1/2", 1),
    ]
    tasks = alone.rows(Task)
    assert [row.spec["envs"]["SKYPILOT_SERVE_REPLICA_ID"] for row in tasks] == ["1", "2"]
    assert not any(row.recovery["recovers"] for row in tasks)
    assert alone.call("GET", "/jobs").json()["total"] == 0, "they are no managed jobs"


def test_watch__completes_a_launch_that_was_interrupted(alone: Controller) -> None:
    alone.up()
    alone.evaluate()  # the rows are written, and no job yet
    assert [row.job_id for row in alone.rows(Replicas)] == [None, None]
    with alone.daemon.database.begin() as conn:
        row = records.get(conn, 1)
    services_ = alone.daemon.api_context.services
    assert services_ is not None
    assert row is not None
    version = services_.requests
    with alone.daemon.database.connect() as conn:
        newest = records.version(conn, 1, 1)
    job_id = version.launch_replica(row, newest, 1, is_spot=False)
    assert version.launch_replica(row, newest, 1, is_spot=False) == job_id, "its key makes it one job"
    alone.evaluate()
    assert len(alone.rows(Job)) == 2


@pytest.mark.parametrize("is_forgotten", [False, True])
def test_launch__that_takes_until_another_controller_has_ended_the_replica_is_cancelled(
    alone: Controller, is_forgotten: bool
) -> None:
    alone.up({**SERVICE, "service": {"readiness_probe": "/up", "replicas": 1}})
    alone.evaluate()
    services_ = alone.daemon.api_context.services
    assert services_ is not None
    watch, requests = services_.watch, services_.requests

    def stall(submission: Submission) -> Accepted:
        """Meanwhile another controller has taken the service over, which is down."""
        requests.down("model")
        with alone.daemon.database.begin() as conn:
            records.change_replica(conn, 1, 1, retired_at=0.0, retired_as="TERMINATED")
            records.end_unlaunched(conn, 1, 1, 1.0)
            if is_forgotten:
                records.forget_ended(conn, 1, 0)
        return requests.accept(submission)

    watch._requests = replace(requests, accept=stall)
    alone.evaluate()
    assert [row.id for row in alone.rows(Job)] == [1]
    alone.evaluate()
    assert {row.job_id for row in alone.rows(PeerMessages)} == {1}, "it is being cancelled"


def test_down__ends_a_job_whose_launch_was_not_written_down(alone: Controller) -> None:
    alone.up({**SERVICE, "service": {"readiness_probe": "/up", "replicas": 1}})
    alone.evaluate()
    alone.evaluate()
    with alone.daemon.database.begin() as conn:  # the daemon was killed before
        records.change_replica(conn, 1, 1, job_id=None)
    alone.call("POST", "/services/model/down")
    for _ in range(3):
        alone.evaluate()
    assert {row.job_id for row in alone.rows(PeerMessages)} == {1}


def test_secrets__are_sealed_wherever_the_task_has_them(alone: Controller) -> None:
    probe = {"path": "/up", "headers": {"Authorization": "Bearer canary"}}
    task = {**SERVICE, "service": {"readiness_probe": probe}, "secrets": {"KEY": "canary"}}
    token = alone.up(task).json()["token"]
    alone.evaluate()
    alone.evaluate()
    (version,), (stored,) = alone.rows(Versions), alone.rows(Task)
    assert version.section["readiness_probe"]["headers"] == {"Authorization": "Bearer ${KEY}"}
    assert stored.spec["probe"]["headers"] == {"Authorization": "Bearer ${KEY}"}
    assert "canary" not in str([*alone.rows(Versions), *alone.rows(Task), *alone.rows(records.Services)])
    assert token not in str(alone.rows(records.Services))


def test_on_demand_replicas__ask_for_no_spot_machines(alone: Controller) -> None:
    policy = {"min_replicas": 2, "base_ondemand_fallback_replicas": 1, "spot_placer": "dynamic_fallback"}
    task = {
        **SERVICE,
        "service": {"readiness_probe": "/up", "replica_policy": policy},
        "resources": {"ports": 8080, "use_spot": True},
    }
    assert alone.up(task).status_code == 201
    alone.evaluate()
    alone.evaluate()
    assert sorted((row.is_spot, row.job_id) for row in alone.rows(Replicas)) == [(False, 2), (True, 1)]
    tasks = {row.job_id: row for row in alone.rows(Task)}
    assert [tasks[job_id].requirements[0]["use_spot"] for job_id in (1, 2)] == [True, False]
    assert {row.recovery["strategy"] for row in tasks.values()} == {"SPREAD"}


def test_update__makes_one_version_for_each_key(alone: Controller) -> None:
    alone.up()
    body = {"task": {**SERVICE, "service": {"readiness_probe": "/up", "replicas": 3}}, "key": "u"}
    answers = [alone.call("POST", "/services/model/update", **body).json() for _ in range(2)]
    assert [answer["version"] for answer in answers] == [2, 2]
    assert answers[0]["token"] == alone.up().json()["token"], "the endpoint stays"
    assert alone.call("GET", "/services/model").json()["target_replicas"] == 3


@pytest.mark.parametrize(
    ("change", "is_kept"),
    [
        ({"service": {"readiness_probe": "/up", "replicas": 2, "load_balancing_policy": "round_robin"}}, True),
        ({"service": {"readiness_probe": {"path": "/up", "initial_delay_seconds": 5}, "replicas": 2}}, True),
        ({"service": {"readiness_probe": "/other", "replicas": 2}}, False),
        ({"run": "serve --better $SKYPILOT_NODE_IPS"}, False),
        ({"envs": {"MODEL": "larger"}}, False),
        ({"resources": {"ports": 8081}}, False),
        ({"resources": {"ports": 8080, "cpus": 2}}, False),
    ],
)
def test_update__of_the_service_section_alone_keeps_the_replicas(
    alone: Controller, change: dict[str, Any], is_kept: bool
) -> None:
    alone.up()
    alone.evaluate()
    alone.evaluate()
    assert alone.call("POST", "/services/model/update", task={**SERVICE, **change}, key="u").status_code == 201
    for _ in range(3):
        alone.evaluate()
    wanted = [(row.number, row.version) for row in alone.rows(Replicas) if row.retired_as is None]
    assert (wanted == [(1, 2), (2, 2)]) is is_kept
    assert (len(alone.rows(Job)) == 2) is is_kept


def test_terminate_replica__is_replaced_by_another_number(alone: Controller) -> None:
    alone.up()
    alone.evaluate()
    alone.evaluate()
    assert alone.call("POST", "/services/model/replicas/1/terminate").status_code == 200
    alone.evaluate()
    assert [(row.number, row.retired_as) for row in alone.rows(Replicas)] == [(1, "TERMINATED"), (2, None), (3, None)]
    assert alone.call("POST", "/services/model/replicas/9/terminate").status_code == 404


def test_down__cancels_the_jobs_of_all_replicas(alone: Controller) -> None:
    alone.up()
    alone.evaluate()
    alone.evaluate()
    assert alone.call("POST", "/services/model/down").json()["status"] == "SHUTTING_DOWN"
    alone.evaluate()
    alone.evaluate()
    assert [row.retired_as for row in alone.rows(Replicas)] == ["TERMINATED", "TERMINATED"]
    assert {row.job_id for row in alone.rows(PeerMessages)} == {1, 2}, "both are being cancelled"
    assert alone.call("GET", "/services").json()["services"] == []
    assert alone.call("GET", "/services/model/token").status_code == 404
    assert alone.up(key="again").status_code == 201, "the name may be used again"


def test_requests__name_a_service_that_does_not_exist(alone: Controller) -> None:
    for method, path in (("GET", "/services/x"), ("POST", "/services/x/down"), ("GET", "/services/x/timeline")):
        answer = alone.call(method, path)
        assert (answer.status_code, answer.json()["error"]["where"]) == (404, "name")


def test_show__lists_all_replicas_that_are_over_where_asked(alone: Controller) -> None:
    alone.up()
    with alone.daemon.database.begin() as conn:
        for _ in range(MAX_ENDED + 2):
            number = records.insert_replica(conn, 1, 1, is_spot=False, now=1.0)
            records.change_replica(conn, 1, number, retired_at=2.0, retired_as="FAILED")
            records.change_replica(conn, 1, number, ended_at=3.0, final_status="FAILED")
    lists = [alone.call("GET", f"/services/model{query}").json()["replicas"] for query in ("", "?all_replicas=1")]
    assert [len(one) for one in lists] == [MAX_ENDED, MAX_ENDED + 2]


def test_timeline__says_what_was_wanted_and_decided(alone: Controller) -> None:
    alone.up()
    alone.evaluate()
    alone.evaluate()
    alone.call("POST", "/services/model/replicas/1/terminate")
    alone.call("POST", "/services/model/down")
    entries = alone.call("GET", "/services/model/timeline").json()["entries"]
    assert [(one["kind"], one["version"], one["replica"]) for one in entries] == [
        ("service.started", 1, None),
        ("service.replica_launched", 1, 1),
        ("service.replica_launched", 1, 2),
        ("service.replica_ended", 1, 1),
        ("service.down", None, None),
    ]
    assert entries[3]["message"] == "TERMINATED: a user has ended it"
    newest = alone.call("GET", "/services/model/timeline?limit=1").json()["entries"]
    assert [one["kind"] for one in newest] == ["service.down"]
    most = alone.call("GET", f"/services/model/timeline?limit={types.MAX_TIMELINE_ENTRIES}")
    assert most.status_code == 200


def test_metrics__show_services_by_their_ids(alone: Controller) -> None:
    alone.up()
    alone.evaluate()
    alone.evaluate()
    text = alone.daemon.api_context.metrics.registry.render()
    assert 'perdure_services{status="REPLICA_INIT"} 1' in text
    assert 'perdure_service_replicas{service="1",status="PENDING"} 2' in text
    assert "model" not in text


def test_spread_replica__knows_the_zones_of_the_others(alone: Controller) -> None:
    policy = {"min_replicas": 1, "spot_placer": "dynamic_fallback"}
    section = {"readiness_probe": "/up", "replica_policy": policy}
    alone.up({**SERVICE, "service": section, "resources": {"ports": 8080, "use_spot": True}})
    requests = alone.daemon.api_context.services.requests  # type: ignore[union-attr]
    with alone.daemon.database.begin() as conn:
        row, version = records.get(conn, 1), records.version(conn, 1, 1)
        number = records.insert_replica(conn, 1, 1, is_spot=True, now=0.0)
    assert row is not None
    requests.launch_replica(row, version, number, is_spot=True, taken_zones={"west-1a", "east-1a"})
    (task,) = alone.rows(Task)
    assert (task.recovery["strategy"], task.recovery["taken_zones"]) == ("SPREAD", ["east-1a", "west-1a"])


def place(alone: Controller, job_id: int, zone: str) -> None:
    """Record the placement of a job, as the reconciler would."""
    offer = {"cloud": "c", "region": "r", "zone": zone, "instance_type": "m", "market": "spot", "price_per_hour": 1.0}
    offer |= {"on_demand_price_per_hour": 2.0, "vcpus": 2, "memory_gib": 8, "accelerators": None}
    columns = {"job_id": job_id, "task_index": 0, "generation": 1, "state": "REQUESTED", "requested_at": 0.0}
    with alone.daemon.database.begin() as conn:
        conn.execute(insert(Attempt).values(**columns, offer=offer))


def test_spread_replicas__are_launched_once_the_zone_of_the_one_before_is_known(alone: Controller) -> None:
    """All at once, they would choose the same one."""
    policy = {"min_replicas": 3, "spot_placer": "dynamic_fallback", "base_ondemand_fallback_replicas": 1}
    section = {"readiness_probe": "/up", "replica_policy": policy}
    alone.up({**SERVICE, "service": section, "resources": {"ports": 8080, "use_spot": True}})

    def taken_zones() -> list[list[str]]:
        """Of each job, after some evaluations."""
        for _ in range(3):
            alone.evaluate()
        return [row.recovery.get("taken_zones", []) for row in alone.rows(Task)]

    assert taken_zones() == [[], []], "the on-demand replica waits for nothing"
    jobs = {row.number: row.job_id for row in alone.rows(Replicas)}
    first, *later = [row.number for row in alone.rows(Replicas) if row.is_spot]
    assert [jobs[number] for number in later] == [None]
    place(alone, jobs[first], "west-1a")
    assert taken_zones() == [[], [], ["west-1a"]]


def test_spread_replicas__do_not_wait_for_one_that_finds_no_capacity(alone: Controller) -> None:
    policy = {"min_replicas": 2, "spot_placer": "dynamic_fallback"}
    section = {"readiness_probe": "/up", "replica_policy": policy}
    alone.up({**SERVICE, "service": section, "resources": {"ports": 8080, "use_spot": True}})
    clock = alone.daemon.api_context.clock
    assert isinstance(clock, ManualClock)
    counts = []
    for seconds in (0.0, PLACED_WITHIN_S - 0.1, 0.2):
        clock.advance(seconds)
        alone.evaluate()
        alone.evaluate()
        counts.append(len(alone.rows(Task)))
    assert counts == [1, 1, 2]


def test_replica__avoids_the_offers_on_which_the_service_lost_machines(alone: Controller) -> None:
    alone.up()
    alone.evaluate()
    alone.evaluate()
    now = alone.daemon.api_context.clock.now()
    offer = OFFERS[0]
    lost = unavailable_after_preemption(offer, now - 60, unconfirmed=True)
    earlier = unavailable_after_preemption(offer, now - 1900, unconfirmed=True)
    of_another = unavailable_after_preemption(replace(offer, zone="other"), now, unconfirmed=True)
    with alone.daemon.database.begin() as conn:
        writes = WriteBatch(conn)
        record_unavailable(writes, [(1, lost), (1, lost), (1, earlier), (99, of_another)], now)
        writes.flush()
    alone.call("POST", "/services/model/replicas/1/terminate")
    alone.evaluate()
    alone.evaluate()
    first, _, third = alone.rows(Task)
    assert "avoided" not in first.recovery
    (avoided,) = decode_recovery(third.recovery).avoided
    assert avoided == lost


def test_service__that_no_offer_could_run_is_refused(alone: Controller) -> None:
    impossible = {**SERVICE, "resources": {"ports": 8080, "accelerators": "H100:8"}}
    answer = alone.up(impossible)
    error = answer.json()["error"]
    assert (answer.status_code, error["where"]) == (400, "resources")
    assert "H100" in error["message"]
    assert alone.rows(records.Services) == []
    alone.up()
    assert alone.call("POST", "/services/model/update", task=impossible, key="1").status_code == 400
    assert len(alone.rows(Versions)) == 1


def test_terminate_replica__refuses_one_that_is_over(alone: Controller) -> None:
    alone.up()
    alone.evaluate()
    alone.evaluate()
    path = "/services/model/replicas/1/terminate"
    assert [alone.call("POST", path).status_code for _ in range(2)] == [200, 200], "it is being ended"
    with alone.daemon.database.begin() as conn:
        records.change_replica(conn, 1, 1, ended_at=1.0, final_status="TERMINATED")
    answer = alone.call("POST", path)
    message = answer.json()["error"]["message"]
    assert (answer.status_code, message) == (409, "replica 1 of model is over: TERMINATED")
