"""The result of the rules when the whole table is read after every change, without shortcuts."""

from __future__ import annotations

from perdure.recovery import events
from perdure.recovery.job import View
from perdure.recovery.observe import observe
from perdure.recovery.rules.context import Context
from perdure.recovery.rules.table import CLEANUP_RULES, RULES, apply_rules


def check_no_rule_was_missed(view: View, event: events.Event, now: float) -> None:
    job = observe(view.job, event, now, [])
    for task in job.tasks:
        quick, slow = (Context(job, view, now, []) for _ in range(2))
        is_current = task is job.current_task
        result, expected = apply_rules(task, quick, is_current=is_current), task
        rules = RULES if is_current else CLEANUP_RULES
        while (after := next(filter(None, (rule(expected, slow) for rule in rules)), None)) is not None:
            expected = after
        assert result == expected
        assert quick.out == slow.out
