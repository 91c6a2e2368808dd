"""Routes for notifications: what was sent, and a test of a channel."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field

from perdure.controller.api.access.audit_log import record
from perdure.controller.api.auth import Operator, Reader
from perdure.controller.api.schemas import error_responses, json_response
from perdure.controller.maintenance.notify.channel_protocol import Delivered
from perdure.controller.store.queries import job_listing
from perdure.controller.store.records import notifications
from perdure.controller.submit.errors import RequestRejected
from perdure.sdk.connection import api_types

router = APIRouter(prefix="/api/v1/notifications", tags=["notifications"])
_MAX_LISTED = 1000


class TestRequest(BaseModel):
    """Which channel to test."""

    model_config = ConfigDict(extra="forbid")
    channel: str = Field(min_length=1, max_length=200)


@router.get("", responses=json_response(list[api_types.Notification]) | error_responses(400, 401, 503))
def list_notifications(
    caller: Reader,
    *,
    limit: Annotated[int, Query(ge=1, le=_MAX_LISTED)] = 50,
    channel: Annotated[str | None, Query(max_length=200)] = None,
    job_id: Annotated[int | None, Query(ge=1, le=2**31 - 1)] = None,
) -> list[dict[str, Any]]:
    """The newest notifications first, with the answer of their receiver or the last error."""
    with caller.context.database.connect() as conn:
        rows = notifications.latest(conn, limit, channel=channel, job_id=job_id, user=caller.sees)
    return [
        {
            "event_id": row.event_id,
            "event": row.kind,
            "channel": row.channel,
            "job_id": row.job_id,
            "at": job_listing.iso(row.at),
            "tries": row.try_count,
            "next_try_at": job_listing.iso(row.wake_at) if row.done_at is None else None,
            "outcome": row.outcome,
            "detail": row.error,
        }
        for row in rows
    ]


@router.post("/test", responses=json_response(api_types.NotificationTest) | error_responses(400, 401, 404, 503))
def test_channel(caller: Operator, body: TestRequest) -> dict[str, Any]:
    """Send a test message to a channel of config.yaml now, and wait for the result."""
    sender = caller.context.notifications
    record(caller, "notify.test", body.channel)
    result = sender.send_test(body.channel) if sender is not None else None
    if result is None:
        known = ", ".join(sender.channel_names if sender is not None else ()) or "none"
        raise RequestRejected(
            f"there is no notification channel {body.channel!r}",
            where="channel",
            fix=f"channels: {known}; they are defined in notify.channels of config.yaml",
            status=404,
        )
    delivered = isinstance(result, Delivered)
    return {
        "channel": body.channel,
        "delivered": delivered,
        "detail": result.detail if isinstance(result, Delivered) else result.error,
    }
