"""The machines of an attempt, as the controller believes them to be."""

from __future__ import annotations

from dataclasses import dataclass

from perdure.recovery.job import AttemptView


@dataclass(frozen=True)
class MachineIds:
    """An attempt's machines."""

    known: tuple[tuple[int, str], ...] = ()  # (rank, instance id)
    since: float | None = None  # when the last of them may have been launched, epoch seconds

    @property
    def ids(self) -> list[str]:
        return [id for _, id in self.known]


def machines_of(attempt: AttemptView | None) -> MachineIds:
    if attempt is None:
        return MachineIds()
    known = tuple((n.rank, n.instance_id) for n in attempt.nodes if n.instance_id is not None)
    return MachineIds(known, attempt.booted_at)
