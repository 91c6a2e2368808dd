"""Routes for clusters: launch, exec, list, queue, cancel, stop, start, down, autostop.

`submit.clusters` does what they ask; the logs of a cluster's job are those of its job id (`routes.logs`).
"""

from __future__ import annotations

import re
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from pydantic import Field

from perdure.controller.api.auth import User
from perdure.controller.api.context import ApiContext
from perdure.controller.api.routes.jobs import RequestBody
from perdure.controller.api.schemas import error_responses, json_response
from perdure.controller.store.queries import clusters as queries
from perdure.controller.store.queries import globs
from perdure.controller.store.queries.globs import BadGlob
from perdure.controller.store.queries.job_listing import iso
from perdure.controller.store.records import clusters
from perdure.controller.store.records.clusters import WaitFor
from perdure.controller.submit.clusters import LaunchOptions, OfCluster, no_such_cluster
from perdure.controller.submit.errors import RequestRejected
from perdure.sdk.connection import api_types

router = APIRouter(prefix="/api/v1", tags=["clusters"], responses=error_responses(400, 401, 503))

_MAX_NUMBER, _MAX_NUMBERS = 2**31 - 1, 10_000
_MAX_IDLE_S, _MAX_LIMIT_S = 3_650 * 86_400.0, 3_650 * 86_400.0
Name = Annotated[str, Path(max_length=200, description="the cluster's name")]
Number = Annotated[int, Field(ge=1, le=_MAX_NUMBER)]
IdleSeconds = Annotated[float, Field(ge=0, le=_MAX_IDLE_S)]


class ClusterJobBody(RequestBody):
    task: dict[str, Any]
    user: str = Field("", max_length=200)
    key: str = Field(min_length=1, max_length=200)
    limit_s: float | None = Field(None, gt=0, le=_MAX_LIMIT_S)


class LaunchClusterBody(ClusterJobBody):
    name: str | None = Field(None, max_length=200)
    setup: bool = True
    job: bool = True
    idle_s: IdleSeconds | None = None
    down: bool = False
    wait_for: Annotated[WaitFor, Field(strict=False)] = WaitFor.JOBS_AND_SSH
    recover: bool = False
    command: str = Field("", max_length=2000)


class AutostopBody(RequestBody):
    idle_s: IdleSeconds | None
    down: bool = False
    wait_for: Annotated[WaitFor, Field(strict=False)] = WaitFor.JOBS_AND_SSH


class CancelJobsBody(RequestBody):
    numbers: list[Number] | None = Field(None, max_length=_MAX_NUMBERS)
    all: bool = False


@router.post(
    "/clusters", status_code=201, responses=json_response(api_types.OnCluster, status=201) | error_responses(409, 429)
)
def launch(context: User, body: LaunchClusterBody) -> dict[str, Any]:
    """Create a cluster, or use the one of that name, and queue a job on it. Repeating it with `key` does it once."""
    options = LaunchOptions(
        body.setup, body.job, body.idle_s, body.down, body.wait_for, body.recover, body.command, body.limit_s
    )
    return _of_cluster(context.cluster_service.launch(body.name, body.task, body.user, body.key, options))


@router.post(
    "/clusters/{name}/jobs",
    status_code=201,
    responses=json_response(api_types.OnCluster, status=201) | error_responses(404, 409, 429),
)
def execute(context: User, name: Name, body: ClusterJobBody) -> dict[str, Any]:
    """Queue a job on a cluster, without `setup` and without new machines. Repeating it with `key` does it once."""
    service = context.cluster_service
    return _of_cluster(service.exec(name, body.task, body.user, body.key, body.limit_s))


@router.get("/clusters", responses=json_response(api_types.ClusterList))
def list_clusters(context: User, name: Annotated[list[str] | None, Query(max_length=1000)] = None) -> dict[str, Any]:
    """The clusters that are not down, oldest first. `name`: whole names or patterns; repeatable."""
    with context.database.connect() as conn:
        rows = [row for row in clusters.active(conn) if not name or _matches(row.name, name)]
        return {"now": iso(context.clock.now()), "clusters": queries.describe(conn, rows)}


@router.get("/clusters/{name}/jobs", responses=json_response(api_types.ClusterQueue) | error_responses(404))
def queue(
    context: User, name: Name, number: Annotated[list[int] | None, Query(max_length=_MAX_NUMBERS)] = None
) -> dict[str, Any]:
    """The jobs of a cluster, newest first, also after it is down. `number`: only these; repeatable."""
    now = context.clock.now()
    with context.database.connect() as conn:
        row = clusters.find(conn, name, gone=True)
        if row is None:
            raise no_such_cluster(name)
        (cluster,) = queries.describe(conn, [row])
        jobs = queries.jobs_of(conn, row.id, now, number)
    return {"now": iso(now), "cluster": cluster, "jobs": jobs}


@router.post("/clusters/{name}/cancel", responses=json_response(api_types.CancelledJobs) | error_responses(404))
def cancel(context: User, name: Name, body: CancelJobsBody) -> dict[str, Any]:
    """Cancel jobs by number, all of them, or by default the newest one that runs. An empty list cancels nothing."""
    return context.cluster_service.cancel_jobs(name, body.numbers, everything=body.all)


@router.post("/clusters/{name}/stop", responses=json_response(api_types.Cluster) | error_responses(404, 409))
def stop(context: User, name: Name) -> dict[str, Any]:
    """End the machines of a cluster; its queue stays, and running jobs wait to start again."""
    cluster_id = context.cluster_service.get(name).id
    context.cluster_service.stop(name)
    return _describe(context, cluster_id)


@router.post("/clusters/{name}/start", responses=json_response(api_types.Cluster) | error_responses(404, 409))
def start(context: User, name: Name) -> dict[str, Any]:
    """Launch machines for a cluster that is stopped, or has lost them."""
    return _describe(context, context.cluster_service.start(name).cluster_id)


@router.post("/clusters/{name}/down", responses=json_response(api_types.Cluster) | error_responses(404))
def down(context: User, name: Name) -> dict[str, Any]:
    """End a cluster: its jobs are cancelled, and its machines end. Its queue and logs stay readable."""
    return _describe(context, context.cluster_service.down(name))


@router.post("/clusters/{name}/autostop", responses=json_response(api_types.Cluster) | error_responses(404))
def autostop(context: User, name: Name, body: AutostopBody) -> dict[str, Any]:
    """Stop a cluster, or take it down, once it was idle for `idle_s` seconds; null: never.

    `wait_for`: what keeps it from being idle, jobs and sessions of users, jobs alone, or nothing.
    """
    cluster_id = context.cluster_service.get(name).id
    context.cluster_service.autostop(name, body.idle_s, body.wait_for, down=body.down)
    return _describe(context, cluster_id)


@router.get("/cluster-ids/{cluster_id}", responses=json_response(api_types.Cluster) | error_responses(404))
def show(context: User, cluster_id: Annotated[int, Path(ge=0, le=_MAX_NUMBER)]) -> dict[str, Any]:
    """A cluster by its id, also after it is down."""
    return _describe(context, cluster_id)


def _describe(context: ApiContext, cluster_id: int) -> dict[str, Any]:
    with context.database.connect() as conn:
        row = clusters.get(conn, cluster_id)
        if row is None:
            raise no_such_cluster(str(cluster_id))
        return queries.describe(conn, [row])[0]


def _of_cluster(result: OfCluster) -> dict[str, Any]:
    return {
        "cluster_id": result.cluster_id,
        "name": result.name,
        "number": result.number,
        "job_id": result.job_id,
        "warnings": list(result.warnings),
    }


def _matches(name: str, patterns: list[str]) -> bool:
    return any(name == pattern or (globs.is_glob(pattern) and _glob(pattern, name)) for pattern in patterns)


def _glob(pattern: str, name: str) -> bool:
    try:
        return re.search(globs.parse(pattern).regex, name) is not None
    except BadGlob as error:
        raise RequestRejected(str(error), where="name", fix=error.fix) from error
