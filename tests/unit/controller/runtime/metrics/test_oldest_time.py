from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from perdure.controller.runtime.metrics.oldest_time import OldestTime


@given(st.lists(st.tuples(st.integers(0, 9), st.none() | st.floats(0, 100)), max_size=300))
def test_oldest__is_the_minimum_of_the_times(changes: list[tuple[int, float | None]]) -> None:
    oldest, times = OldestTime[int](), dict[int, float]()
    for key, at in changes:
        if at is None:
            assert oldest.discard(key) == times.pop(key, None)
        else:
            oldest.set(key, at)
            times[key] = at
        assert oldest.oldest() == min(times.values(), default=None)
        assert len(oldest) == len(times)


def test_memory__stays_bounded_while_one_time_changes() -> None:
    oldest = OldestTime[int]()
    for at in range(10_000):
        oldest.set(1, at)
    assert len(oldest._heap) < 200
