"""Which event of an autoscaler counts, and for how long."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.controller.clouds.kubernetes.api.errors import ApiError
from perdure.controller.clouds.kubernetes.waits.scale_ups import RECHECK_S, SCALE_UP_S, ScaleUps
from perdure.controller.runtime.clock import ManualClock

POD = {"metadata": {"uid": "u1"}}


def event(reason: str, source: str = "cluster-autoscaler", at: str = "", message: str = "") -> dict[str, Any]:
    return {
        "metadata": {"name": f"{reason}-{at}"},
        "reason": reason,
        "message": message,
        "source": {"component": source},
        "lastTimestamp": at or None,
    }


class Events:
    """The events of the pod, which may be forbidden to read."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.listed: list[dict[str, Any]] = []
        self.calls = 0
        self.is_forbidden = False
        self.scale_ups = ScaleUps(self._list, self.clock.now)

    def _list(self, uid: str) -> list[dict[str, Any]]:
        assert uid == "u1"
        self.calls += 1
        if self.is_forbidden:
            raise ApiError(403, "Forbidden", "cannot list events")
        return self.listed

    def holds(self) -> bool:
        sign = self.scale_ups.sign_for(POD)
        return sign is not None and sign.holds_at(self.clock.now())


@pytest.fixture
def events() -> Events:
    return Events()


@pytest.mark.parametrize(
    ("reason", "source", "holds"),
    [
        ("TriggeredScaleUp", "cluster-autoscaler", True),
        ("Nominated", "karpenter", True),
        ("NotTriggerScaleUp", "cluster-autoscaler", False),
        ("FailedScheduling", "karpenter", False),
        ("FailedScheduling", "default-scheduler", False),
        ("Pulled", "kubelet", False),
    ],
)
def test_sign__is_an_event_of_an_autoscaler(events: Events, reason: str, source: str, holds: bool) -> None:
    events.listed = [event(reason, source)]
    assert events.holds() is holds


def test_refusal__carries_the_autoscalers_words(events: Events) -> None:
    events.listed = [event("NotTriggerScaleUp", message="1 max node group size reached")]
    sign = events.scale_ups.sign_for(POD)
    assert sign is not None
    assert sign.refusal == "NotTriggerScaleUp: 1 max node group size reached"


def test_schedulers_failure__is_no_refusal(events: Events) -> None:
    events.listed = [event("Nominated", "karpenter", "2026-01-01T00:00:00Z"), event("FailedScheduling", "x", "2026-02")]
    assert events.holds()


def test_newest_sign__counts(events: Events) -> None:
    events.listed = [
        event("NotTriggerScaleUp", at="2026-01-01T00:00:30Z"),
        event("TriggeredScaleUp", at="2026-01-01T00:00:10Z"),
    ]
    assert not events.holds()


def test_sign__holds_for_a_quarter_of_an_hour_and_a_new_one_begins_again(events: Events) -> None:
    events.listed = [event("TriggeredScaleUp", at="2026-01-01T00:00:10Z")]
    assert events.holds()
    events.clock.advance(SCALE_UP_S - 1)
    assert events.holds()
    events.clock.advance(1)
    assert not events.holds()
    events.listed.append(event("TriggeredScaleUp", at="2026-01-01T00:20:00Z"))
    events.clock.advance(RECHECK_S)
    assert events.holds()


def test_events__are_read_once_in_a_while_and_the_last_sign_stays_without_them(events: Events) -> None:
    events.listed = [event("Nominated", "karpenter")]
    assert events.holds()
    events.is_forbidden = True
    for _ in range(10):
        assert events.holds()
    assert events.calls == 1
    events.clock.advance(RECHECK_S)
    assert events.holds()
    assert events.calls == 2
