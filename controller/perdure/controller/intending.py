"""Turns what `step` asks for into intents: the frozen request, and the token that makes a repeat harmless."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, bindparam, select

from perdure.controller.store import codec, intents
from perdure.controller.store.buckets import removable
from perdure.controller.store.intents import Intent, IntentKind
from perdure.controller.store.tables import JobRow, TaskRow
from perdure.recovery import actions
from perdure.recovery.job import JobView

Job = JobRow.__table__  # type: ignore[attr-defined]
Task = TaskRow.__table__  # type: ignore[attr-defined]
_ASKER = (Job.c.user, Job.c.priority)

_NAMED = (
    select(Task.c.spec, Job.c.name, *_ASKER)
    .join(Job, Job.c.id == Task.c.job_id)
    .where(Task.c.job_id == bindparam("job_id"), Task.c.index == bindparam("index"))
)


@dataclass(frozen=True)
class Intending:
    """`controller`: the name that is written on every machine."""

    controller: str

    def write_down(self, conn: Connection, job: JobView, wanted: Sequence[actions.Action], now: float) -> list[Intent]:
        """Store an intent for each action that touches the outside. Those written down before are left out."""
        written = []
        for action in wanted:
            match action:
                case actions.Launch():
                    kind, generation = IntentKind.LAUNCH, action.generation
                    request = self._launch_request(conn, job, action)
                case actions.Terminate():
                    kind, generation = IntentKind.TERMINATE, action.generation
                    request = self._terminate_request(job, action)
                case actions.PrepareStorage():
                    kind, generation, request = IntentKind.PREPARE_STORAGE, 0, self._storage_request(conn, job)
                case _:
                    continue
            key = (job.id, action.task, generation)
            token = self._token(job.id, action.task, generation)
            written.append(intents.add(conn, key=key, kind=kind, token=token, request=request, now=now))
        return [intent for intent in written if intent is not None]

    def write_down_removal(self, conn: Connection, job: JobView, now: float) -> list[Intent]:
        """The intent to remove the buckets that were made for this job and shall not outlive it, if there are any."""
        if not removable(conn, job.id):
            return []
        token = self._token(job.id, 0, 0)
        kind = IntentKind.REMOVE_STORAGE
        intent = intents.add(conn, key=(job.id, 0, 0), kind=kind, token=token, request={}, now=now)
        return [intent] if intent else []

    def _token(self, job_id: int, task: int, generation: int) -> str:
        return f"hf-{self.controller}-{job_id}-{task}-{generation}"

    def _launch_request(self, conn: Connection, job: JobView, action: actions.Launch) -> dict[str, Any]:
        row = conn.execute(_NAMED, {"job_id": job.id, "index": action.task}).one()
        return {
            "controller": self.controller,
            "offer": codec.offer_json(action.offer),
            "num_nodes": action.num_nodes,
            "name": f"perdure-{row.name}-{job.id}-{action.task}-{action.generation}",
            "line": _line(job, row),
            **row.spec.get("machine", {}),
        }

    def _storage_request(self, conn: Connection, job: JobView) -> dict[str, Any]:
        return {"line": _line(job, conn.execute(select(*_ASKER).where(Job.c.id == job.id)).one())}

    def _terminate_request(self, job: JobView, action: actions.Terminate) -> dict[str, Any]:
        attempt = job.tasks[action.task].attempt(action.generation)
        assert attempt is not None, "an attempt lives until its termination is confirmed"
        return {"controller": self.controller, "offer": codec.offer_json(attempt.offer)}


def _line(job: JobView, asker: Row[Any]) -> dict[str, Any]:
    """How what the job asks for stands in line among what others ask for: see `lanes.Launch`."""
    return {"user": asker.user, "priority": asker.priority, "is_begun": any(task.has_run for task in job.tasks)}
