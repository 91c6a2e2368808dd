"""What the rules of `settle` come to when the whole table is read again and again: no short cuts."""

from __future__ import annotations

from perdure.recovery import events
from perdure.recovery.job import View
from perdure.recovery.observe import observe
from perdure.recovery.settle import CLEARING_RULES, RULES, settle
from perdure.recovery.turns import Context


def check_no_rule_was_missed(view: View, event: events.Event, now: float) -> None:
    job = observe(view.job, event, now, [])
    for task in job.tasks:
        quick, slow = (Context(job, view, now, []) for _ in range(2))
        is_current = task is job.current_task
        found, expected = settle(task, quick, is_current=is_current), task
        rules = RULES if is_current else CLEARING_RULES
        while (after := next(filter(None, (rule(expected, slow) for rule in rules)), None)) is not None:
            expected = after
        assert found == expected
        assert quick.out == slow.out
