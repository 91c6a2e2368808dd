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
