"""The daemon's clock when the wall clock is set, and when its computer sleeps."""

from __future__ import annotations

import pytest

from perdure.controller.clock import PACE, SystemClock

BEGAN = 1_800_000_000.0
HOUR = 3600.0


class Computer:
    """`wall` and `uptime` in seconds."""

    def __init__(self) -> None:
        self.wall, self.uptime = BEGAN, 77.0
        self.clock = SystemClock(lambda: self.wall, lambda: self.uptime)

    def passes(self, seconds: float) -> None:
        self.wall += seconds
        self.uptime += seconds

    def times(self, seconds: float) -> list[float]:
        """What its clock says in each of these seconds."""
        told = []
        for _ in range(int(seconds)):
            self.passes(1.0)
            told.append(self.clock.now())
        return told


def test_it_is_the_wall_clock() -> None:
    computer = Computer()
    assert computer.clock.now() == BEGAN
    computer.passes(5 * HOUR)
    assert computer.clock.now() == pytest.approx(computer.wall)


@pytest.mark.parametrize("by_s", [HOUR, -HOUR, 10 * 365 * 24 * HOUR, -0.2, 30.0])
def test_it_never_leaps_when_the_wall_clock_is_set(by_s: float) -> None:
    computer = Computer()
    before = computer.clock.now()
    computer.wall += by_s
    for now in computer.times(2 * HOUR):
        assert now - before >= 1 - PACE - 1e-6
        assert now - before <= 1 + PACE + 1e-6
        before = now


@pytest.mark.parametrize("by_s", [60.0, -60.0])
def test_it_agrees_in_the_end(by_s: float) -> None:
    computer = Computer()
    computer.wall += by_s
    computer.times(abs(by_s) / PACE + 2)
    assert computer.clock.now() == pytest.approx(computer.wall)


def test_a_sleep_is_time_that_passed() -> None:
    computer = Computer()
    computer.passes(8 * HOUR)
    assert computer.clock.now() == pytest.approx(BEGAN + 8 * HOUR)
