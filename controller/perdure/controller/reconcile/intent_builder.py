"""Turns the actions of a step into intents: a frozen request, and a token that makes repeating it safe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, bindparam, select

from perdure.controller.store import codec
from perdure.controller.store.records import intents
from perdure.controller.store.records.buckets import removable
from perdure.controller.store.records.intents import Intent, IntentKind
from perdure.controller.store.tables import JobRow, TaskRow
from perdure.recovery import actions
from perdure.recovery.job import JobView
from perdure.recovery.market.fit import fitted_requirement
from perdure.recovery.market.offers import Offer
from perdure.recovery.market.requirements import MachineRequirement

Job = JobRow.__table__  # type: ignore[attr-defined]
Task = TaskRow.__table__  # type: ignore[attr-defined]
_SUBMITTER = (Job.c.user, Job.c.priority)

_LAUNCH_COLUMNS = (
    select(Task.c.spec, Job.c.name, *_SUBMITTER)
    .join(Job, Job.c.id == Task.c.job_id)
    .where(Task.c.job_id == bindparam("job_id"), Task.c.index == bindparam("index"))
)


@dataclass(frozen=True)
class IntentBuilder:
    """Records intents in the transaction of the decision that asks for them."""

    controller: str  # the id of this installation, which every machine is tagged with

    def record(
        self, conn: Connection, job: JobView, step_actions: Sequence[actions.Action], now: float
    ) -> list[Intent]:
        """Record an intent for each action that changes something outside. Returns those not recorded before."""
        recorded = []
        for action in step_actions:
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
            recorded.append(intents.add(conn, key=key, kind=kind, token=token, request=request, now=now))
        return [intent for intent in recorded if intent is not None]

    def record_removal(self, conn: Connection, job: JobView, now: float) -> list[Intent]:
        """Record the removal of the buckets that were created for this job and end with it, if there are any."""
        if not removable(conn, job.id):
            return []
        token = self._token(job.id, 0, 0)
        kind = IntentKind.REMOVE_STORAGE
        intent = intents.add(conn, key=(job.id, 0, 0), kind=kind, token=token, request={}, now=now)
        return [intent] if intent else []

    def _token(self, job_id: int, task: int, generation: int) -> str:
        return f"pd-{self.controller}-{job_id}-{task}-{generation}"

    def _launch_request(self, conn: Connection, job: JobView, action: actions.Launch) -> dict[str, Any]:
        row = conn.execute(_LAUNCH_COLUMNS, {"job_id": job.id, "index": action.task}).one()
        return {
            "controller": self.controller,
            "offer": codec.encode_offer(action.offer),
            "num_nodes": action.num_nodes,
            "name": f"perdure-{row.name}-{job.id}-{action.task}-{action.generation}",
            "queue": _queue_key(job, row),
            **_machine_options(row.spec, job.tasks[action.task].requirements, action.offer),
        }

    def _storage_request(self, conn: Connection, job: JobView) -> dict[str, Any]:
        return {"queue": _queue_key(job, conn.execute(select(*_SUBMITTER).where(Job.c.id == job.id)).one())}

    def _terminate_request(self, job: JobView, action: actions.Terminate) -> dict[str, Any]:
        attempt = job.tasks[action.task].attempt(action.generation)
        assert attempt is not None, "an attempt lives until its termination is confirmed"
        return {"controller": self.controller, "offer": codec.encode_offer(attempt.offer)}


def _machine_options(
    spec: Mapping[str, Any], requirements: Sequence[MachineRequirement], offer: Offer
) -> dict[str, Any]:
    """The fields of a launch request that the alternative of `offer` asks for (`submit.compiler`)."""
    if "machines" not in spec:  # a job of version 0.1.0: the same for all alternatives
        return dict(spec.get("machine", {}))
    index = fitted_requirement(requirements, offer)
    return {} if index is None else dict(spec["machines"][index])


def _queue_key(job: JobView, submitter: Row[Any]) -> dict[str, Any]:
    """What orders this intent among those of other jobs: fields of `call_queue.QueuedLaunch`."""
    return {"user": submitter.user, "priority": submitter.priority, "has_run": any(task.has_run for task in job.tasks)}
