"""`frozen` does what `dataclasses` does."""

from __future__ import annotations

import dataclasses

import pytest

from perdure.recovery.frozen import replace
from perdure.recovery.job import TaskView
from perdure.recovery.market.history import StartupTimes
from perdure.recovery.statuses import TaskState


def test_replace__changes_only_named_fields() -> None:
    task = TaskView(0, ())
    changes = {"state": TaskState.RUNNING, "wake_at": 3.0}
    assert replace(task, **changes) == dataclasses.replace(task, **changes) != task


def test_replace__drops_cached_properties() -> None:
    observed = StartupTimes()
    before = observed.mean_s
    assert replace(observed, count=5.0, total=5.0).mean_s > before
    assert observed.mean_s == before


def test_replace__rejects_unknown_fields() -> None:
    with pytest.raises(TypeError, match="StartupTimes has no sum"):
        replace(StartupTimes(), sum=1.0)  # type: ignore[call-arg]


def test_dataclass__compares_and_hashes_by_value() -> None:
    assert {StartupTimes(1.0): "one"}[StartupTimes(1.0)] == "one"
    assert StartupTimes(1.0) != StartupTimes(2.0)
