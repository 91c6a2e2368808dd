"""`values` does what `dataclasses` does."""

from __future__ import annotations

import dataclasses

import pytest

from perdure.recovery.history import StartUps
from perdure.recovery.job import TaskView
from perdure.recovery.statuses import TaskState
from perdure.recovery.values import replace


def test_only_what_was_named_changes() -> None:
    task = TaskView(0, ())
    changes = {"state": TaskState.RUNNING, "wake_at": 3.0}
    assert replace(task, **changes) == dataclasses.replace(task, **changes) != task


def test_what_was_worked_out_from_the_old_value_is_not_believed_of_the_new_one() -> None:
    few = StartUps()
    before = few.usual_s
    assert replace(few, count=5.0, total=5.0).usual_s > before
    assert few.usual_s == before


def test_there_are_no_other_fields() -> None:
    with pytest.raises(TypeError, match="StartUps has no sum"):
        replace(StartUps(), sum=1.0)  # type: ignore[call-arg]


def test_values_are_told_apart_by_what_they_are_and_can_be_looked_up() -> None:
    assert {StartUps(1.0): "one"}[StartUps(1.0)] == "one"
    assert StartUps(1.0) != StartUps(2.0)
