"""What is asked twice a day."""

from __future__ import annotations

from collections import Counter

from perdure.controller.clock import ManualClock
from perdure.controller.clouds.aws.seldom import AGE_S, SILENT_S, Seldom


class Teller:
    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.told = {"a": 1.0}
        self.is_away = False

    def ask(self, region: str) -> dict[str, float]:
        self.asked[region] += 1
        if self.is_away:
            raise ConnectionError("no answer")
        return self.told


def test_a_region_is_asked_when_what_it_told_is_old() -> None:
    clock, teller = ManualClock(), Teller()
    prices = Seldom("prices", teller.ask, clock)
    for _ in range(2):
        assert prices.of_region("r") == {"a": 1.0}
    prices.of_region("s")
    assert teller.asked == {"r": 1, "s": 1}
    teller.told = {"a": 2.0}
    clock.advance(AGE_S - 1)
    assert prices.of_region("r") == {"a": 1.0}
    clock.advance(1)
    assert prices.of_region("r") == {"a": 2.0}
    assert teller.asked == {"r": 2, "s": 1}


def test_who_does_not_answer_is_asked_again_a_minute_later_and_what_he_told_stays() -> None:
    clock, teller = ManualClock(), Teller()
    prices = Seldom("prices", teller.ask, clock)
    teller.is_away = True
    assert prices.of_region("r") == {}
    assert prices.of_region("s") == {}
    assert teller.asked == {"r": 1}, "he would not answer for another region either"
    teller.is_away = False
    clock.advance(SILENT_S)
    assert prices.of_region("r") == {"a": 1.0}
    teller.is_away = True
    clock.advance(AGE_S)
    assert prices.of_region("r") == {"a": 1.0}
    assert teller.asked == {"r": 3}
