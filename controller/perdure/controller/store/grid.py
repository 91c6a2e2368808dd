"""The grid of a sweep: variables with the values that they take, of which each job gets one combination. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

Grid = Mapping[str, Sequence[str]]
"""Variable → its values, in the order of the task."""


def size(grid: Grid) -> int:
    """How many combinations there are."""
    return math.prod(len(values) for values in grid.values())


def combination(grid: Grid, rank: int) -> dict[str, str]:
    """The values of the job with this rank. The last variable changes first, as in nested loops."""
    chosen: dict[str, str] = {}
    for name, values in reversed(list(grid.items())):
        rank, index = divmod(rank, len(values))
        chosen[name] = values[index]
    return {name: chosen[name] for name in grid}
