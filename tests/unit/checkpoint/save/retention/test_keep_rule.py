"""Which checkpoints a rule keeps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.checkpoint.save.retention.keep_rule import (
    Keep,
    RetentionCandidate,
    as_numbers,
    as_rule,
    epoch_s,
    steps_to_keep,
)


def saved(*steps: int, minutes: float = 10, **metrics: list[float]) -> list[RetentionCandidate]:
    """One checkpoint every `minutes`, oldest first as given, returned newest first."""
    candidates = [
        RetentionCandidate(step, 60 * minutes * i, {name: values[i] for name, values in metrics.items()})
        for i, step in enumerate(steps)
    ]
    return candidates[::-1]


@pytest.mark.parametrize(
    ("keep", "expected"),
    [
        (Keep(2), {500, 600}),
        (Keep(1, every_steps=200), {200, 400, 600}),
        (Keep(1, every_minutes=30), {100, 400, 600}),
        (Keep(1, best=2, metric="loss"), {300, 500, 600}),
        (Keep(1, best=1, metric="loss", mode="max"), {100, 600}),
        (Keep(1, best=1, metric="unheard of"), {600}),
        (Keep(2, every_steps=300, best=1, metric="loss"), {300, 500, 600}),
    ],
)
def test_steps_to_keep__by_rule(keep: Keep, expected: set[int]) -> None:
    candidates = saved(100, 200, 300, 400, 500, 600, loss=[9, 8, 1, 7, 2, 3])
    assert steps_to_keep(keep, candidates) == expected


@given(
    st.lists(st.integers(0, 10**6), unique=True, min_size=1),
    st.builds(
        Keep,
        last=st.integers(1, 5),
        every_steps=st.none() | st.integers(1, 100),
        every_minutes=st.none() | st.floats(0.1, 1000),
        best=st.integers(0, 3),
        metric=st.just("m"),
        mode=st.sampled_from(["min", "max"]),
    ),
    st.data(),
)
def test_steps_to_keep__newest_and_only_candidates(steps: list[int], keep: Keep, data: st.DataObject) -> None:
    values = data.draw(st.lists(st.floats() | st.none(), min_size=len(steps), max_size=len(steps)))
    pairs = sorted(zip(steps, values, strict=True), reverse=True)
    candidates = [RetentionCandidate(step, 60.0 * step, {"m": value}) for step, value in pairs]
    stay = steps_to_keep(keep, candidates)
    assert {one.step for one in candidates[: keep.last]} <= stay <= set(steps)


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"last": 0}, "last must be at least 1"),
        ({"last": 2.5}, "last must be at least 1"),
        ({"last": True}, "last must be at least 1"),
        ({"every_steps": 0}, "every_steps"),
        ({"every_steps": 0.5}, "every_steps"),
        ({"every_minutes": 0}, "every_minutes"),
        ({"best": 1}, "needs the name of the metric"),
        ({"best": 1, "metric": "x", "mode": "least"}, "mode"),
    ],
)
def test_keep__rejects_invalid_rules(wrong: dict[str, object], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Keep(**wrong)  # type: ignore[arg-type]


def test_epoch_s__of_manifest_times() -> None:
    assert epoch_s("1970-01-01T00:01:00.500000Z") == 60.5
    assert epoch_s("nonsense") == 0


class Scalar:
    """A number of another library."""

    def __init__(self, value: float) -> None:
        self._value = value

    def __index__(self) -> int:
        return int(self._value)

    def __float__(self) -> float:
        return self._value


def test_as_rule__takes_whole_numbers_of_any_library() -> None:
    assert as_rule(Scalar(3)) == Keep(3)
    assert as_rule(Keep(2)) == Keep(2)
    assert as_rule(None) is None
    for wrong in (0, -1, 2.5, True, "3", [3]):
        with pytest.raises(ValueError, match="max_checkpoints must be at least 1"):
            as_rule(wrong, "max_checkpoints")


def test_as_numbers__takes_numbers_of_any_library() -> None:
    assert as_numbers({"loss": Scalar(0.5), "n": 3}) == {"loss": 0.5, "n": 3}
    assert as_numbers(None) == {}
    for wrong in ("high", [1.0, 2.0], None):
        with pytest.raises(TypeError, match="the metric 'loss' must be a number"):
            as_numbers({"loss": wrong})
