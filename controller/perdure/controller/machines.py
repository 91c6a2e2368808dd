"""What is believed of a job's machines, in the few shapes in which the daemon needs it."""

from __future__ import annotations

from dataclasses import dataclass

from perdure.recovery.job import AttemptView


@dataclass(frozen=True)
class Machines:
    """An attempt's machines: (rank, id) of those known, and since when they are (epoch seconds)."""

    known: tuple[tuple[int, str], ...] = ()
    since: float | None = None

    @property
    def ids(self) -> list[str]:
        return [id for _, id in self.known]


def machines_of(attempt: AttemptView | None) -> Machines:
    if attempt is None:
        return Machines()
    known = tuple((n.rank, n.instance_id) for n in attempt.nodes if n.instance_id is not None)
    return Machines(known, attempt.booted_at)
