"""The traces of jobs, from real decisions, by way of the outbox, at a receiver."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

from perdure.controller.maintenance.notify import trace_channel
from perdure.controller.maintenance.notify.channels import build_channels
from perdure.controller.maintenance.notify.sender import NotificationSender
from perdure.controller.runtime.config.notify_config import ChannelConfig, NotifyConfig, NotifyRule
from perdure.recovery import events
from perdure.recovery.statuses import NodePhase
from perdure.sdk.notify.events import JOB_ENDS
from support.fakes.webhook_receiver import Received, WebhookReceiver
from unit.controller.world import World

Span = dict[str, Any]


def site(world: World, url: str) -> tuple[World, NotificationSender]:
    """The world with a collector, and what sends to it."""
    channel = ChannelConfig("traces", "otlp", url, headers={"api-key": "k3y"})
    rules = (NotifyRule(JOB_ENDS, ("traces",)),)
    config = NotifyConfig({"traces": channel}, rules, allow_private_addresses=True)
    world = World(world.url, notify=config)
    channels = build_channels(config, world.clock, world.database, world.clock)
    return world, NotificationSender(config, channels, world.database, world.clock, owner="one")


def finish(world: World, exit_code: int = 0) -> int:
    """A job that is preempted once."""
    job = world.submit()
    world.run(job)
    world.pass_time(100)
    world.deliver(job, events.PreemptionNotice(0, 1, 0, world.clock.now() + 30))
    world.report(job, NodePhase.ENDED, interrupted=True)
    world.pass_time(5)
    world.run(job, generation=2)
    world.pass_time(50)
    world.report(job, NodePhase.ENDED, generation=2, exit_code=exit_code)
    world.pass_time(10)
    return job


def spans_of(received: Received) -> list[Span]:
    body = json.loads(gzip.decompress(received.raw))
    return [span for part in body["resourceSpans"] for scope in part["scopeSpans"] for span in scope["spans"]]


def test_trace__tells_the_life_of_a_job_once_it_has_ended(world: World) -> None:
    with WebhookReceiver() as receiver:
        world, sender = site(world, receiver.url)
        finish(world)
        sender.run_once(wait=True)
    (got,) = receiver.received
    assert (got.headers["content-type"], got.headers["content-encoding"], got.headers["api-key"]) == (
        "application/json",
        "gzip",
        "k3y",
    )
    spans = spans_of(got)
    by_id = {span["spanId"]: span for span in spans}
    assert len(by_id) == len(spans)
    assert len({span["traceId"] for span in spans}) == 1
    root = spans[0]
    assert (root["name"].startswith("job "), root["status"]) == (True, {"code": 1})
    names = [span["name"] for span in spans[1:]]
    phases = ["launch", "boot", "setup", "run", "stop"]
    assert [name for name in names if name not in phases] == ["attempt 1", "attempt 2"]
    runs = [span for span in spans if span["name"] == "run"]
    seconds = [(int(s["endTimeUnixNano"]) - int(s["startTimeUnixNano"])) / 1e9 for s in runs]
    assert seconds == pytest.approx([100, 50], abs=15)
    for span in spans[1:]:
        parent = by_id[span["parentSpanId"]]
        assert int(parent["startTimeUnixNano"]) <= int(span["startTimeUnixNano"]) <= int(span["endTimeUnixNano"])
        assert (len(span["traceId"]), len(span["spanId"])) == (32, 16)
    first = next(span for span in spans if span["name"] == "attempt 1")
    assert "node.notice" in [event["name"] for event in first["events"]]
    facts = {one["key"]: one["value"] for one in first["attributes"]}
    assert facts["perdure.reason"] == {"stringValue": "PREEMPTION_NOTICE"}
    assert facts["perdure.attempt"] == {"intValue": "1"}
    assert "doubleValue" in facts["perdure.price_per_hour"]


def test_trace_that_is_sent_again__has_the_same_ids(world: World) -> None:
    with WebhookReceiver(lambda _: 503 if len(receiver.received) == 0 else 200) as receiver:
        world, sender = site(world, receiver.url)
        finish(world, exit_code=7)
        sender.run_once(wait=True)
        world.clock.advance(60.0)
        sender.run_once(wait=True)
    first, second = map(spans_of, receiver.received)
    assert [span["spanId"] for span in first] == [span["spanId"] for span in second]
    assert first[0]["status"]["code"] == 2
    assert "7" in first[0]["status"]["message"]


def test_jobs_that_end_together__are_sent_in_requests_of_a_limited_size(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_channel, "BATCH_SIZE", 2)
    with WebhookReceiver() as receiver:
        world, sender = site(world, receiver.url)
        for _ in range(5):
            world.submit()
        world.settle()
        for job in range(1, 6):
            world.deliver(job, events.CancelRequested(0.0))
        world.pass_time(10)
        sender.run_once(wait=True)
        assert sender.send_test("traces").detail == "200"  # type: ignore[union-attr]
    *batches, test = receiver.received
    assert [len({span["traceId"] for span in spans_of(batch)}) for batch in batches] == [2, 2, 1]
    assert spans_of(test) == []
