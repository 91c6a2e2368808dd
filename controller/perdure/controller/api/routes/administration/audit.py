"""The route of the audit log."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query

from perdure.controller.api.access.permitted_objects import MAX_ID
from perdure.controller.api.auth import Admin
from perdure.controller.api.schemas import error_responses, json_response
from perdure.controller.store.access import audit
from perdure.controller.store.access.audit import AuditFilter
from perdure.controller.store.queries.job_listing import iso
from perdure.sdk.connection import users as types

router = APIRouter(prefix="/api/v1", tags=["users"], responses=error_responses(400, 401, 503))

_MAX_LISTED = 1000
_Text = Annotated[str | None, Query(max_length=200)]


@router.get("/audit", responses=json_response(list[types.AuditEntry]))
def audit_log(
    caller: Admin,
    *,
    limit: Annotated[int, Query(ge=1, le=_MAX_LISTED)] = 50,
    before: Annotated[int | None, Query(ge=0, le=MAX_ID, description="only entries with lower ids")] = None,
    user: _Text = None,
    action: Annotated[str | None, Query(max_length=200, description="`job.cancel`, or a prefix: `job.`")] = None,
    outcome: Literal["allowed", "denied"] | None = None,
    since_s: Annotated[float | None, Query(ge=0, le=1e10, description="only those of the last seconds")] = None,
) -> list[dict[str, Any]]:
    """Who did what: the newest entries first. No entry has a secret."""
    context = caller.context
    since = None if since_s is None else context.clock.now() - since_s * context.time_scale.speed
    with context.database.connect() as conn:
        rows = audit.latest(conn, AuditFilter(limit, before, user, action, outcome, since))
    return [
        {
            "id": row.id,
            "at": iso(row.at),
            **{name: getattr(row, name) for name in ("user", "token", "address", "action", "target", "outcome")},
            "detail": row.detail,
        }
        for row in rows
    ]
