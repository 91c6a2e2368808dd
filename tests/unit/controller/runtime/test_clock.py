"""The daemon's clock while the wall clock is set, and while the computer is suspended."""

from __future__ import annotations

import pytest

from perdure.controller.runtime.clock import MAX_SLEW, SystemClock

START = 1_800_000_000.0
HOUR = 3600.0


class Computer:
    """A computer with a wall clock and an uptime, both in seconds."""

    def __init__(self) -> None:
        self.wall, self.uptime = START, 77.0
        self.clock = SystemClock(lambda: self.wall, lambda: self.uptime)

    def advance(self, seconds: float) -> None:
        self.wall += seconds
        self.uptime += seconds

    def sample(self, seconds: float) -> list[float]:
        """The clock's time in each of the next seconds."""
        samples = []
        for _ in range(int(seconds)):
            self.advance(1.0)
            samples.append(self.clock.now())
        return samples


def test_system_clock__equals_wall_clock() -> None:
    computer = Computer()
    assert computer.clock.now() == START
    computer.advance(5 * HOUR)
    assert computer.clock.now() == pytest.approx(computer.wall)


@pytest.mark.parametrize("by_s", [HOUR, -HOUR, 10 * 365 * 24 * HOUR, -0.2, 30.0])
def test_system_clock__never_jumps_when_wall_clock_is_set(by_s: float) -> None:
    computer = Computer()
    before = computer.clock.now()
    computer.wall += by_s
    for now in computer.sample(2 * HOUR):
        assert now - before >= 1 - MAX_SLEW - 1e-6
        assert now - before <= 1 + MAX_SLEW + 1e-6
        before = now


@pytest.mark.parametrize("by_s", [60.0, -60.0])
def test_system_clock__agrees_with_wall_clock_in_the_end(by_s: float) -> None:
    computer = Computer()
    computer.wall += by_s
    computer.sample(abs(by_s) / MAX_SLEW + 2)
    assert computer.clock.now() == pytest.approx(computer.wall)


def test_system_clock__counts_suspended_time() -> None:
    computer = Computer()
    computer.advance(8 * HOUR)
    assert computer.clock.now() == pytest.approx(START + 8 * HOUR)
