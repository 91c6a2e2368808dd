"""Compute Engine's metadata server, with all that it may answer."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from gce_metadata import HANGS, GceMetadata
from perdure.agent.gce_metadata import NOTICE_S
from perdure.agent.gce_metadata import GceMetadata as Source
from perdure.agent.metadata import MetadataError
from perdure.agent.notices import Notice, NoticeWatch
from perdure.agent.spec import NoticeSettings
from perdure.controller.clock import SystemClock

PREEMPTED, MAINTENANCE = "instance/preempted", "instance/maintenance-event"
now = SystemClock().now


@pytest.fixture
def metadata() -> Iterator[GceMetadata]:
    with GceMetadata({PREEMPTED: "FALSE", MAINTENANCE: "NONE"}) as server:
        yield server


@pytest.fixture
def source(metadata: GceMetadata) -> Source:
    return Source(metadata.endpoint, hold_s=0.05, grace_s=5.0)


def test_nothing_is_announced(source: Source) -> None:
    for _ in range(3):
        assert source.interruption() is None
        assert not source.is_rebalance_recommended()


def test_the_first_answer_comes_at_once_and_the_next_when_something_changes(metadata: GceMetadata) -> None:
    source = Source(metadata.endpoint, hold_s=60.0)
    assert source.interruption() is None
    timer = threading.Timer(0.05, metadata.change, (PREEMPTED, "TRUE"))
    timer.start()
    before = now()
    told = source.interruption()
    timer.join()
    assert told is not None
    assert told[0] == "terminate"
    assert before + NOTICE_S < told[1] <= now() + NOTICE_S


def test_a_machine_that_begins_when_its_end_is_decided_hears_of_it(metadata: GceMetadata) -> None:
    metadata.change(PREEMPTED, "TRUE")
    assert Source(metadata.endpoint, hold_s=60.0).interruption() is not None


def test_a_preemption_keeps_its_deadline_and_asks_no_more(metadata: GceMetadata, source: Source) -> None:
    metadata.change(PREEMPTED, "TRUE")
    first = source.interruption()
    asked = len(metadata.asked)
    metadata.troubles = [500]
    assert source.interruption() == first
    assert not source.is_rebalance_recommended(), "nothing keeps a preemption from being told"
    assert len(metadata.asked) == asked


def test_maintenance_that_ends_the_machine_is_time_to_move(metadata: GceMetadata, source: Source) -> None:
    metadata.change(MAINTENANCE, "MIGRATE_ON_HOST_MAINTENANCE")
    assert not source.is_rebalance_recommended()
    metadata.change(MAINTENANCE, "TERMINATE_ON_HOST_MAINTENANCE")
    assert source.is_rebalance_recommended()


@pytest.mark.parametrize("trouble", [500, 503, 403, "<html>", ""], ids=str)
def test_what_can_not_be_read_is_an_error_and_the_next_call_works(
    metadata: GceMetadata, source: Source, trouble: int | str
) -> None:
    assert source.interruption() is None
    metadata.troubles = [trouble]
    with pytest.raises(MetadataError, match="preempted answered"):
        source.interruption()
    metadata.change(PREEMPTED, "TRUE")
    assert source.interruption() is not None


def test_a_connection_that_breaks_is_made_anew(metadata: GceMetadata, source: Source) -> None:
    assert source.interruption() is None
    metadata.troubles = [None]
    assert source.interruption() is None
    metadata.troubles = [None, None]
    with pytest.raises(MetadataError):
        source.interruption()


def test_an_answer_that_never_comes_is_not_waited_for(metadata: GceMetadata) -> None:
    source = Source(metadata.endpoint, hold_s=0.05, grace_s=0.1)
    metadata.troubles = [HANGS, HANGS]
    with pytest.raises(MetadataError, match="timed out"):
        source.interruption()
    assert source.interruption() is None


def test_nobody_listens() -> None:
    with GceMetadata({}) as server:
        endpoint = server.endpoint
    with pytest.raises(MetadataError, match="refused"):
        Source(endpoint).interruption()


def test_a_watch_tells_of_each_once(metadata: GceMetadata) -> None:
    found: list[Notice] = []
    told, said = threading.Semaphore(0), []

    def tell(notice: Notice) -> None:
        found.append(notice)
        told.release()

    metadata.troubles = [500, 500]
    watch = NoticeWatch(NoticeSettings("gce-metadata", "", 0.01), metadata.endpoint, found=tell, log=said.append)
    watch.start()
    metadata.change(MAINTENANCE, "TERMINATE_ON_HOST_MAINTENANCE")
    assert told.acquire(timeout=10)
    metadata.change(PREEMPTED, "TRUE")
    assert told.acquire(timeout=10)
    watch.stop()
    assert [notice.action for notice in found] == ["rebalance", "terminate"]
    assert [notice.source for notice in found] == ["gce-metadata"] * 2
    assert found[1].is_final
    assert sum("does not answer" in line for line in said) == 1
