"""Azure's scheduled events, with all that the service may answer."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from fake_azure.metadata import MetadataService
from perdure.agent.metadata import MetadataError
from perdure.agent.notices import Notice, NoticeWatch
from perdure.agent.scheduled_events import ScheduledEvents
from perdure.agent.spec import NoticeSettings
from perdure.controller.clock import SystemClock

AT = 1474309787.0  # Mon, 19 Sep 2016 18:29:47 GMT, as in Azure's documentation


@pytest.fixture
def service() -> Iterator[MetadataService]:
    service = MetadataService("hf-1-0")
    yield service
    service.close()


def test_nothing_is_announced(service: MetadataService) -> None:
    source = ScheduledEvents(service.endpoint)
    assert source.interruption() is None
    assert source.is_rebalance_recommended() is False
    assert source.interruption() is None
    assert len([path for path in service.asked if "compute/name" in path]) == 1


@pytest.mark.parametrize(
    ("kind", "action"),
    [("Preempt", "terminate"), ("Terminate", "terminate"), ("Reboot", "reboot"), ("Redeploy", "redeploy")],
)
def test_an_event_that_ends_the_workload(service: MetadataService, kind: str, action: str) -> None:
    service.schedule(kind, ["HF-1-0"], AT)
    assert b"Mon, 19 Sep 2016 18:29:47 GMT" in service.document()
    assert ScheduledEvents(service.endpoint).interruption() == (action, AT)


def test_a_freeze_of_some_seconds_ends_nothing(service: MetadataService) -> None:
    service.schedule("Freeze", ["hf-1-0"], AT)
    assert ScheduledEvents(service.endpoint).interruption() is None


def test_events_of_other_machines_are_theirs(service: MetadataService) -> None:
    service.schedule("Preempt", ["hf-1-1", "hf-1-01"], AT)
    source = ScheduledEvents(service.endpoint)
    assert source.interruption() is None
    service.schedule("Preempt", ["hf-1-1", "hf-1-0"], AT + 60)
    assert source.interruption() == ("terminate", AT + 60)


def test_the_soonest_counts(service: MetadataService) -> None:
    service.schedule("Redeploy", ["hf-1-0"], AT + 600)
    service.schedule("Preempt", ["hf-1-0"], AT + 30)
    assert ScheduledEvents(service.endpoint).interruption() == ("terminate", AT + 30)


def test_an_event_that_has_begun_keeps_the_time_that_it_was_announced_for(service: MetadataService) -> None:
    event = service.schedule("Preempt", ["hf-1-0"], AT)
    source = ScheduledEvents(service.endpoint)
    assert source.interruption() == ("terminate", AT)
    service.begin(event)
    assert source.interruption() == ("terminate", AT)


def test_an_event_that_is_first_seen_when_it_has_begun_is_now(service: MetadataService) -> None:
    service.begin(service.schedule("Preempt", ["hf-1-0"], AT))
    source = ScheduledEvents(service.endpoint)
    before = SystemClock().now()
    first = source.interruption()
    assert first is not None
    assert before <= first[1] <= SystemClock().now()
    assert source.interruption() == first, "it is one notice, however often it is asked for"


def test_an_event_that_is_withdrawn_is_over(service: MetadataService) -> None:
    event = service.schedule("Preempt", ["hf-1-0"], AT)
    source = ScheduledEvents(service.endpoint)
    assert source.interruption() is not None
    service.withdraw(event)
    assert source.interruption() is None


def test_after_trouble_it_answers_again(service: MetadataService) -> None:
    source = ScheduledEvents(service.endpoint)
    for status in (500, 410, 429):
        service.broken = status
        with pytest.raises(MetadataError, match=str(status)):
            source.interruption()
    service.broken = None
    assert source.interruption() is None


def test_a_kept_connection_that_was_closed_is_opened_again(service: MetadataService) -> None:
    service.hangs_up = True
    source = ScheduledEvents(service.endpoint)
    for _ in range(3):
        assert source.interruption() is None


def test_nobody_listens() -> None:
    with pytest.raises(MetadataError):
        ScheduledEvents("http://127.0.0.1:1").interruption()


GOOD = {"EventId": "1", "EventType": "Preempt", "Resources": ["hf-1-0"], "NotBefore": ""}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"Events": null}',
        b'{"Events": [7]}',
        json.dumps({"Events": [{**GOOD, "NotBefore": "soon"}]}).encode(),
        json.dumps({"Events": [{**GOOD, "NotBefore": 7}]}).encode(),
        json.dumps({"Events": [{**GOOD, "Resources": None}]}).encode(),
        json.dumps({"Events": [{**GOOD, "Resources": [7]}]}).encode(),
        json.dumps({"Events": [{"EventType": "Preempt", "Resources": ["hf-1-0"]}]}).encode(),
    ],
)
def test_what_can_not_be_read_is_asked_again(service: MetadataService, body: bytes) -> None:
    source = ScheduledEvents(service.endpoint)
    service.told = body
    with pytest.raises(MetadataError):
        source.interruption()
    service.told = None
    assert source.interruption() is None


def test_a_watch_tells_of_it_once_and_again_when_its_time_has_moved_and_never_acknowledges_it(
    service: MetadataService,
) -> None:
    settings = NoticeSettings("azure-scheduled-events", service.endpoint, 1.0)
    watch = NoticeWatch(settings, service.endpoint, found=lambda _: None, log=lambda _: None)
    event = service.schedule("Preempt", ["hf-1-0"], AT)
    assert watch.poll() == [Notice(AT, "terminate", "azure-scheduled-events")]
    assert watch.poll() == []
    service.withdraw(event)
    assert watch.poll() == []
    service.schedule("Preempt", ["hf-1-0"], AT + 60)
    assert watch.poll() == [Notice(AT + 60, "terminate", "azure-scheduled-events")]
    assert not service.acknowledged
