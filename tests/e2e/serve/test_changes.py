"""Replicas come and go while callers stream: preemptions, updates, load. No request fails that did not have to."""

from __future__ import annotations

import contextlib
import http.client
import re
import signal
import ssl
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from perdure.controller.runtime.clock import SystemClock
from perdure.controller.runtime.security.certificates import generate_self_signed
from perdure.sdk import serve
from support.helpers.services import Caller, ServiceHost, service_task
from support.helpers.timing import scaled

pytestmark = pytest.mark.slow

NUM_CALLERS, EVENTS, TOKEN_S = 12, 20, "0.1"
NAME, NO_ANSWER = "model", "none"


@dataclass
class Load:
    """Callers that stream one answer after the other.

    `cut`: by replica, the answers that did not end; `told`: those of them in which an event says so; `silent_s`: from
    their last event until the caller knew; `last_event_at`: when the last one did.
    """

    caller: Caller
    stopped: threading.Event = field(default_factory=threading.Event)
    whole: Counter[str] = field(default_factory=Counter)
    cut: Counter[str] = field(default_factory=Counter)
    told: Counter[str] = field(default_factory=Counter)
    silent_s: list[float] = field(default_factory=lambda: [0.0])
    last_event_at: float = 0.0
    events: int = EVENTS

    def run(self) -> None:
        while not self.stopped.is_set():
            events, replica, last_at, is_cut = 0, NO_ANSWER, time.monotonic(), False
            with contextlib.suppress(OSError, http.client.HTTPException, AssertionError):
                for event in self.caller.stream(self.events):
                    if "error" in event:  # perhaps after the last event, before the end of the answer
                        is_cut = True
                        self.told[replica] += 1
                        self.last_event_at = time.monotonic()
                        self.silent_s.append(self.last_event_at - last_at)
                    else:
                        events, replica, last_at = events + 1, event["replica"], time.monotonic()
            (self.whole if events == self.events and not is_cut else self.cut)[replica] += 1


@contextlib.contextmanager
def load(caller: Caller, count: int = NUM_CALLERS, **more: Any) -> Iterator[Load]:
    running = Load(caller, **more)
    threads = [threading.Thread(target=running.run, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    yield running
    running.stopped.set()
    for thread in threads:
        thread.join()


@pytest.fixture(scope="module")
def caller(sky: ServiceHost) -> Caller:
    task = service_task({"replicas": 2}, envs={"TOKEN_S": TOKEN_S}, resources={"use_spot": True})
    return sky.up(NAME, task, ready=2)


def numbers(sky: ServiceHost) -> set[str]:
    return {str(one["number"]) for one in sky.ready(NAME)}


def test_preemption__with_a_notice_cuts_no_stream(sky: ServiceHost, caller: Caller) -> None:
    leaving, staying = sky.ready(NAME)
    with load(caller) as running:
        sky.controller.until(lambda: running.whole[str(leaving["number"])], "answers of the replica that leaves")
        sky.client.preempt(leaving["job_id"] or 0, notice_s=30)
        gone = sky.until(NAME, lambda one: str(leaving["number"]) not in numbers(sky), "one replica that leaves")
        assert gone["status"] == "READY"
        replaced = sky.until_ready(NAME, 2)
        newest = str(max(one["number"] for one in replaced["replicas"]))
        sky.controller.until(lambda: running.whole[newest], "answers of the new replica")
        before = sum(running.whole.values())
        sky.controller.until(lambda: sum(running.whole.values()) > before + NUM_CALLERS, "more answers")
    assert running.cut == {}
    left = next(one for one in sky.get(NAME)["replicas"] if one["number"] == leaving["number"])
    assert left["status"] in ("SHUTTING_DOWN", "PREEMPTED")
    assert str(staying["number"]) in numbers(sky)


def test_preemption__without_a_notice_cuts_only_its_own_streams(sky: ServiceHost, caller: Caller) -> None:
    sky.until_ready(NAME, 2)
    lost = sky.ready(NAME)[0]
    victim = str(lost["number"])
    with load(caller) as running:
        sky.controller.until(lambda: running.whole[victim], "answers of the replica that is lost")
        sky.client.preempt(lost["job_id"] or 0)
        sky.until(NAME, lambda one: victim not in numbers(sky), "one replica less")
        sky.until_ready(NAME, 2)
    assert running.cut[victim], "it answered some streams"
    assert running.told[victim] == running.cut[victim], "an event tells each of them"
    assert set(running.cut) <= {victim, NO_ANSWER}
    assert running.cut.total() <= NUM_CALLERS
    assert max(running.silent_s) < scaled(1), "no caller waits for an answer that does not come"


def test_frozen_machine__loses_its_streams_alone(sky: ServiceHost, caller: Caller) -> None:
    sky.until_ready(NAME, 2)
    victim, other = (str(one["number"]) for one in sky.ready(NAME))
    with load(caller) as running:
        sky.controller.until(lambda: running.whole[victim], "answers of the machine that freezes")
        sky.signal_machine(int(victim), signal.SIGSTOP)
        frozen_at = time.monotonic()
        try:
            sky.until(NAME, lambda one: victim not in numbers(sky), "one replica less")
            out_after_s = time.monotonic() - frozen_at
            sky.controller.until(lambda: running.told[victim], "an event in a stream that was cut")
            ended_after_s = time.monotonic() - frozen_at
            before = running.whole[other]
            sky.controller.until(lambda: running.whole[other] > before + NUM_CALLERS, "answers of the other replica")
        finally:
            sky.signal_machine(int(victim), signal.SIGCONT)
        sky.until(NAME, lambda one: victim in numbers(sky), "the machine that runs again")
    print(f"\nout of the rotation after {out_after_s:.1f} s, its streams ended after {ended_after_s:.1f} s")
    assert ended_after_s < scaled(10)
    assert set(running.cut) <= {victim, NO_ANSWER}
    assert running.told[victim] == running.cut[victim]


def test_update__rolls_without_a_failed_request(sky: ServiceHost, caller: Caller) -> None:
    before = numbers(sky)
    other_machines = {"use_spot": True, "memory": "1+"}
    task = service_task({"replicas": 2}, envs={"TOKEN_S": TOKEN_S, "MODEL": "larger"}, resources=other_machines)
    with load(caller, 4) as running:
        assert serve.update(task, NAME, client=sky.client)["version"] == 2
        most = 0

        def is_done() -> bool:
            nonlocal most
            service = sky.get(NAME)
            live = [
                one for one in service["replicas"] if one["status"] not in ("SHUTTING_DOWN",) and not one["ended_at"]
            ]
            most = max(most, len(live))
            return not numbers(sky) & before and len(numbers(sky)) == 2

        sky.controller.until(is_done, "two new replicas alone")
    assert running.cut == {}
    assert most == 3
    assert caller.call().json()["model"] == "larger"


def test_update__of_the_proxy_cuts_no_stream(sky: ServiceHost, caller: Caller) -> None:
    section = {"replicas": 2, "load_balancing_policy": "round_robin", "load_balancer": {"stream_timeout_seconds": 60}}
    with load(caller, 4) as running:
        pid, before = sky.proxy_pid(NAME), running.whole.total()
        task = service_task(section, envs={"TOKEN_S": TOKEN_S}, resources={"use_spot": True})
        version = serve.update(task, NAME, client=sky.client)["version"]
        sky.until(NAME, lambda one: [r["version"] for r in sky.ready(NAME)] == [version] * 2, "two new replicas")
        sky.controller.until(lambda: running.whole.total() > before + 8, "more answers")
    assert running.cut == {}
    assert sky.proxy_pid(NAME) != pid


def test_update__of_the_certificate_is_served(sky: ServiceHost, caller: Caller, tmp_path: Path) -> None:
    address = (urlsplit(caller.endpoint).hostname or "", urlsplit(caller.endpoint).port or 0)
    plain: dict[str, Any] = {"envs": {"TOKEN_S": TOKEN_S}, "resources": {"use_spot": True}}
    for name in ("first", "second"):  # added, and renewed
        cert, key = tmp_path / f"{name}.cert", tmp_path / f"{name}.key"
        generate_self_signed(cert, key, names=("x",), clock=SystemClock())
        section = {"replicas": 2, "tls": {"keyfile": str(key), "certfile": str(cert)}}
        with load(caller, 4) if name == "first" else contextlib.nullcontext() as running:
            started = serve.update(service_task(section, **plain), NAME, client=sky.client)
            assert started["endpoint"].startswith("https://")
            sky.controller.until(partial(_serves, address, cert.read_text()), "the new certificate")
        if running is not None:
            assert set(running.cut) <= {NO_ANSWER}
    serve.update(service_task({"replicas": 2}, **plain), NAME, client=sky.client)
    sky.controller.until(partial(_answers, caller), "http again")


def _serves(address: tuple[str, int], cert: str) -> bool:
    with contextlib.suppress(OSError):
        return ssl.get_server_certificate(address, timeout=5).strip() == cert.strip()
    return False


def _answers(caller: Caller) -> bool:
    with contextlib.suppress(OSError, http.client.HTTPException):
        return caller.call().status == 200
    return False


def test_update__that_fails_leaves_the_earlier_version(sky: ServiceHost, caller: Caller) -> None:
    before = numbers(sky)
    other_machines = {"use_spot": True, "memory": "1+"}
    broken = service_task({"replicas": 2}, run="echo 'out of memory: tiny'; exit 1", resources=other_machines)
    serve.update(broken, NAME, client=sky.client)
    service = sky.until(NAME, lambda one: one["message"], "a message")
    assert service["status"] == "READY"
    assert "the update has failed" in service["message"]
    assert "out of memory: tiny" in service["message"]
    assert (numbers(sky), caller.call().status) == (before, 200)
    lost = sky.ready(NAME)[0]
    sky.client.preempt(lost["job_id"] or 0)
    sky.until(NAME, lambda _: str(lost["number"]) not in numbers(sky), "one replica less")
    replaced = sky.until_ready(NAME, 2)
    live = {one["version"] for one in replaced["replicas"] if one["status"] == "READY"}
    assert live == {lost["version"]}, "what is lost is replaced by the version that goes on"
    assert "the update has failed" in replaced["message"]


def test_terminate_replica__is_replaced(sky: ServiceHost, caller: Caller) -> None:
    good = service_task({"replicas": 2}, envs={"TOKEN_S": TOKEN_S}, resources={"use_spot": True})
    version = serve.update(good, NAME, client=sky.client)["version"]
    sky.until(NAME, lambda one: [r["version"] for r in sky.ready(NAME)] == [version] * 2, "two new replicas")
    number = sky.ready(NAME)[0]["number"]
    sky.controller.perdure("serve", "terminate-replica", NAME, number, "--yes")
    sky.until(NAME, lambda one: number not in [r["number"] for r in sky.ready(NAME)], "one replica less")
    sky.until_ready(NAME, 2)
    with pytest.raises(serve.ApiError, match="has no replica 99"):
        serve.terminate_replica(NAME, 99, client=sky.client)
    sky.controller.perdure("serve", "down", NAME, "--yes")


def test_load__scales_from_zero_and_back(sky: ServiceHost) -> None:
    policy = {
        "min_replicas": 0,
        "max_replicas": 2,
        "target_ongoing_requests_per_replica": 3,
        "upscale_delay_seconds": 1,
        "downscale_delay_seconds": 2,
    }
    envs = {"TOKEN_S": TOKEN_S, "LOAD_S": "2"}
    caller = sky.up("elastic", service_task({"replica_policy": policy}, envs=envs), ready=None)
    assert sky.get("elastic")["status"] == "NO_REPLICA"
    with ThreadPoolExecutor(1) as background:
        call = background.submit(caller.call)  # it is held until there is a replica
        held = sky.until("elastic", lambda one: one["waiting_since"], "a request that waits")
        assert (held["waiting_requests"], held["requests"]) == (1, 1)
        assert re.match(r"a request waits for a replica, the oldest for \d+ s; each is held for 600 s", held["message"])
        answer = call.result()
    assert (answer.status, answer.json()["replica"]) == (200, "1")
    sky.until("elastic", lambda one: one["waiting_since"] is None, "no request that waits")
    with load(caller, 6) as running:
        sky.until_ready("elastic", 2)
        sky.controller.until(lambda: len(running.whole) == 2, "answers of both replicas")
    assert running.cut == {}
    sky.until("elastic", lambda one: one["status"] == "NO_REPLICA" and not one["ready_replicas"], "no replica")
    sky.controller.until(sky.no_machines, "the end of every machine")
    sky.controller.perdure("serve", "down", "elastic", "--yes")


def test_preemption__of_one_of_three_machines_under_200_callers(sky: ServiceHost) -> None:
    """With a notice, no request fails. Without one, only those fail that the machine was answering."""
    task = service_task({"replicas": 3}, envs={"TOKEN_S": "1"}, resources={"use_spot": True})
    caller = sky.up("busy", task, ready=3)
    leaving = sky.ready("busy")[0]
    with load(caller, 200, events=8) as running:
        sky.controller.until(lambda: running.whole.total() >= 200, "an answer for each")
        sky.client.preempt(leaving["job_id"] or 0, notice_s=30)
        sky.until("busy", lambda _: sky.ready("busy")[-1]["number"] > 3, "a replacement")
        sky.controller.until(lambda: running.whole["4"], "answers of the replacement")
    assert running.cut == {}
    sky.until_ready("busy", 3)
    lost = sky.ready("busy")[0]
    victim = str(lost["number"])
    with load(caller, 200, events=8) as running:
        sky.controller.until(lambda: running.whole[victim] > 30, "answers of the machine that is lost")
        preempted_at = time.monotonic()
        sky.client.preempt(lost["job_id"] or 0)
        sky.until("busy", lambda _: victim not in [str(one["number"]) for one in sky.ready("busy")], "one less")
        before = running.whole.total()
        sky.controller.until(lambda: running.whole.total() > before + 200, "an answer for each")
    ended_after_s = running.last_event_at - preempted_at
    print(f"\n{running.cut[victim]} of 200 streams were cut; the last caller knew {ended_after_s:.1f} s after the call")
    assert running.cut[victim], "it answered some streams"
    assert running.told[victim] == running.cut[victim], "an event tells each of them"
    assert set(running.cut) <= {victim, NO_ANSWER}
    assert running.cut.total() <= 200
    assert ended_after_s < scaled(1), "none hangs"
    sky.controller.perdure("serve", "down", "busy", "--yes")
