"""Compute Engine's metadata server and everything that it may answer."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from perdure.agent.node_spec import NoticeSettings
from perdure.agent.notices.gce_metadata import NOTICE_S
from perdure.agent.notices.gce_metadata import GceMetadata as Source
from perdure.agent.notices.metadata_service import MetadataError
from perdure.agent.notices.notice import Notice
from perdure.agent.notices.poller import NoticePoller
from perdure.controller.runtime.clock import SystemClock
from support.fakes.gce_metadata import HANGS, GceMetadata
from support.helpers.timing import scaled

PREEMPTED, MAINTENANCE = "instance/preempted", "instance/maintenance-event"
now = SystemClock().now


@pytest.fixture
def metadata() -> Iterator[GceMetadata]:
    with GceMetadata({PREEMPTED: "FALSE", MAINTENANCE: "NONE"}) as server:
        yield server


@pytest.fixture
def source(metadata: GceMetadata) -> Source:
    return Source(metadata.endpoint, hold_s=0.05, grace_s=5.0)


def test_interruption__is_none_while_nothing_is_announced(source: Source) -> None:
    for _ in range(3):
        assert source.interruption() is None
        assert not source.is_rebalance_recommended()


def test_interruption__first_returns_at_once_then_on_change(metadata: GceMetadata) -> None:
    source = Source(metadata.endpoint, hold_s=60.0)
    assert source.interruption() is None
    timer = threading.Timer(0.05, metadata.change, (PREEMPTED, "TRUE"))
    timer.start()
    before = now()
    interruption = source.interruption()
    timer.join()
    assert interruption is not None
    assert interruption[0] == "terminate"
    assert before + NOTICE_S < interruption[1] <= now() + NOTICE_S


def test_interruption__is_returned_when_announced_before_the_agent_started(metadata: GceMetadata) -> None:
    metadata.change(PREEMPTED, "TRUE")
    assert Source(metadata.endpoint, hold_s=60.0).interruption() is not None


def test_interruption__keeps_its_deadline_and_stops_polling(metadata: GceMetadata, source: Source) -> None:
    metadata.change(PREEMPTED, "TRUE")
    first = source.interruption()
    asked = len(metadata.asked)
    metadata.troubles = [500]
    assert source.interruption() == first
    assert not source.is_rebalance_recommended(), "a preemption is reported all the same"
    assert len(metadata.asked) == asked


def test_rebalance__is_recommended_before_terminating_maintenance(metadata: GceMetadata, source: Source) -> None:
    metadata.change(MAINTENANCE, "MIGRATE_ON_HOST_MAINTENANCE")
    assert not source.is_rebalance_recommended()
    metadata.change(MAINTENANCE, "TERMINATE_ON_HOST_MAINTENANCE")
    assert source.is_rebalance_recommended()


@pytest.mark.parametrize("trouble", [500, 503, 403, "<html>", ""], ids=str)
def test_interruption__raises_on_an_unreadable_answer_then_recovers(
    metadata: GceMetadata, source: Source, trouble: int | str
) -> None:
    assert source.interruption() is None
    metadata.troubles = [trouble]
    with pytest.raises(MetadataError, match="preempted answered"):
        source.interruption()
    metadata.change(PREEMPTED, "TRUE")
    assert source.interruption() is not None


def test_connection__is_reopened_when_it_breaks(metadata: GceMetadata, source: Source) -> None:
    assert source.interruption() is None
    metadata.troubles = [None]
    assert source.interruption() is None
    metadata.troubles = [None, None]
    with pytest.raises(MetadataError):
        source.interruption()


def test_interruption__times_out_without_an_answer(metadata: GceMetadata) -> None:
    source = Source(metadata.endpoint, hold_s=0.05, grace_s=0.1)
    metadata.troubles = [HANGS, HANGS]
    with pytest.raises(MetadataError, match="timed out"):
        source.interruption()
    assert source.interruption() is None


def test_interruption__raises_when_nobody_listens() -> None:
    with GceMetadata({}) as server:
        endpoint = server.endpoint
    with pytest.raises(MetadataError, match="refused"):
        Source(endpoint).interruption()


def test_poller__returns_each_notice_once(metadata: GceMetadata) -> None:
    notices: list[Notice] = []
    received, lines = threading.Semaphore(0), []

    def on_notice(notice: Notice) -> None:
        notices.append(notice)
        received.release()

    metadata.troubles = [500, 500]
    poller = NoticePoller(
        NoticeSettings("gce-metadata", "", 0.01), metadata.endpoint, on_notice=on_notice, log=lines.append
    )
    poller.start()
    metadata.change(MAINTENANCE, "TERMINATE_ON_HOST_MAINTENANCE")
    assert received.acquire(timeout=scaled(10))
    metadata.change(PREEMPTED, "TRUE")
    assert received.acquire(timeout=scaled(10))
    poller.stop()
    assert [notice.action for notice in notices] == ["rebalance", "terminate"]
    assert [notice.source for notice in notices] == ["gce-metadata"] * 2
    assert notices[1].is_final
    assert sum("does not answer" in line for line in lines) == 1
