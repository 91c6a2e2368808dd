"""Incarnations of the database: a new one begins when a copy that lacks something of the past is accepted.

In such a copy, ids of jobs and generations of attempts that were given before may be given again. The tokens of an
attempt contain its incarnation, so they differ from those of a lost attempt with the same key.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from perdure.controller.runtime.keys import AttemptKey

TaskKey = tuple[int, int]
"""(job id, task index)"""


@dataclass(frozen=True)
class Incarnation:
    """One incarnation. It ends when the next one begins."""

    id: str
    first_job_id: int  # this job and all later ones belong to it
    #: The first generation that belongs to it, of tasks of earlier jobs that had not ended when it began.
    first_generations: Mapping[TaskKey, int] = field(default_factory=dict)
    replaces: str = ""  # the incarnation that was lost

    def has(self, key: AttemptKey) -> bool:
        job_id, task, generation = key
        first = self.first_generations.get((job_id, task))
        return job_id >= self.first_job_id or (first is not None and generation >= first)


@dataclass(frozen=True)
class Incarnations:
    """All incarnations that a database knows of, the oldest first."""

    history: Sequence[Incarnation] = ()

    @property
    def current(self) -> str:
        """The id of the current one; "" if none was recorded."""
        return self.history[-1].id if self.history else ""

    def of(self, key: AttemptKey) -> str:
        """The id of the incarnation of an attempt; "" if it is older than the first one that was recorded."""
        return next((one.id for one in reversed(self.history) if one.has(key)), "")

    def knows(self, incarnation: str) -> bool:
        """Whether the database has the past of this incarnation, or somebody accepted that it is lost."""
        return any(incarnation in (one.id, one.replaces) for one in self.history)

    def launch_token(self, controller: str, key: AttemptKey) -> str:
        """The idempotency token of an attempt's launch. `controller`: the id of the installation."""
        return "-".join(str(part) for part in ("pd", controller, self.of(key), *key) if part != "")

    def to_json(self) -> str:
        rows = [
            {
                "id": one.id,
                "first_job_id": one.first_job_id,
                "first_generations": [[*task, generation] for task, generation in one.first_generations.items()],
                "replaces": one.replaces,
            }
            for one in self.history
        ]
        return json.dumps(rows, separators=(",", ":"))

    @staticmethod
    def from_json(text: str) -> Incarnations:
        return Incarnations(
            tuple(
                Incarnation(
                    row["id"],
                    row["first_job_id"],
                    {(job, task): generation for job, task, generation in row["first_generations"]},
                    row.get("replaces", ""),
                )
                for row in json.loads(text)
            )
        )


NO_INCARNATIONS = Incarnations()


def new_id() -> str:
    return secrets.token_hex(3)
