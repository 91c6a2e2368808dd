"""Azure's scheduled events and everything that the service may answer."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from perdure.agent.node_spec import NoticeSettings
from perdure.agent.notices.azure_scheduled_events import MIN_NOTICE_S, ScheduledEvents
from perdure.agent.notices.metadata_service import MetadataError
from perdure.agent.notices.notice import Notice
from perdure.agent.notices.poller import NoticePoller
from perdure.controller.runtime.clock import SystemClock
from support.fakes.azure.metadata import MetadataService

AT = 1474309787.0  # Mon, 19 Sep 2016 18:29:47 GMT, as in Azure's documentation


@pytest.fixture
def service() -> Iterator[MetadataService]:
    service = MetadataService("pd-1-0")
    yield service
    service.close()


def test_interruption__is_none_while_nothing_is_announced(service: MetadataService) -> None:
    source = ScheduledEvents(service.endpoint)
    assert source.interruption() is None
    assert source.is_rebalance_recommended() is False
    assert source.interruption() is None
    assert len([path for path in service.asked if "compute/name" in path]) == 1


@pytest.mark.parametrize(
    ("kind", "action"),
    [("Preempt", "terminate"), ("Terminate", "terminate"), ("Reboot", "reboot"), ("Redeploy", "redeploy")],
)
def test_interruption__has_action_and_deadline(service: MetadataService, kind: str, action: str) -> None:
    service.schedule(kind, ["PD-1-0"], AT)
    assert b"Mon, 19 Sep 2016 18:29:47 GMT" in service.document()
    assert ScheduledEvents(service.endpoint).interruption() == (action, AT)


def test_interruption__ignores_a_freeze(service: MetadataService) -> None:
    service.schedule("Freeze", ["pd-1-0"], AT)
    assert ScheduledEvents(service.endpoint).interruption() is None


def test_interruption__ignores_events_of_other_machines(service: MetadataService) -> None:
    service.schedule("Preempt", ["pd-1-1", "pd-1-01"], AT)
    source = ScheduledEvents(service.endpoint)
    assert source.interruption() is None
    service.schedule("Preempt", ["pd-1-1", "pd-1-0"], AT + 60)
    assert source.interruption() == ("terminate", AT + 60)


def test_interruption__is_the_soonest_event(service: MetadataService) -> None:
    service.schedule("Redeploy", ["pd-1-0"], AT + 600)
    service.schedule("Preempt", ["pd-1-0"], AT + 30)
    assert ScheduledEvents(service.endpoint).interruption() == ("terminate", AT + 30)


def test_deadline__stays_when_the_event_has_begun(service: MetadataService) -> None:
    event = service.schedule("Preempt", ["pd-1-0"], AT)
    source = ScheduledEvents(service.endpoint)
    assert source.interruption() == ("terminate", AT)
    service.begin(event)
    assert source.interruption() == ("terminate", AT)


def test_deadline__is_now_for_an_event_first_seen_after_its_start(service: MetadataService) -> None:
    service.begin(service.schedule("Preempt", ["pd-1-0"], AT))
    source = ScheduledEvents(service.endpoint)
    before = SystemClock().now()
    first = source.interruption()
    assert first is not None
    assert before <= first[1] <= SystemClock().now()
    assert source.interruption() == first, "it is one notice, however often it is polled"


def test_interruption__ends_when_the_event_is_withdrawn(service: MetadataService) -> None:
    event = service.schedule("Preempt", ["pd-1-0"], AT)
    source = ScheduledEvents(service.endpoint)
    assert source.interruption() is not None
    service.withdraw(event)
    assert source.interruption() is None


def test_interruption__recovers_after_server_errors(service: MetadataService) -> None:
    source = ScheduledEvents(service.endpoint)
    for status in (500, 410, 429):
        service.broken = status
        with pytest.raises(MetadataError, match=str(status)):
            source.interruption()
    service.broken = None
    assert source.interruption() is None


def test_connection__is_reopened_when_the_service_closes_it(service: MetadataService) -> None:
    service.hangs_up = True
    source = ScheduledEvents(service.endpoint)
    for _ in range(3):
        assert source.interruption() is None


def test_interruption__raises_when_nobody_listens() -> None:
    with pytest.raises(MetadataError):
        ScheduledEvents("http://127.0.0.1:1").interruption()


GOOD = {"EventId": "1", "EventType": "Preempt", "Resources": ["pd-1-0"], "NotBefore": ""}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"Events": null}',
        b'{"Events": [7]}',
        json.dumps({"Events": [{**GOOD, "Resources": None}]}).encode(),
        json.dumps({"Events": [{**GOOD, "Resources": [7]}]}).encode(),
        json.dumps({"Events": [{"EventType": "Preempt", "Resources": ["pd-1-0"]}]}).encode(),
    ],
)
def test_interruption__raises_on_an_unreadable_answer(service: MetadataService, body: bytes) -> None:
    source = ScheduledEvents(service.endpoint)
    service.raw_events = body
    with pytest.raises(MetadataError):
        source.interruption()
    service.raw_events = None
    assert source.interruption() is None


@pytest.mark.parametrize("time", ["soon", 7])
def test_interruption__with_an_unreadable_time_has_the_minimum_notice(service: MetadataService, time: object) -> None:
    source = ScheduledEvents(service.endpoint)
    service.raw_events = json.dumps({"Events": [{**GOOD, "NotBefore": time}]}).encode()
    action, deadline = source.interruption() or ("", 0.0)
    assert (action, deadline) == ("terminate", pytest.approx(SystemClock().now() + MIN_NOTICE_S, abs=20))
    assert source.interruption() == (action, deadline)


def test_interruption__is_not_hidden_by_an_unreadable_event(service: MetadataService) -> None:
    source = ScheduledEvents(service.endpoint)
    good = {**GOOD, "NotBefore": "Mon, 19 Sep 2016 18:29:47 GMT"}
    service.raw_events = json.dumps({"Events": [{"EventType": "Preempt", "Resources": ["pd-1-0"]}, 7, good]}).encode()
    assert source.interruption() == ("terminate", 1474309787.0)


def test_poller__returns_an_event_again_when_its_time_moved_and_never_acknowledges_it(
    service: MetadataService,
) -> None:
    settings = NoticeSettings("azure-scheduled-events", service.endpoint, 1.0)
    poller = NoticePoller(settings, service.endpoint, on_notice=lambda _: None, log=lambda _: None)
    event = service.schedule("Preempt", ["pd-1-0"], AT)
    assert poller.poll() == [Notice(AT, "terminate", "azure-scheduled-events")]
    assert poller.poll() == []
    service.withdraw(event)
    assert poller.poll() == []
    service.schedule("Preempt", ["pd-1-0"], AT + 60)
    assert poller.poll() == [Notice(AT + 60, "terminate", "azure-scheduled-events")]
    assert not service.acknowledged
