"""Which checkpoints a rule keeps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.checkpoint.save.retention.keep_rule import Keep, RetentionCandidate, epoch_s, steps_to_keep


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
        ({"every_steps": 0}, "every_steps"),
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
