"""What a task requires of a machine, as plain data."""

from __future__ import annotations

from dataclasses import dataclass

from perdure.recovery.frozen import cached
from perdure.recovery.market.view import Market


@dataclass(frozen=True)
class Amount:
    """`4` (exactly) or `4+` (at least)."""

    value: float
    at_least: bool = False

    def admits(self, value: float) -> bool:
        return value >= self.value if self.at_least else value == self.value

    def __str__(self) -> str:
        return f"{self.value:g}{'+' if self.at_least else ''}"


@dataclass(frozen=True)
class MachineRequirement:
    """One alternative of a task's resources. A field that is None admits anything.

    `rank` orders the user's alternatives: all of rank 0 are tried before rank 1 (`ordered:`, a list of accelerators);
    alternatives of the same rank compete by price (`any_of:`, a set of accelerators).
    """

    cloud: str | None = None
    region: str | None = None
    zone: str | None = None
    instance_type: str | None = None
    cpus: Amount | None = None
    memory_gib: Amount | None = None
    accelerators: tuple[str, float] | None = None
    use_spot: bool = True
    max_price_per_hour: float | None = None
    rank: int = 0

    @cached
    def _hash(self) -> int:
        return hash(tuple(getattr(self, name) for name in self.__dataclass_fields__))

    def __hash__(self) -> int:
        """Computed once: `fit` caches offers by a task's requirements."""
        return self._hash

    @property
    def market(self) -> Market:
        return Market.SPOT if self.use_spot else Market.ON_DEMAND
