"""Which event of a task's hooks a drain stands for. `test_supervisor` runs hooks."""

from __future__ import annotations

import pytest

from perdure.agent.lifecycle import hooks
from perdure.agent.lifecycle.hooks import DOWN, PREEMPTION, event_of_drain
from perdure.agent.state_file import Directive
from perdure.recovery.reasons import MEANINGS, Reason


@pytest.mark.parametrize(
    ("reason", "has_notice", "event"),
    [
        ("PREEMPTION_NOTICE", False, PREEMPTION),
        ("MOVED", False, PREEMPTION),
        ("notice", True, PREEMPTION),
        ("", False, PREEMPTION),
        ("USER_CANCELLED", False, DOWN),
        ("USER_CANCELLED", True, PREEMPTION),
        ("RUN_FAILED", False, DOWN),
    ],
)
def test_event_of_drain__follows_from_the_reason(reason: str, has_notice: bool, event: str) -> None:
    directive = Directive.parse({"target": "drain", "reason": reason})
    assert event_of_drain(directive, has_notice=has_notice) == event


def test_event_of_drain__is_down_for_reasons_that_end_a_task_only() -> None:
    assert set(hooks._ENDS) <= set(Reason)
    assert not [reason for reason in hooks._ENDS if MEANINGS[Reason(reason)].recovers]
