"""Pub/Sub subscriptions as notice queues, beyond the contract of all queues."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from perdure.controller.clouds.base.notice_queue import MachineSignal, MalformedMessage, QueueMessage, Signal
from perdure.controller.clouds.gcp import notices
from perdure.controller.clouds.gcp.cloud import GcpCloud
from perdure.controller.clouds.gcp.settings import GcpSettings
from perdure.controller.clouds.pricing.cache import InMemoryOfferCache
from perdure.controller.runtime.clock import SystemClock
from perdure.recovery.reasons import Reason
from support.fakes.gce import FakeGce

MACHINE = "projects/acme/zones/us-central1-a/instances/m-1-0"


@pytest.fixture
def gce(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGce]:
    with FakeGce() as gce:
        for name, value in gce.environ.items():
            monkeypatch.setenv(name, value)
        yield gce


def queue_of(gce: FakeGce, name: str = "perdure") -> notices.PubSubQueue:
    settings = GcpSettings(endpoint_url=gce.url, interruption_queues=(gce.subscription(name),))
    (queue,) = GcpCloud(InMemoryOfferCache(SystemClock()), settings, SystemClock()).notice_queues()
    assert isinstance(queue, notices.PubSubQueue)
    return queue


def parse_method(method: str, resource: str = MACHINE) -> Sequence[MachineSignal]:
    queue = notices.PubSubQueue("gcp", "projects/p/subscriptions/s", pytest.fail)
    entry = {"logName": "projects/acme/logs/a", "protoPayload": {"methodName": method, "resourceName": resource}}
    return queue.parse(QueueMessage("1", json.dumps(entry)))


@pytest.mark.parametrize(
    "method",
    [
        *("compute.instances.preempted", "compute.instances.hostError", "compute.instances.automaticRestart"),
        *("v1.compute.instances.delete", "beta.compute.instances.stop"),
    ],
)
def test_parse__reports_every_kind_of_end(method: str) -> None:
    assert parse_method(method) == (MachineSignal(Signal.ENDING, "us-central1-a/m-1-0"),)


def test_parse__ignores_other_operations() -> None:
    assert parse_method("v1.compute.disks.delete", "projects/acme/zones/us-central1-a/disks/d") == ()
    assert parse_method("v1.compute.instances.deleteAccessConfig") == ()


def test_parse__rejects_an_end_without_a_machine() -> None:
    with pytest.raises(MalformedMessage, match="disks/d is not a machine"):
        parse_method("compute.instances.preempted", "projects/acme/zones/us-central1-a/disks/d")


def test_receive__returns_nothing_after_a_long_poll(
    gce: FakeGce, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "LONG_POLL_S", 0.1)
    queue = queue_of(gce)
    gce.pubsub.send("projects/perdure-test/subscriptions/perdure", b"\xff")
    first = queue.receive()
    assert [one.body for one in first] == ["\N{REPLACEMENT CHARACTER}"]
    queue.delete(first)
    gce.pubsub.held_s = 60.0
    assert queue.receive() == ()
    gce.pubsub.send("projects/perdure-test/subscriptions/perdure", b"{}")
    assert [one.body for one in queue.receive()] == ["{}"]


def test_receive__reports_denied_access_with_a_hint(gce: FakeGce) -> None:
    queue = queue_of(gce)
    gce.faults.deny = "forbidden"
    with pytest.raises(Exception, match="permission") as caught:
        queue.receive()
    fault = queue.classify(caught.value)
    assert fault.reason is Reason.BAD_CREDENTIALS
    assert "deploy/iam/gcp-controller.yaml" in fault.message


def test_receive__names_a_missing_subscription(gce: FakeGce) -> None:
    queue = queue_of(gce, "another")
    with pytest.raises(Exception) as caught:  # noqa: PT011 - the SDK's
        queue.receive()
    assert "resource=another" in queue.classify(caught.value).message


def test_receive__searches_for_missing_credentials_again(
    gce: FakeGce, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = queue_of(gce)
    gce.pubsub.send("projects/perdure-test/subscriptions/perdure", b"{}")
    with monkeypatch.context() as without:
        without.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none.json"))
        with pytest.raises(Exception) as caught:  # noqa: PT011 - the SDK's
            queue.receive()
        assert queue.classify(caught.value).reason is Reason.BAD_CREDENTIALS
    assert queue.receive()
