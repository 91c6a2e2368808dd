"""Routes for what runs: the controllers of the database, and the machines of attempts."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from sqlalchemy import and_, literal_column, select

from perdure.controller.api.auth import Reader
from perdure.controller.api.dashboard import responses
from perdure.controller.api.schemas import error_responses, json_response
from perdure.controller.store.engine.database import database_now
from perdure.controller.store.queries.job_listing import iso
from perdure.controller.store.records.clusters import SHOWN_NAME
from perdure.controller.store.records.job_claims import Controller
from perdure.controller.store.records.jobs import Attempt, Job, Node
from perdure.recovery.statuses import AttemptState

router = APIRouter(prefix="/api/v1", tags=["fleet"], responses=error_responses(400, 401, 503))

_MAX_ID = 2**63 - 1
_OF_ATTEMPT = ("job_id", "task_index", "generation")
# The state is part of the text, so that the partial index of live attempts is used.
_IS_LIVE = Attempt.c.state != literal_column(f"'{AttemptState.GONE.value}'")
_ON_SLOTS = select(Job.c.id).where(Job.c.cluster_id.is_not(None), Job.c.cluster_job.is_not(None))
_HAS_MACHINES = Attempt.c.job_id.not_in(_ON_SLOTS)  # the machines of clusters are those of their hosts
_JOBS = select(Attempt.c.job_id).where(_IS_LIVE, _HAS_MACHINES).distinct().order_by(Attempt.c.job_id.desc())
_NODES = (
    select(Node, Attempt.c.offer, Attempt.c.state, Attempt.c.booted_at, SHOWN_NAME.label("name"), Job.c.user)
    .join(Attempt, and_(*(Node.c[name] == Attempt.c[name] for name in _OF_ATTEMPT)))
    .join(Job, Job.c.id == Node.c.job_id)
    .where(_IS_LIVE)
    .order_by(Node.c.job_id.desc(), Node.c.task_index, Node.c.generation.desc(), Node.c.rank)
)


@router.get("/controllers", responses=json_response(list[responses.ControllerLease]))
def controllers(caller: Reader) -> list[dict[str, Any]]:
    """The controllers that share the database. `is_alive`: it holds its lease, and so its jobs."""
    context = caller.context
    with context.database.connect() as conn:
        now = context.clock.now()
        alive = set(conn.scalars(select(Controller.c.id).where(Controller.c.lease_until >= database_now(conn, now))))
        rows = conn.execute(select(Controller).order_by(Controller.c.started_at)).mappings().all()
    return [
        {
            "id": row["id"],
            "endpoint": row["endpoint"],
            "started_at": iso(row["started_at"]),
            "lease_until": iso(row["lease_until"]),
            "is_alive": row["id"] in alive,
            "schema_revision": row["schema_revision"],
        }
        for row in rows
    ]


@router.get("/nodes", responses=json_response(responses.NodePage))
def nodes(
    caller: Reader,
    *,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    before: Annotated[int | None, Query(ge=0, le=_MAX_ID, description="only nodes of jobs with lower ids")] = None,
) -> dict[str, Any]:
    """The machines of attempts that are not over, those of the newest jobs first. `limit` counts jobs; `next` is the
    `before` of the next page, null on the last one."""
    context = caller.context
    page = _JOBS if before is None else _JOBS.where(Attempt.c.job_id < before)
    if caller.sees is not None:
        page = page.where(Attempt.c.job_id.in_(select(Job.c.id).where(Job.c.user == caller.sees)))
    with context.database.connect() as conn:
        ids = list(conn.scalars(page.limit(limit)))
        rows = conn.execute(_NODES.where(Node.c.job_id.in_(ids))).mappings().all()
    return {
        "now": iso(context.clock.now()),
        "nodes": [_node(row) for row in rows],
        "next": ids[-1] if len(ids) == limit else None,
    }


def _node(row: Any) -> dict[str, Any]:
    offer = row["offer"]
    launched_at = row["launched_at"] if row["launched_at"] is not None else row["booted_at"]
    names = ("job_id", "task_index", "generation", "rank", "phase", "instance_id", "ip", "connected", "name", "user")
    places = ("cloud", "region", "zone", "instance_type", "market", "price_per_hour")
    return {
        **{name: row[name] for name in names},
        **{name: offer[name] for name in places},
        "attempt_state": row["state"],
        "launched_at": iso(launched_at),
        "notice_deadline": iso(row["notice_deadline"]),
    }
