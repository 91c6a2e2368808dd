"""A service from its start to its end: the endpoint, its token, and what survives which death."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import time
from datetime import datetime

import psutil
import pytest

from perdure.sdk import serve
from perdure.sdk.spec.service_fields import DEFAULT_PROBE_INTERVAL_S
from support.helpers.services import PROGRAM, Caller, ServiceHost, service_task
from support.helpers.timing import scaled

NAME = "model"


@pytest.fixture(scope="module")
def caller(sky: ServiceHost) -> Caller:
    """A service with two replicas."""
    return sky.up(NAME, service_task({"replicas": 2}), ready=2)


def test_endpoint__needs_the_token(caller: Caller) -> None:
    assert caller.call(token="").status == 401
    assert caller.call(token="wrong").status == 401
    assert caller.call().status == 200


def test_endpoint__hides_the_token_from_replicas_logs_and_database(sky: ServiceHost, caller: Caller) -> None:
    headers = caller.call("/?key=in-the-query").json()["headers"]
    assert "authorization" not in {name.lower() for name in headers}
    log = sky.controller.perdure("serve", "logs", NAME, "--load-balancer").stdout
    assert "GET / 200" in log
    assert "in-the-query" not in log
    secret = caller.token.encode()
    files = [path for path in sky.controller.home.rglob("*") if path.is_file() and "local" not in path.parts]
    assert len(files) > 5
    assert [path for path in files if secret in path.read_bytes()] == []


def test_endpoint__logs_no_header(sky: ServiceHost, caller: Caller) -> None:
    with contextlib.closing(caller.open()) as link:
        headers = {"Authorization": f"Bearer {caller.token}", "X-Canary": "of-a-header", "Cookie": "of-a-cookie"}
        link.request("GET", "/seen", headers=headers)
        assert link.getresponse().read().count(b"of-a-header") == 1, "the replica gets it"
    assert "GET /seen 200" in sky.controller.perdure("serve", "logs", NAME, "--load-balancer").stdout
    logs = [path for path in sky.controller.home.rglob("*") if path.is_file() and "log" in path.name]
    assert len(logs) > 2
    everything = b"".join(path.read_bytes() for path in logs)
    for secret in (b"Bearer", b"of-a-header", b"of-a-cookie"):
        assert secret not in everything


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
def test_endpoint__passes_every_method(caller: Caller, method: str) -> None:
    assert caller.call("/x", method, body={}).json()["method"] == method


def test_endpoint__passes_head(caller: Caller) -> None:
    answer = caller.call("/x", "HEAD")
    assert (answer.status, answer.body) == (200, b"")


def test_endpoint__streams_events_as_they_are_sent(caller: Caller) -> None:
    late = [time.monotonic() - event["at"] for event in caller.stream(10)]
    assert len(late) == 10
    assert sorted(late)[5] < 0.5  # the whole answer takes as long


def test_endpoint__carries_websockets(caller: Caller) -> None:
    with contextlib.closing(caller.open()) as link:
        upgrade = {
            "Upgrade": "websocket",
            "Connection": "Upgrade",
            "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
            "Sec-WebSocket-Version": "13",
        }
        link.request("GET", "/", headers={"Authorization": f"Bearer {caller.token}", **upgrade})
        link.sock.settimeout(30)
        head = link.sock.recv(4096)
        assert head.startswith(b"HTTP/1.1 101")
        link.sock.sendall(b"hello")
        assert link.sock.recv(4096) == b"hello"


def test_endpoint__repeats_no_post(sky: ServiceHost, caller: Caller) -> None:
    before = caller.calls(2)
    assert caller.call("/x", "POST", body={"hang_up": True}).status == 502
    assert caller.calls(2) == before + 1


def test_endpoint__repeats_a_get_without_an_answer(caller: Caller) -> None:
    assert caller.call("/once").status == 200, "each replica hangs up at first"


_LONG = (pytest.mark.long, pytest.mark.timeout(500))


@pytest.mark.parametrize(
    ("limit_s", "wait_s", "status"),
    [
        (1, 4, 504),
        pytest.param(None, 130, 504, marks=_LONG, id="longer than SkyServe's limit, which is the default"),
        pytest.param(200, 130, 200, marks=_LONG, id="within a limit of the service"),
    ],
)
def test_endpoint__gives_a_slow_post_to_one_replica(
    sky: ServiceHost, limit_s: int | None, wait_s: int, status: int
) -> None:
    """A generation that takes longer than the limit is not begun a second time."""
    balancer = {"load_balancer": {"stream_timeout_seconds": limit_s}} if limit_s else {}
    caller = sky.up("slow", service_task({"replicas": 2, **balancer}), ready=2)
    assert caller.call("/x", "POST", body={"wait_s": wait_s}, timeout_s=wait_s + 60).status == status
    assert caller.calls(2) == 1
    sky.controller.perdure("serve", "down", "slow", "--yes")


def test_machines__listen_with_their_program_alone(sky: ServiceHost, caller: Caller) -> None:
    machines = [one for one in sky.machines() if len(one) > 2]  # the agent and the program
    assert len(machines) == 2
    listening = []
    for pid in (pid for machine in machines for pid in machine):
        with contextlib.suppress(psutil.NoSuchProcess):
            one = psutil.Process(pid)
            listening += [one.cmdline()[1] for c in one.net_connections("inet") if c.status == psutil.CONN_LISTEN]
    assert listening == [str(PROGRAM)] * 2


def test_replicas__share_the_requests(caller: Caller) -> None:
    assert {caller.call().json()["replica"] for _ in range(6)} == {"1", "2"}


def test_status__shows_services_and_replicas(sky: ServiceHost, caller: Caller) -> None:
    out = sky.controller.perdure("serve", "status", NAME).stdout
    assert f"READY 2/2 {caller.endpoint}" in " ".join(out.split())
    assert out.count("READY") == 3
    assert sky.controller.perdure("serve", "status", NAME, "--token").stdout.strip() == caller.token
    assert "loading the model" in sky.controller.perdure("serve", "logs", NAME, "1", "--no-follow").stdout


def test_replicas__are_not_among_the_managed_jobs(sky: ServiceHost, caller: Caller) -> None:
    assert sky.client.jobs()["jobs"] == []


def test_up__refuses_a_name_in_use(sky: ServiceHost, caller: Caller) -> None:
    with pytest.raises(serve.ApiError, match="exists"):
        serve.up(service_task(), NAME, client=sky.client)


def test_proxy__is_started_again_and_refuses_nobody(sky: ServiceHost, caller: Caller) -> None:
    killed = sky.proxy_pid(NAME)
    os.kill(killed, signal.SIGKILL)
    began = time.monotonic()
    assert caller.call().status == 200
    assert time.monotonic() - began < scaled(1)
    assert sky.proxy_pid(NAME) != killed


def test_daemon__keeps_endpoint_token_and_replicas_when_it_is_killed(sky: ServiceHost, caller: Caller) -> None:
    before = [one["job_id"] for one in sky.ready(NAME)]
    sky.kill_daemon()
    sky.until(NAME, lambda one: one["status"] == "READY" and one["ready_replicas"] == 2, "all replicas again")
    assert [one["job_id"] for one in sky.ready(NAME)] == before
    assert caller.call().status == 200
    assert serve.token(NAME, client=sky.client) == {"endpoint": caller.endpoint, "token": caller.token}


def test_service__that_cannot_start_says_why(sky: ServiceHost) -> None:
    sky.up("broken", service_task({"replicas": 1}, run="echo 'no such model: tiny-7b'; exit 3"), ready=None)
    service = sky.until("broken", lambda one: one["status"] == "FAILED", "the status FAILED")
    assert "no such model: tiny-7b" in service["message"]
    (replica,) = service["replicas"]
    (ended,) = [one for one in serve.timeline("broken", client=sky.client) if one["kind"] == "service.failed"]
    began = sky.controller.job(replica["job_id"])["attempts"][0]["running_at"]
    took = datetime.fromisoformat(ended["at"]) - datetime.fromisoformat(began)
    assert took.total_seconds() < scaled(DEFAULT_PROBE_INTERVAL_S), "within one probe"
    assert "no such model: tiny-7b" in sky.controller.perdure("serve", "status", "broken").stdout
    caller = Caller(service["endpoint"] or "", serve.token("broken", client=sky.client)["token"])
    # A request that was on its way to the replica when that ended is answered with 502.
    sky.controller.until(lambda: caller.call().status == 503, "the refusal of every request")
    assert "cannot start" in caller.call().json()["error"]["message"]
    sky.controller.perdure("serve", "down", "broken", "--yes")


def test_service__that_is_never_ready_is_given_up(sky: ServiceHost) -> None:
    probe = {"readiness_probe": {"path": "/nowhere", "initial_delay_seconds": 1, "post_data": {"hang_up": True}}}
    sky.up("mute", service_task(probe), ready=None)
    service = sky.until("mute", lambda one: one["status"] == "FAILED", "the status FAILED")
    assert "FAILED_INITIAL_DELAY" in service["message"]
    sky.controller.perdure("serve", "down", "mute", "--yes")


def test_down__leaves_nothing(sky: ServiceHost, caller: Caller) -> None:
    sky.controller.perdure("serve", "down", NAME, "--yes")
    assert sky.get(NAME)["status"] == "DOWN"
    sky.controller.until(sky.no_machines, "the end of every machine")
    sky.controller.until(lambda: sky.controller_processes() == ["perdure.controller"], "nothing else that runs")
    with pytest.raises((ConnectionRefusedError, http.client.RemoteDisconnected)):
        caller.call()
    assert sky.controller.perdure("serve", "status").stdout.count("No live services") == 1
    assert "loading the model" in sky.controller.perdure("serve", "logs", NAME, "1", "--no-follow").stdout
