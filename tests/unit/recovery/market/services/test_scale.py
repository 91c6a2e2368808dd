"""How many replicas a load needs, and when the number changes."""

from __future__ import annotations

import pytest

from perdure.recovery.market.services.scale import ScaleState, Traffic, first_state, needed, next_state
from perdure.recovery.market.services.spec import ReplicaPolicy

BY_RATE = ReplicaPolicy(min_replicas=1, max_replicas=5, target_qps=2.0, upscale_delay_s=10, downscale_delay_s=20)
BY_ONGOING = ReplicaPolicy(min_replicas=0, max_replicas=5, target_ongoing=10, upscale_delay_s=10, downscale_delay_s=20)
BY_GPU = ReplicaPolicy(min_replicas=1, max_replicas=9, target_qps={"A100:8": 8.0, "L4": 1.0})


@pytest.mark.parametrize(
    ("policy", "accelerators", "traffic", "expected"),
    [
        pytest.param(BY_RATE, (), Traffic(), 1, id="never below the minimum"),
        pytest.param(BY_RATE, (), Traffic(recent=120), 1, id="2 per second is what one replica answers"),
        pytest.param(BY_RATE, (), Traffic(recent=121), 2, id="a little more needs another one"),
        pytest.param(BY_RATE, (), Traffic(recent=6000), 5, id="never above the maximum"),
        pytest.param(BY_ONGOING, (), Traffic(), 0, id="none without requests"),
        pytest.param(BY_ONGOING, (), Traffic(in_flight=1), 1, id="one for one request"),
        pytest.param(BY_ONGOING, (), Traffic(recent=10, in_flight=50), 5, id="streams count though they are few"),
        pytest.param(BY_GPU, ("A100:8",), Traffic(recent=480), 1, id="the large one is enough"),
        pytest.param(BY_GPU, ("L4",), Traffic(recent=480), 2, id="a small one, and one more"),
        pytest.param(BY_GPU, ("L4", "L4", "L4"), Traffic(recent=60), 1, id="two of three are too many"),
    ],
)
def test_needed__depends_on_the_load(
    policy: ReplicaPolicy, accelerators: tuple[str, ...], traffic: Traffic, expected: int
) -> None:
    assert needed(policy, accelerators, traffic) == expected


def test_needed__is_not_zero_while_a_request_is_answered() -> None:
    policy = ReplicaPolicy(min_replicas=0, max_replicas=3, target_qps=1.0)
    assert needed(policy, (), Traffic(recent=0, in_flight=1)) == 1


def test_next_state__rises_after_the_delay_only() -> None:
    busy, state = Traffic(recent=480), ScaleState(1)
    for now in (100.0, 105.0, 109.9):
        state = next_state(BY_RATE, (), busy, state, now)
        assert state == ScaleState(1, above_since=100.0)
    assert next_state(BY_RATE, (), busy, state, 110.0) == ScaleState(4)


def test_next_state__forgets_a_peak_that_ended() -> None:
    state = next_state(BY_RATE, (), Traffic(recent=480), ScaleState(1), 100.0)
    state = next_state(BY_RATE, (), Traffic(), state, 105.0)
    state = next_state(BY_RATE, (), Traffic(recent=480), state, 111.0)
    assert state == ScaleState(1, above_since=111.0)


def test_next_state__rises_from_zero_at_once() -> None:
    assert next_state(BY_ONGOING, (), Traffic(in_flight=1), ScaleState(0), 100.0) == ScaleState(1)


def test_next_state__falls_to_zero_after_the_delay() -> None:
    state = next_state(BY_ONGOING, (), Traffic(), ScaleState(1), 100.0)
    assert state == ScaleState(1, below_since=100.0)
    assert next_state(BY_ONGOING, (), Traffic(), state, 120.0) == ScaleState(0)


def test_next_state__stays_within_new_limits_at_once() -> None:
    assert next_state(BY_RATE, (), Traffic(), ScaleState(9), 100.0).target == 5


def test_next_state__is_fixed_without_a_target() -> None:
    policy = ReplicaPolicy(min_replicas=3)
    assert first_state(policy) == next_state(policy, (), Traffic(recent=10**6), ScaleState(9), 0.0) == ScaleState(3)
