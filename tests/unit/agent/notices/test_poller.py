"""The poller of notice sources. Its work with a real source is tested with each source."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from perdure.agent.node_spec import NoticeSettings
from perdure.agent.notices.metadata_service import MetadataError
from perdure.agent.notices.notice import Notice
from perdure.agent.notices.poller import SOURCES, NoticePoller
from support.helpers.timing import scaled

INTERRUPTION = Notice(1000.0, "terminate", "test")
REBALANCE = Notice(None, "rebalance", "test")


class Source:
    """A `NoticeSource` whose next answers are in `interruptions` and `recommendations`; the last one stays."""

    name = "test"

    def __init__(self, _endpoint: str = "") -> None:
        self.interruptions: list[tuple[str, float] | Exception | None] = [None]
        self.recommendations: list[bool | Exception] = [False]

    def interruption(self) -> tuple[str, float] | None:
        return _next(self.interruptions)

    def is_rebalance_recommended(self) -> bool:
        return _next(self.recommendations)


def _next(answers: list[object]) -> object:  # type: ignore[misc]
    answer = answers.pop(0) if len(answers) > 1 else answers[0]
    if isinstance(answer, Exception):
        raise answer
    return answer


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> Source:
    source = Source()
    monkeypatch.setitem(SOURCES, "test", lambda _endpoint: source)
    return source


def poller_of(on_notice: Callable[[Notice], None], lines: list[str] | None = None) -> NoticePoller:
    log = lines.append if lines is not None else lambda _: None
    return NoticePoller(NoticeSettings("test", "", 0.001), "", on_notice=on_notice, log=log)  # type: ignore[arg-type]


def test_poller__rejects_an_unknown_source() -> None:
    with pytest.raises(ValueError, match="imds-v2"):
        NoticePoller(
            NoticeSettings("oracle", "http://x", 1.0), "http://x", on_notice=lambda _: None, log=lambda _: None
        )


def test_interruption__is_returned_although_the_next_call_fails(source: Source) -> None:
    source.interruptions = [("terminate", 1000.0)]
    source.recommendations = [MetadataError("500"), True]
    poller = poller_of(lambda _: None)
    assert poller.poll() == [INTERRUPTION]
    assert poller.poll() == [REBALANCE]
    assert poller.poll() == []


def test_recommendation__is_returned_although_the_first_call_fails(source: Source) -> None:
    source.interruptions = [MetadataError("500")]
    source.recommendations = [True]
    poller = poller_of(lambda _: None)
    assert poller.poll() == [REBALANCE]
    with pytest.raises(MetadataError):
        poller.poll()


def test_thread__survives_every_exception(source: Source) -> None:
    """Also one that no source should raise, and one of the disk that a notice is stored on."""
    source.interruptions = [
        RuntimeError("a bug"),
        KeyError("Events"),
        OSError(9, "bad descriptor"),
        ("terminate", 1000.0),
    ]
    handed_over, received, lines = [], threading.Event(), []

    def on_notice(notice: Notice) -> None:
        handed_over.append(notice)
        if len(handed_over) < 3:
            raise OSError(28, "No space left on device")
        received.set()

    poller = poller_of(on_notice, lines)
    poller.start()
    assert received.wait(scaled(10)), lines
    poller.stop()
    assert handed_over == [INTERRUPTION] * 3
    assert sum("does not answer" in line for line in lines) == 1
