"""The route for what a job's machines use."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fastapi import APIRouter

from perdure.controller.api.access.permitted_objects import VisibleJob
from perdure.controller.api.auth import Reader
from perdure.controller.api.schemas import error_responses, json_response
from perdure.controller.store.queries import job_listing
from perdure.sdk.connection import api_types

router = APIRouter(prefix="/api/v1", tags=["jobs"])


@router.get("/jobs/{job_id}/usage", responses=json_response(list[api_types.NodeUse]) | error_responses(400, 401, 404))
async def usage(caller: Reader, job_id: VisibleJob) -> list[dict[str, Any]]:
    """The newest report of each node of the job that is connected to this controller; nodes report once a minute."""
    return [
        {
            "task_index": key[1],
            "generation": key[2],
            "rank": rank,
            "at": job_listing.iso(report.at),
            **{name: value for name, value in asdict(report.frame).items() if name != "type"},
        }
        for (key, rank), report in caller.context.sessions.usage.newest(job_id)
    ]
