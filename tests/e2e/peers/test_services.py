"""Services of several controllers: one runs the proxy of a service, and its replicas may be connected to others."""

from __future__ import annotations

import time

import pytest

from e2e.peers.cluster import Several, StartCluster
from perdure.sdk import serve
from perdure.sdk.connection.client import ApiError, Client
from perdure.sdk.serve import types
from support.helpers.services import HAS_HAPROXY, Caller, service_task

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.skipif(not HAS_HAPROXY, reason="HAProxy is not installed: run scripts/ensure-haproxy.sh"),
]

NAME, NUM_REPLICAS = "model", 2


def until_ready(cluster: Several, client: Client) -> types.Service:
    def find() -> types.Service | None:
        service = serve.get(NAME, client=client)
        is_ready = service["status"] == "READY" and service["ready_replicas"] == NUM_REPLICAS
        return service if is_ready else None

    return cluster.until(find, "all replicas are ready")


def answering(caller: Caller) -> set[str]:
    """The replicas that answer some requests."""
    answers = [caller.call() for _ in range(4 * NUM_REPLICAS)]
    assert {answer.status for answer in answers} == {200}
    return {answer.json()["replica"] for answer in answers}


def test_service__outlives_the_controller_that_runs_its_proxy(several: StartCluster) -> None:
    cluster = several("a", "b")
    a, b = cluster.client_of("a"), cluster.client_of("b")
    del cluster.relay.backends["a"]  # so every node connects to the other controller
    task = service_task({"replicas": NUM_REPLICAS}, resources={"infra": "local"})
    started = serve.up(task, NAME, client=a)
    caller = Caller(started["endpoint"], started["token"])
    before = until_ready(cluster, a)
    assert until_ready(cluster, b)["endpoint"] == started["endpoint"], "each controller knows all of it"
    jobs = {one["number"]: one["job_id"] for one in before["replicas"]}
    assert {cluster.node_connection(job or 0) for job in jobs.values()} == {"b"}
    replicas = {str(number) for number in jobs}
    assert answering(caller) == replicas
    assert [event["index"] for event in caller.stream(5)] == [0, 1, 2, 3, 4]
    assert "GET / 200" in serve.proxy_log(NAME, client=a)
    with pytest.raises(ApiError, match="is on another controller"):
        serve.proxy_log(NAME, client=b)

    killed_at = time.monotonic()
    cluster.daemons.pop("a").kill()
    cluster.until(lambda: caller.call().status == 200, "the same endpoint answers")
    print(f"\nit answered {time.monotonic() - killed_at:.1f} s after its controller was killed; lease: 3 s")
    after = until_ready(cluster, b)
    assert {one["number"]: one["job_id"] for one in after["replicas"]} == jobs, "no replica was replaced"
    assert after["endpoint"] == started["endpoint"]
    assert answering(caller) == replicas
    serve.down(NAME, client=b)
    cluster.until(lambda: not cluster.living(), "the end of every machine")


def test_fallback__is_decided_by_the_controller_that_takes_over(several: StartCluster) -> None:
    """It launches nothing for replicas whose nodes are about to connect to it, and stands in for those that go."""
    cluster = several("a", "b")
    a, b = cluster.client_of("a"), cluster.client_of("b")
    policy = {"min_replicas": NUM_REPLICAS, "dynamic_ondemand_fallback": True}
    task = service_task({"replica_policy": policy}, resources={"infra": "local", "use_spot": True})
    backend = cluster.relay.backends.pop("b")  # so every node connects to the controller that is killed
    started = serve.up(task, NAME, client=a)
    cluster.until(lambda: spot_replicas(a), "spot replicas alone")
    cluster.relay.backends["b"] = backend
    before = spot_replicas(a)
    assert {cluster.node_connection(job) for job in before.values()} == {"a"}
    launched = len(launches(a))

    cluster.kill("a")
    caller = Caller(started["endpoint"], started["token"])
    cluster.until(lambda: caller.call().status == 200, "the same endpoint answers")
    cluster.until(lambda: spot_replicas(b) == before, "the same replicas are ready")
    assert len(launches(b)) == launched, "nothing stood in for replicas that were there"

    lost = min(before)
    b.preempt(before[lost], notice_s=20)
    cluster.until(lambda: len(launches(b)) > launched + 1, "a replacement, and what stands in for it")
    assert sorted(launches(b)[launched:]) == ["", "spot"], "one on demand, and one spot machine"
    cluster.until(lambda: len(spot_replicas(b)) == NUM_REPLICAS and lost not in spot_replicas(b), "spot alone again")
    assert answering(caller) == {str(number) for number in spot_replicas(b)}
    serve.down(NAME, client=b)
    cluster.until(lambda: not cluster.living(), "the end of every machine")


def spot_replicas(client: Client) -> dict[int, int]:
    """The jobs of the replicas, by number, once all are ready spot machines; {} until then."""
    live = [one for one in serve.get(NAME, client=client)["replicas"] if not one["ended_at"]]
    is_settled = len(live) == NUM_REPLICAS and all(one["status"] == "READY" and one["is_spot"] for one in live)
    return {one["number"]: one["job_id"] or 0 for one in live} if is_settled else {}


def launches(client: Client) -> list[str]:
    """Of each replica that was launched, whether it is on spot."""
    entries = serve.timeline(NAME, client=client)
    return [one["message"] for one in entries if one["kind"] == "service.replica_launched"]
