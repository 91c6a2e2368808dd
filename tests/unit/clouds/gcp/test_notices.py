"""What Pub/Sub's queue does besides what all queues do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from fake_gce import FakeGce
from perdure.controller.clock import SystemClock
from perdure.controller.clouds.gcp import notices
from perdure.controller.clouds.gcp.cloud import GcpCloud
from perdure.controller.clouds.gcp.settings import GcpSettings
from perdure.controller.clouds.offercache import InMemory
from perdure.controller.clouds.queues import Heard, MalformedMessage, Message, Word
from perdure.recovery.reasons import Reason

MACHINE = "projects/acme/zones/us-central1-a/instances/m-1-0"


@pytest.fixture
def gce(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGce]:
    with FakeGce() as gce:
        for name, value in gce.environ.items():
            monkeypatch.setenv(name, value)
        yield gce


def queue_of(gce: FakeGce, name: str = "perdure") -> notices.PubSubQueue:
    settings = GcpSettings(endpoint_url=gce.url, notice_queues=(gce.subscription(name),))
    (queue,) = GcpCloud(InMemory(SystemClock()), settings, SystemClock()).notice_queues()
    assert isinstance(queue, notices.PubSubQueue)
    return queue


def heard(method: str, resource: str = MACHINE) -> Heard | None:
    queue = notices.PubSubQueue("gcp", "projects/p/subscriptions/s", pytest.fail)
    entry = {"logName": "projects/acme/logs/a", "protoPayload": {"methodName": method, "resourceName": resource}}
    return queue.read(Message("1", json.dumps(entry)))


@pytest.mark.parametrize(
    "method",
    [
        *("compute.instances.preempted", "compute.instances.hostError", "compute.instances.automaticRestart"),
        *("v1.compute.instances.delete", "beta.compute.instances.stop"),
    ],
)
def test_whatever_ends_a_machine_ends_it(method: str) -> None:
    assert heard(method) == Heard(Word.ENDING, "us-central1-a/m-1-0")


def test_what_is_done_to_other_things_is_nothing() -> None:
    assert heard("v1.compute.disks.delete", "projects/acme/zones/us-central1-a/disks/d") is None
    assert heard("v1.compute.instances.deleteAccessConfig") is None


def test_an_end_of_no_machine_is_malformed() -> None:
    with pytest.raises(MalformedMessage, match="disks/d is no machine"):
        heard("compute.instances.preempted", "projects/acme/zones/us-central1-a/disks/d")


def test_a_call_that_is_held_for_long_heard_nothing(
    gce: FakeGce, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "HELD_S", 0.1)
    queue = queue_of(gce)
    gce.pubsub.send("projects/perdure-test/subscriptions/perdure", b"\xff")
    first = queue.receive()
    assert [one.body for one in first] == ["\N{REPLACEMENT CHARACTER}"]
    queue.delete(first)
    gce.pubsub.held_s = 60.0
    assert queue.receive() == ()
    gce.pubsub.send("projects/perdure-test/subscriptions/perdure", b"{}")
    assert [one.body for one in queue.receive()] == ["{}"]


def test_whoever_is_not_let_in_is_told_what_to_do(gce: FakeGce) -> None:
    queue = queue_of(gce)
    gce.faults.deny = "forbidden"
    with pytest.raises(Exception, match="permission") as caught:
        queue.receive()
    fault = queue.classify(caught.value)
    assert fault.reason is Reason.BAD_CREDENTIALS
    assert "deploy/iam/gcp-controller.yaml" in fault.message


def test_a_subscription_that_is_not_there_is_named(gce: FakeGce) -> None:
    queue = queue_of(gce, "another")
    with pytest.raises(Exception) as caught:  # noqa: PT011 - the SDK's
        queue.receive()
    assert "resource=another" in queue.classify(caught.value).message


def test_credentials_that_are_missing_are_asked_for_again(
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
