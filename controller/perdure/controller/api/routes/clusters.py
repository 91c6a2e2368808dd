"""Routes for clusters: launch, exec, list, queue, cancel, stop, start, down, autostop.

`submit.cluster.clusters` does what they ask; the logs of a cluster's job are those of its job id (`routes.logs`).
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from pydantic import Field
from sqlalchemy import Connection, Row

from perdure.controller.api.access.audit_log import record
from perdure.controller.api.access.permissions import Caller
from perdure.controller.api.auth import Reader, Runner
from perdure.controller.api.routes.jobs import Key, RequestBody
from perdure.controller.api.schemas import error_responses, json_response
from perdure.controller.clouds.base.protocol import OpensPorts
from perdure.controller.store.clusters.cluster_disks import launch_request
from perdure.controller.store.clusters.idle_rules import IdleRule, WaitFor
from perdure.controller.store.queries import clusters as queries
from perdure.controller.store.queries import globs
from perdure.controller.store.queries.globs import BadGlob
from perdure.controller.store.queries.job_listing import iso
from perdure.controller.store.records import clusters
from perdure.controller.submit.cluster.requests import LaunchOptions, OfCluster, checked_rule, no_such_cluster
from perdure.controller.submit.errors import RequestRejected
from perdure.sdk.clusters.queues import QueuesOfClusters
from perdure.sdk.connection import api_types

router = APIRouter(prefix="/api/v1", tags=["clusters"], responses=error_responses(400, 401, 503))

_MAX_NUMBER, _MAX_NUMBERS = 2**31 - 1, 10_000
_MAX_IDLE_S, _MAX_LIMIT_S = 3_650 * 86_400.0, 3_650 * 86_400.0
Name = Annotated[str, Path(max_length=200, description="the cluster's name")]
Number = Annotated[int, Field(ge=1, le=_MAX_NUMBER)]
Share = Annotated[float, Field(gt=0, le=1)]
IdleSeconds = Annotated[float, Field(ge=0, le=_MAX_IDLE_S)]


class ClusterJobBody(RequestBody):
    task: dict[str, Any]
    user: str = Field("", max_length=200)
    key: Key = Field(min_length=1)
    limit_s: float | None = Field(None, gt=0, le=_MAX_LIMIT_S)


class StartBody(RequestBody):
    discard_disks: bool = Field(False, description="on new machines; the disks that are kept are deleted")


class LaunchClusterBody(ClusterJobBody):
    name: str | None = Field(None, max_length=200)
    setup: bool = True
    job: bool = True
    idle_s: IdleSeconds | None = None
    down: bool = False
    wait_for: Annotated[WaitFor, Field(strict=False)] = WaitFor.JOBS_AND_SSH
    idle_below: Share | None = None
    recover: bool = False
    command: str = Field("", max_length=2000)


class AutostopBody(RequestBody):
    idle_s: IdleSeconds | None
    down: bool = False
    wait_for: Annotated[WaitFor, Field(strict=False)] = WaitFor.JOBS_AND_SSH
    idle_below: Share | None = None


class CancelJobsBody(RequestBody):
    numbers: list[Number] | None = Field(None, max_length=_MAX_NUMBERS)
    all: bool = False


@router.post(
    "/clusters", status_code=201, responses=json_response(api_types.OnCluster, status=201) | error_responses(409, 429)
)
def launch(caller: Runner, body: LaunchClusterBody) -> dict[str, Any]:
    """Create a cluster, or use the one of that name, and queue a job on it. Repeating it with `key` does it once."""
    options = LaunchOptions(
        body.setup, body.job, body.idle_s, body.down, _idle_rule(body), body.recover, body.command, body.limit_s
    )
    record(caller, "cluster.launch", f"cluster {body.name or ''}".strip())
    key = caller.key_for(body.key) or ""
    service = caller.context.cluster_service
    return _of_cluster(service.launch(body.name, body.task, caller.requester(body.user), key, options))


@router.post(
    "/clusters/{name}/jobs",
    status_code=201,
    responses=json_response(api_types.OnCluster, status=201) | error_responses(404, 409, 429),
)
def execute(caller: Runner, name: Name, body: ClusterJobBody) -> dict[str, Any]:
    """Queue a job on a cluster, without `setup` and without new machines. Repeating it with `key` does it once."""
    service, key = caller.context.cluster_service, caller.key_for(body.key) or ""
    return _of_cluster(service.exec(name, body.task, caller.requester(body.user), key, body.limit_s))


@router.get("/clusters", responses=json_response(api_types.ClusterList))
def list_clusters(caller: Reader, name: Annotated[list[str] | None, Query(max_length=1000)] = None) -> dict[str, Any]:
    """The clusters that are not down, oldest first. `name`: whole names or patterns; repeatable."""
    context = caller.context
    with context.database.connect() as conn:
        now = context.clock.now()
        return {"now": iso(now), "clusters": queries.describe(conn, _listed(caller, conn, name), now)}


@router.get("/cluster-queues", responses=json_response(QueuesOfClusters))
def list_queues(
    caller: Reader, name: Annotated[list[str] | None, Query(max_length=1000)] = None, skip_finished: bool = False
) -> dict[str, Any]:
    """The queues of the clusters that are not down, as `GET /clusters` and `GET /clusters/{name}/jobs` show them."""
    context = caller.context
    now = context.clock.now()
    with context.database.connect() as conn:
        queues = queries.queues_of(conn, _listed(caller, conn, name), now, skip_finished=skip_finished)
    return {"now": iso(now), "queues": queues}


@router.get(
    "/clusters/{name}/endpoints", responses=json_response(api_types.ClusterEndpoints) | error_responses(404, 409)
)
def endpoints(caller: Reader, name: Name) -> dict[str, Any]:
    """How the ports are reached that a cluster has opened to the internet, on its first node. Asks the cloud."""
    context = caller.context
    with context.database.connect() as conn:
        row = clusters.find(conn, name, user=caller.sees)
        host = None if row is None else clusters.hosts(conn, [row.id]).get(row.id)
        attempt = None if host is None else host.running
        launched = {} if host is None or attempt is None else launch_request(conn, host.job_id, attempt.generation)
    if row is None:
        raise no_such_cluster(name)
    ports = launched.get("open_ports", {}).get("ports", ())
    cloud = context.clouds.get(attempt.offer["cloud"]) if attempt is not None else None
    if not ports or attempt is None or not isinstance(cloud, OpensPorts):
        return {"endpoints": {}}
    head = attempt.instance_ids[0] or ""
    try:
        address = cloud.public_addresses(attempt.offer["region"], [head]).get(head)
    except Exception as error:
        fault = cloud.classify(error)
        raise RequestRejected(f"the cloud does not answer: {fault.message}", fix="try again", status=503) from error
    return {"endpoints": {} if address is None else {port: f"{address}:{port}" for port in ports}}


@router.get("/clusters/{name}/jobs", responses=json_response(api_types.ClusterQueue) | error_responses(404))
def queue(
    caller: Reader, name: Name, number: Annotated[list[int] | None, Query(max_length=_MAX_NUMBERS)] = None
) -> dict[str, Any]:
    """The jobs of a cluster, newest first, also after it is down. `number`: only these; repeatable."""
    context = caller.context
    now = context.clock.now()
    with context.database.connect() as conn:
        row = clusters.find(conn, name, gone=True, user=caller.sees)
        if row is None:
            raise no_such_cluster(name)
        (cluster,) = queries.describe(conn, [row], now)
        jobs = queries.jobs_of(conn, row, now, number)
    return {"now": iso(now), "cluster": cluster, "jobs": jobs}


@router.post("/clusters/{name}/cancel", responses=json_response(api_types.CancelledJobs) | error_responses(404))
def cancel(caller: Runner, name: Name, body: CancelJobsBody) -> dict[str, Any]:
    """Cancel jobs by number, all of them, or by default the newest one that runs. An empty list cancels nothing."""
    _record(caller, "cluster.cancel", name, numbers=(body.numbers or [])[:100], all=body.all)
    service = caller.context.cluster_service
    return service.cancel_jobs(name, body.numbers, everything=body.all, of=caller.changes)


@router.post("/clusters/{name}/stop", responses=json_response(api_types.Cluster) | error_responses(404, 409))
def stop(caller: Runner, name: Name) -> dict[str, Any]:
    """End the machines of a cluster; its queue stays, and running jobs wait to start again."""
    cluster_id = _record(caller, "cluster.stop", name)
    caller.context.cluster_service.stop(name, of=caller.changes)
    return _describe(caller, cluster_id)


@router.post("/clusters/{name}/start", responses=json_response(api_types.Cluster) | error_responses(404, 409))
def start(caller: Runner, name: Name, body: StartBody | None = None) -> dict[str, Any]:
    """Launch machines for a cluster that is stopped, or has lost them."""
    discards = body is not None and body.discard_disks
    _record(caller, "cluster.start", name, **({"discard_disks": True} if discards else {}))
    service = caller.context.cluster_service
    return _describe(caller, service.start(name, caller.changes, discards_disks=discards).cluster_id)


@router.post("/clusters/{name}/down", responses=json_response(api_types.Cluster) | error_responses(404))
def down(caller: Runner, name: Name) -> dict[str, Any]:
    """End a cluster: its jobs are cancelled, and its machines end. Its queue and logs stay readable."""
    _record(caller, "cluster.down", name, gone=True)
    return _describe(caller, caller.context.cluster_service.down(name, of=caller.changes))


@router.post("/clusters/{name}/autostop", responses=json_response(api_types.Cluster) | error_responses(404))
def autostop(caller: Runner, name: Name, body: AutostopBody) -> dict[str, Any]:
    """Stop a cluster, or take it down, once it was idle for `idle_s` seconds; null: never.

    `wait_for`: what keeps it from being idle, jobs and sessions of users, jobs alone, or nothing. `idle_below`: a share
    of 1; jobs count only while a machine uses that much of its CPUs or of a GPU.
    """
    rule = _idle_rule(body)
    cluster_id = _record(caller, "cluster.autostop", name, idle_s=body.idle_s, down=body.down)
    service = caller.context.cluster_service
    service.autostop(name, body.idle_s, rule, down=body.down, of=caller.changes)
    return _describe(caller, cluster_id)


@router.get("/cluster-ids/{cluster_id}", responses=json_response(api_types.Cluster) | error_responses(404))
def show(caller: Reader, cluster_id: Annotated[int, Path(ge=0, le=_MAX_NUMBER)]) -> dict[str, Any]:
    """A cluster by its id, also after it is down."""
    return _describe(caller, cluster_id)


def _listed(caller: Caller, conn: Connection, names: list[str] | None) -> list[Row[Any]]:
    """The clusters that are not down, oldest first, that the caller sees and whose names match."""
    own = [row for row in clusters.active(conn) if caller.sees in (None, row.user)]
    return [row for row in own if not names or _matches(row.name, names)]


def _idle_rule(body: LaunchClusterBody | AutostopBody) -> IdleRule:
    return checked_rule(body.wait_for, body.idle_below)


def _record(caller: Caller, action: str, name: str, *, gone: bool = False, **detail: Any) -> int:
    """Record in the audit log what the caller is about to do with a cluster of theirs. Returns its id.

    Raises RequestRejected (404).
    """
    with caller.context.database.connect() as conn:
        row = clusters.find(conn, name, gone=gone, user=caller.changes)
    if row is None:
        caller.context.access.deny(caller.actor, action, f"cluster {name}", "no cluster of this user")
        raise no_such_cluster(name)
    record(caller, action, f"cluster {name}", **detail)
    return int(row.id)


def _describe(caller: Caller, cluster_id: int) -> dict[str, Any]:
    with caller.context.database.connect() as conn:
        row = clusters.get(conn, cluster_id)
        if row is None or caller.sees not in (None, row.user):
            raise no_such_cluster(str(cluster_id))
        return queries.describe(conn, [row], caller.context.clock.now())[0]


def _of_cluster(result: OfCluster) -> dict[str, Any]:
    return {
        "cluster_id": result.cluster_id,
        "name": result.name,
        "number": result.number,
        "job_id": result.job_id,
        "warnings": list(result.warnings),
    }


def _matches(name: str, patterns: list[str]) -> bool:
    try:
        return globs.matches_any(name, patterns)
    except BadGlob as error:
        raise RequestRejected(str(error), where="name", fix=error.fix) from error
