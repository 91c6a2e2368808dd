"""Which values the jobs of a grid get."""

from __future__ import annotations

from perdure.controller.store import grid

TWO_BY_THREE = {"LR": ["1e-3", "0.1"], "SEED": ["1", "2", "3"]}


def test_ranks__run_through_every_combination_once() -> None:
    assert grid.size(TWO_BY_THREE) == 6
    found = [tuple(grid.combination(TWO_BY_THREE, rank).values()) for rank in range(6)]
    assert found == [("1e-3", "1"), ("1e-3", "2"), ("1e-3", "3"), ("0.1", "1"), ("0.1", "2"), ("0.1", "3")]


def test_combination__keeps_the_order_of_the_task() -> None:
    assert list(grid.combination(TWO_BY_THREE, 0)) == ["LR", "SEED"]
