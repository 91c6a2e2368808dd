"""Clusters and their queues as users see them, with SkyPilot's statuses. Read-only."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Row, bindparam, select

from perdure.controller.store.clusters import cluster_disks, cluster_homes, idle_rules
from perdure.controller.store.clusters.idle_rules import IdleRule
from perdure.controller.store.queries import job_listing, queue_waits
from perdure.controller.store.queries.job_listing import iso
from perdure.controller.store.records import clusters
from perdure.controller.store.records.clusters import DOWN, STOPPED, Cluster, ClusterHost
from perdure.controller.store.records.jobs import Attempt, Job, Node
from perdure.recovery.reasons import Reason
from perdure.recovery.statuses import TERMINAL, AttemptState, NodePhase, Status

_BATCH_SIZE = 1000  # a statement has a limited number of parameters
_JOB_STATUSES = {
    Status.PENDING: "PENDING",
    Status.STARTING: "INIT",
    Status.RUNNING: "RUNNING",
    Status.RECOVERING: "PENDING",
    Status.CANCELLING: "RUNNING",
    Status.SUCCEEDED: "SUCCEEDED",
    Status.CANCELLED: "CANCELLED",
    Status.FAILED: "FAILED",
    Status.FAILED_SETUP: "FAILED_SETUP",
}
"""The status of a cluster's job; for every other status FAILED_DRIVER: the job's own code is not at fault."""


_OF_JOB = (
    select(Cluster.c.name.label("cluster"), Job.c.cluster_job)
    .join(Job, Job.c.cluster_id == Cluster.c.id)
    .where(Job.c.id == bindparam("job_id"))
)


def describe(conn: Connection, rows: Sequence[Row[Any]], now: float) -> list[dict[str, Any]]:
    """The API's Cluster objects, in the order of `rows` (of the table `cluster`)."""
    ids = [row.id for row in rows]
    hosts, rules = clusters.hosts(conn, ids), idle_rules.of_clusters(conn, ids)
    homes, disks = cluster_homes.of_clusters(conn, ids), cluster_disks.of_clusters(conn, ids)
    return [
        _cluster(row, hosts.get(row.id), rules[row.id], disks.get(row.id, []), now) | _home(homes.get(row.id))
        for row in rows
    ]


def jobs_of(
    conn: Connection, cluster: Row[Any], now: float, numbers: Collection[int] | None = None
) -> list[dict[str, Any]]:
    """The API's ClusterJob objects, newest first: all jobs of a cluster, or those with these numbers."""
    known, waits = clusters.numbered_jobs(conn, cluster.id), waits_of(conn, cluster, now)
    chosen = known.keys() if numbers is None else known.keys() & set(numbers)
    newest = [(known[number], number) for number in sorted(chosen, reverse=True)]
    return [
        job
        for start in range(0, len(newest), _BATCH_SIZE)
        for job in _describe_jobs(conn, dict(newest[start : start + _BATCH_SIZE]), now, waits)
    ]


def queues_of(
    conn: Connection, rows: Sequence[Row[Any]], now: float, *, skip_finished: bool = False
) -> list[dict[str, Any]]:
    """A cluster and its ClusterJob objects, newest first, of each of `rows`: in a few statements for all of them."""
    described, by_id = describe(conn, rows, now), {row.id: row for row in rows}
    known: dict[int, dict[int, int]] = {}
    for start in range(0, len(rows), _BATCH_SIZE):
        ids = [row.id for row in rows[start : start + _BATCH_SIZE]]
        known |= clusters.numbered_jobs_of(conn, ids, skip_finalized=skip_finished)
    waits: dict[int, str] = {}
    for cluster_id in clusters.with_waiting_jobs(conn) & by_id.keys():
        waits |= waits_of(conn, by_id[cluster_id], now)
    numbers = {job_id: number for jobs in known.values() for number, job_id in jobs.items()}
    wanted = list(numbers.items())
    jobs = {
        job["job_id"]: job
        for start in range(0, len(wanted), _BATCH_SIZE)
        for job in _describe_jobs(conn, dict(wanted[start : start + _BATCH_SIZE]), now, waits)
    }
    queues = []
    for row, cluster in zip(rows, described, strict=True):
        own = [jobs[job_id] for _, job_id in sorted(known.get(row.id, {}).items(), reverse=True)]
        kept = [job for job in own if not (skip_finished and job["has_ended"])]
        queues.append({"cluster": cluster, "jobs": kept})
    return queues


def waits_of(conn: Connection, cluster: Row[Any], now: float) -> dict[int, str]:
    """Job id → why it waits, in one sentence, of every job in the queue of a cluster."""
    host = clusters.hosts(conn, [cluster.id]).get(cluster.id)
    return queue_waits.sentences(conn, cluster, host, status_of(cluster, host), now)


def _describe_jobs(
    conn: Connection, wanted: Mapping[int, int], now: float, waits: Mapping[int, str]
) -> list[dict[str, Any]]:
    """The ClusterJob objects of these jobs (id → number), newest first. `waits`: why those in the queue wait."""
    described = job_listing.describe(conn, list(wanted), now)
    setting_up = _setting_up(conn, [job["job_id"] for job in described if job["status"] == Status.STARTING])
    return sorted(
        (
            _job(wanted[job["job_id"]], job, waits.get(job["job_id"]), is_setting_up=job["job_id"] in setting_up)
            for job in described
        ),
        key=lambda job: -job["number"],
    )


def status_of(row: Row[Any], host: ClusterHost | None) -> str:
    """UP, INIT, STOPPED, AUTOSTOPPING or PREEMPTED; DOWN for a cluster that no longer exists."""
    if row.wanted == DOWN:
        return "DOWN"
    if row.wanted == STOPPED:
        is_ending = row.cause == "autostop" and host is not None and not host.finalized
        return "AUTOSTOPPING" if is_ending else "STOPPED"
    if host is None:
        return "INIT"
    if host.outcome == Reason.NOT_RECOVERED.value:
        return "PREEMPTED"
    return "UP" if host.running is not None else "INIT"


def _cluster(
    row: Row[Any], host: ClusterHost | None, idle: IdleRule, disks: Sequence[Row[Any]], now: float
) -> dict[str, Any]:
    attempt = host.attempts[-1] if host and host.attempts else None
    stopped = [disk for disk in disks if disk.stopped_at is not None]
    offer: Mapping[str, Any] = attempt.offer if attempt else stopped[0].offer if stopped else {}
    head_ip = attempt.ips.get(0) if attempt else None
    return {
        "name": row.name,
        "cluster_id": row.id,
        "user": row.user,
        "status": status_of(row, host),
        "message": host.message if host and host.outcome else "",
        "infra": f"{offer['cloud']} ({offer['zone']})" if offer else "-",
        "resources": _machines(host, offer) if host and offer else row.resources,
        "num_nodes": host.num_nodes if host else 1,
        "autostop_s": row.autostop_s,
        "autostop_down": row.autostop_down,
        "autostop_wait_for": str(idle.wait_for),
        "autostop_idle_below": idle.below,
        "recover": row.recover,
        "launched_at": iso(row.launched_at),
        "head_ip": head_ip,
        "command": row.command,
        "host_job_id": host.job_id if host else None,
        "is_settled": (host is None or host.finalized or row.wanted not in (STOPPED, DOWN))
        and not (row.wanted == DOWN and disks),
        "kept_disks": len(stopped),
        "disk_price_per_hour": sum(disk.price_per_hour for disk in stopped),
        "disk_cost": sum(cluster_disks.cost_of(disk, now) for disk in disks),
    }


def _home(row: Row[Any] | None) -> dict[str, Any]:
    is_ready = row is not None and row.is_ready
    return {
        "home": f"{row.store}:{row.bucket}" if row is not None and is_ready else None,
        "home_problem": "" if row is None or is_ready else row.problem,
    }


def _machines(host: ClusterHost, offer: Mapping[str, Any]) -> str:
    parts = [f"cpus={offer['vcpus']:g}", f"mem={offer['memory_gib']:g}", offer["instance_type"]]
    if offer.get("accelerators"):
        parts.insert(0, f"gpus={offer['accelerators'][0]}:{offer['accelerators'][1]:g}")
    spot = "[Spot]" if offer["market"] == "spot" else ""
    return f"{host.num_nodes}x({', '.join(parts)}){spot}"


def _setting_up(conn: Connection, job_ids: Sequence[int]) -> set[int]:
    """The jobs of these of which a node runs `setup`."""
    if not job_ids:
        return set()
    query = select(Attempt.c.job_id).where(
        Attempt.c.job_id.in_(job_ids), Attempt.c.state == AttemptState.SETTING_UP.value
    )
    by_node = select(Node.c.job_id).where(Node.c.job_id.in_(job_ids), Node.c.phase == NodePhase.SETUP.value)
    return set(conn.execute(query).scalars()) & set(conn.execute(by_node).scalars())


def _job(number: int, job: Mapping[str, Any], wait: str | None, *, is_setting_up: bool) -> dict[str, Any]:
    status = "SETTING_UP" if is_setting_up else _JOB_STATUSES.get(job["status"], "FAILED_DRIVER")
    return {
        "number": number,
        "job_id": job["job_id"],
        "name": job["name"],
        "user": job["user"],
        "submitted_at": job["submitted_at"],
        "started_at": job["started_at"],
        "ended_at": job["ended_at"],
        "duration_s": job["job_duration_s"],
        "resources": job["resources"],
        "status": status,
        "has_ended": job["status"] in TERMINAL,
        "message": wait or job["message"] or "",
        "exit_code": job["exit_code"],
        "recovery_count": job["recovery_count"],
        "task_id": job["task_id"],
    }


def wait_in_queue(conn: Connection, job_id: int, now: float) -> str | None:
    """Why a job waits in the queue of its cluster; None if it does not."""
    row = conn.execute(select(Cluster).join(Job, Job.c.cluster_id == Cluster.c.id).where(Job.c.id == job_id)).first()
    return None if row is None else waits_of(conn, row, now).get(job_id)


def cluster_of_job(conn: Connection, job_id: int) -> dict[str, Any]:
    """`cluster` and `cluster_job` of `api_types.JobDetail`."""
    row = conn.execute(_OF_JOB, {"job_id": job_id}).mappings().first()
    return dict(row) if row else {"cluster": None, "cluster_job": None}
