"""The cache for data that rarely changes."""

from __future__ import annotations

from collections import Counter

from perdure.controller.clouds.aws.sdk.slow_cache import AGE_S, RETRY_AFTER_FAILURE_S, TtlCache
from perdure.controller.runtime.clock import ManualClock


class Source:
    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.response = {"a": 1.0}
        self.is_away = False

    def fetch(self, region: str) -> dict[str, float]:
        self.calls[region] += 1
        if self.is_away:
            raise ConnectionError("no answer")
        return self.response


def test_ttl_cache__fetches_a_region_when_it_is_old() -> None:
    clock, source = ManualClock(), Source()
    prices = TtlCache("prices", source.fetch, clock)
    for _ in range(2):
        assert prices.get("r") == {"a": 1.0}
    prices.get("s")
    assert source.calls == {"r": 1, "s": 1}
    source.response = {"a": 2.0}
    clock.advance(AGE_S - 1)
    assert prices.get("r") == {"a": 1.0}
    clock.advance(1)
    assert prices.get("r") == {"a": 2.0}
    assert source.calls == {"r": 2, "s": 1}


def test_ttl_cache__keeps_values_and_pauses_after_a_failure() -> None:
    clock, source = ManualClock(), Source()
    prices = TtlCache("prices", source.fetch, clock)
    source.is_away = True
    assert prices.get("r") == {}
    assert prices.get("s") == {}
    assert source.calls == {"r": 1}, "another region would fail as well"
    source.is_away = False
    clock.advance(RETRY_AFTER_FAILURE_S)
    assert prices.get("r") == {"a": 1.0}
    source.is_away = True
    clock.advance(AGE_S)
    assert prices.get("r") == {"a": 1.0}
    assert source.calls == {"r": 3}
