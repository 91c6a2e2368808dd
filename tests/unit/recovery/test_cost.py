"""What machines cost, and what was saved."""

from __future__ import annotations

import pytest

from perdure.recovery.cost import cost, saving


def test_cost_is_by_the_second() -> None:
    assert cost(3.6, 1000, 1001) == pytest.approx(0.001)
    assert cost(3.6, 1000, 1000 + 7200) == pytest.approx(7.2)


def test_a_machine_that_ended_before_it_began_costs_nothing() -> None:
    assert cost(3.6, 1000, 990) == 0


def test_saving_is_a_share_of_the_on_demand_price() -> None:
    assert saving(0.9, 3.0) == pytest.approx(0.7)
    assert saving(4.5, 3.0) == pytest.approx(-0.5)
    assert saving(0.0, 0.0) is None
