"""What is kept of many refusals says as much as all of them."""

from __future__ import annotations

from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from perdure.recovery.market import FaultKind, Market, Offer, Refusal
from perdure.recovery.policies.cooldown import repeats
from perdure.recovery.refusals import RefusalMemory

_KIND = FaultKind.AVOID_ZONE
OFFER = Offer("aws", "us-east-1", "us-east-1a", "p5.48xlarge", Market.SPOT, 10.0, 30.0, 192, 2048.0)


def _refusal(at: float, lasts_s: float, *, kind: FaultKind = _KIND, from_preemption: bool = False) -> Refusal:
    o = OFFER
    return Refusal(
        o.cloud, at + lasts_s, kind, at, o.region, o.zone, o.instance_type, o.market, from_preemption=from_preemption
    )


_TIMES = st.lists(st.tuples(st.floats(0.0, 90.0), st.sampled_from([30.0, 60.0, 600.0])), min_size=1, max_size=60)


@given(_TIMES)
def test_tries_in_vain_and_the_time_to_wait_are_those_of_all(told: list[tuple[float, float]]) -> None:
    starts = accumulate(pause for pause, _ in told)
    every = [_refusal(at, lasts_s) for at, (_, lasts_s) in zip(starts, told, strict=True)]
    memory = RefusalMemory()
    for refusal in every:
        memory.add(refusal)
    kept, now = list(memory), every[-1].at
    in_vain = repeats(OFFER, every, now, kind=_KIND)
    assert repeats(OFFER, kept, now, kind=_KIND) == in_vain
    assert len(kept) <= 3 * in_vain
    assert set(kept) <= set(every)
    assert max(r.until for r in kept) >= max(r.until for r in every) - 1.0
    assert max(r.at for r in kept) >= max(r.at for r in every) - 1.0


def test_ten_thousand_at_once_are_few() -> None:
    memory = RefusalMemory()
    news = sum(memory.add(_refusal(1000.0 + i / 1000, 60.0)) for i in range(10_000))
    assert len(list(memory)) <= 3
    assert news <= 11


def test_others_are_kept_apart() -> None:
    memory = RefusalMemory()
    different = [_refusal(1.0, 60.0), _refusal(1.0, 60.0, from_preemption=True)]
    different.append(_refusal(1.0, 60.0, kind=FaultKind.AVOID_REGION))
    assert [memory.add(refusal) for refusal in different] == [True] * 3
    assert not memory.is_news(different[0])
    assert set(memory) == set(different)


def test_what_ran_out_long_ago_is_forgotten() -> None:
    memory = RefusalMemory()
    first, second = _refusal(0.0, 60.0), _refusal(100.0, 60.0)
    memory.add(first)
    memory.add(second)
    memory.forget(60.0)
    assert list(memory) == [second]
    memory.forget(160.0)
    assert list(memory) == []
    assert memory.add(_refusal(161.0, 60.0))
