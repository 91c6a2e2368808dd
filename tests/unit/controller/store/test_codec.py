"""Values of decisions as columns, and back."""

from __future__ import annotations

import json
from dataclasses import fields, replace

import pytest

from perdure.controller.store.codec import decode_recovery, encode_recovery
from perdure.recovery.job import Recovery

ALL_SET = Recovery(
    strategy="DEADLINE",
    max_restarts_on_errors=2,
    recover_on_exit_codes=frozenset({3, 33}),
    deadline_at=5.0,
    work_s=6.0,
    on_time=0.99,
    patience=0.1,
    move_cost=1.5,
    recovers=False,
    keep_on_failure_s=60.0,
    stuck_after_s=7.0,
    restart_when_stuck_s=8.0,
    max_duration_s=9.0,
    max_cost=10.0,
    taken_zones=("east-1a", "west-1a"),
)
# The fields that the first controllers know, which refuse any other.
FIRST_FIELDS = {
    "strategy",
    "max_restarts_on_errors",
    "recover_on_exit_codes",
    "deadline_at",
    "work_s",
    "patience",
    "move_cost",
}


@pytest.mark.parametrize("name", [field.name for field in fields(Recovery)])
def test_recovery__survives_a_round_trip(name: str) -> None:
    assert getattr(ALL_SET, name) != getattr(Recovery(), name), "a value that shows nothing"
    for value in (ALL_SET, replace(Recovery(), **{name: getattr(ALL_SET, name)})):
        assert decode_recovery(json.loads(json.dumps(encode_recovery(value)))) == value


def test_recovery_without_new_features__is_read_by_a_controller_that_lacks_them() -> None:
    given = replace(ALL_SET, **{name: getattr(Recovery(), name) for name in encode_recovery(ALL_SET)} | {"work_s": 6.0})
    assert set(encode_recovery(given)) <= FIRST_FIELDS
