"""The routes for what a job's machines use, now and over time, and for what its program reports."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from fastapi import APIRouter

from perdure.controller.api.access.permitted_objects import VisibleJob, no_such_job
from perdure.controller.api.auth import Reader
from perdure.controller.api.dashboard import responses
from perdure.controller.api.schemas import error_responses, json_response
from perdure.controller.store.access import owners
from perdure.controller.store.logs.series import node_metrics
from perdure.controller.store.logs.series.metric_series import REPORTED_PREFIX, MetricSeries, merged
from perdure.controller.store.queries import job_listing
from perdure.controller.store.records.agent_connections import Place
from perdure.sdk.connection import api_types

router = APIRouter(prefix="/api/v1", tags=["jobs"])

MAX_SERIES = 200
MAX_POINTS = 4000
"""Of an answer: more series have fewer points each."""
_MIN_POINTS = 20  # of a series


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


@router.get(
    "/jobs/{job_id}/metrics",
    responses=json_response(responses.MetricsOverTime) | error_responses(400, 401, 404, 503),
)
def metrics(caller: Reader, job_id: VisibleJob) -> dict[str, Any]:
    """What each node of the job used over time, over all attempts, and the numbers that its program reported.

    At most 200 nodes, those of the newest attempts: `omitted` counts the others. A series is kept for
    `retention.metrics_days` (30) after its node's last report. Another controller's nodes are up to five minutes late.
    """
    context = caller.context
    with context.database.connect() as conn:
        if owners.job_owners(conn, [job_id]).get(job_id) is None:
            raise no_such_job(job_id)
        stored = node_metrics.of_job(conn, job_id, MAX_SERIES)
        omitted = max(0, node_metrics.count_of_job(conn, job_id) - MAX_SERIES)
    for place, points in context.sessions.usage.pending.of_job(job_id).items():
        stored[place] = merged(stored.get(place), points)
    each = max(_MIN_POINTS, MAX_POINTS // max(1, len(stored)))
    return {
        "now": job_listing.iso(context.clock.now()),
        "series": [_series(place, stored[place].coarsened(each)) for place in sorted(stored)],
        "omitted": omitted,
    }


def _series(place: Place, series: MetricSeries) -> dict[str, Any]:
    (_, task_index, generation), rank = place
    of_machine = {name: column for name, column in series.columns.items() if not name.startswith(REPORTED_PREFIX)}
    reported = {name.removeprefix(REPORTED_PREFIX): series.columns[name] for name in series.columns.keys() - of_machine}
    return {
        "task_index": task_index,
        "generation": generation,
        "rank": rank,
        "resolution_s": series.resolution_s,
        "at": [round(at, 1) for at in series.at],
        "values": _rounded(of_machine),
        "reported": _rounded(reported),
    }


def _rounded(columns: Mapping[str, array[float]]) -> dict[str, list[float | None]]:
    return {
        name: [None if math.isnan(value) else float(f"{value:.6g}") for value in columns[name]]
        for name in sorted(columns)
    }
