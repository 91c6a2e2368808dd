"""Why the jobs in the queue of a cluster wait, in one sentence each. Read-only."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Row

from perdure.controller.store.queries import job_listing
from perdure.controller.store.records import cluster_slots, clusters
from perdure.controller.store.records.clusters import ClusterHost
from perdure.recovery.market.slot_queue import (
    Demand,
    NodeRoom,
    QueuedJob,
    RunningJob,
    can_ever_fit,
    choose_slots,
    free_rooms,
)

_OF_CLUSTER = {
    "STOPPED": "the cluster {0} is stopped; to start it: perdure start {0}",
    "AUTOSTOPPING": "the cluster {0} is being stopped, because it was idle; to start it: perdure start {0}",
    "PREEMPTED": "the cluster {0} has lost its machines; to launch others: perdure start {0}",
    "DOWN": "the cluster {0} has ended, and the job is being cancelled",
}


def sentences(conn: Connection, cluster: Row[Any], host: ClusterHost | None, status: str, now: float) -> dict[int, str]:
    """Job id → why it waits, of every job in the queue of a cluster. `status`: of the cluster."""
    waiting = [job for job, _ in clusters.waiting_jobs(conn, cluster.id)]
    if not waiting:
        return {}
    if status != "UP" or host is None or host.running is None:
        text = _OF_CLUSTER.get(status, "").format(cluster.name) or _launching(conn, cluster.name, host, now)
        return {job.id: text for job in waiting}
    held = cluster_slots.held(conn, cluster.id)
    numbers = {job_id: number for number, job_id in clusters.numbered_jobs(conn, cluster.id).items()}
    busy = sorted({numbers[row.job_id] for row in held if row.job_id in numbers})
    starting = {row.job_id for row in held}
    queue = [job for job in waiting if job.id not in starting]
    return _of_queue(queue, host.running.rooms(), cluster_slots.as_running(held, {}), cluster.name, numbers, busy)


def _of_queue(
    queue: Sequence[QueuedJob],
    nodes: Mapping[int, NodeRoom],
    running: Collection[RunningJob],
    cluster: str,
    numbers: Mapping[int, int],
    busy: Sequence[int],
) -> dict[int, str]:
    free, texts, head = free_rooms(nodes, running), dict[int, str](), None
    for job in queue:
        size = _size(job.demand, job.num_nodes)
        if not can_ever_fit(nodes, job.demand, job.num_nodes):
            texts[job.id] = f"it needs {size}, which the machines of {cluster} do not have even when nothing runs"
        elif head is not None:
            texts[job.id] = f"it is queued behind job {head}, which {cluster} has no room for yet"
        elif choose_slots(free, job.demand, job.num_nodes) is None:
            head = numbers[job.id]
            texts[job.id] = f"it is the next one on {cluster}, and {_jobs(busy)} must leave room for {size}"
        else:
            texts[job.id] = f"{cluster} has room for it, and it starts now"
    return texts


def _launching(conn: Connection, name: str, host: ClusterHost | None, now: float) -> str:
    """Of a cluster that is wanted and is not up."""
    described = job_listing.describe(conn, [host.job_id], now) if host is not None else []
    why = described[0]["message"] if described else ""
    return f"the machines of the cluster {name} are being launched" + (f": {why}" if why else "")


def _size(demand: Demand, num_nodes: int) -> str:
    """`4 CPUs, 16 GiB and 2 GPUs on each of 2 nodes`."""
    parts = [f"{demand.cpus:g} CPU{'' if demand.cpus == 1 else 's'}"]
    if demand.memory_gib:
        parts.append(f"{demand.memory_gib:g} GiB")
    if demand.gpus:
        parts.append(f"{demand.gpus:g} GPU{'' if demand.gpus <= 1 else 's'}")
    text = parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
    return text if num_nodes == 1 else f"{text} on each of {num_nodes} nodes"


def _jobs(numbers: Sequence[int]) -> str:
    if not numbers:
        return "its machines"
    return f"job {numbers[0]}" if len(numbers) == 1 else f"jobs {', '.join(map(str, numbers))}"
