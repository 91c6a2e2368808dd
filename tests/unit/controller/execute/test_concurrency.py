"""How many calls of a cloud may run at a time."""

from __future__ import annotations

from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from perdure.controller.execute.concurrency import AdaptiveConcurrencyLimit


def test_limit__doubles_until_the_first_throttling_then_grows_by_one_a_round() -> None:
    limit, open_calls = AdaptiveConcurrencyLimit(64), deque[int]()
    limits = [limit.limit]
    for is_throttled in (False, False, True, False, True, False):
        while limit.has_room:
            open_calls.append(limit.start())
        for _ in range(len(open_calls)):
            limit.finish(open_calls.popleft(), is_throttled=is_throttled)
            while limit.has_room:
                open_calls.append(limit.start())
        limits.append(limit.limit)
    assert limits == [16, 32, 64, 32, 33, 16, 17]


def test_limit__does_not_grow_unless_it_is_used() -> None:
    limit = AdaptiveConcurrencyLimit(64)
    for _ in range(1000):
        limit.finish(limit.start(), is_throttled=False)
    assert limit.limit == 16


@given(st.integers(1, 40), st.lists(st.tuples(st.booleans(), st.integers(0, 50)), max_size=200))
def test_limit__stays_between_one_and_the_maximum(max_limit: int, moves: list[tuple[bool, int]]) -> None:
    limit, open_calls = AdaptiveConcurrencyLimit(max_limit), list[int]()
    for is_throttled, which in moves:
        while limit.has_room:
            open_calls.append(limit.start())
        assert 1 <= limit.limit <= max_limit
        assert limit.in_flight == len(open_calls) <= max_limit
        limit.finish(open_calls.pop(which % len(open_calls)), is_throttled=is_throttled)
