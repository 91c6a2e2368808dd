"""What must hold for clusters, beside the invariants of all jobs."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING

from faultworld.clusters.nodes import HostNode, SlotNode
from faultworld.components import TIMEOUTS
from perdure.controller.runtime.keys import AttemptKey
from perdure.controller.store.records.clusters import host_key
from perdure.recovery.reasons import Reason

if TYPE_CHECKING:
    from faultworld.nodes import Node
    from faultworld.world import World

_HOSTS = (
    "select c.id, c.name, c.wanted, c.starts, job.id, job.idempotency_key, job.finalized, job.cancel_at, task.outcome"
    " from cluster c join job on job.cluster_id = c.id and job.cluster_job is null join task on task.job_id = job.id"
)
_MAY_KEEP_DISKS = (
    "select distinct job.cluster_id from job join intent on intent.job_id = job.id"
    " where job.cluster_job is null and not job.finalized and json_extract(intent.request, '$.keeps_disks')"
    " and exists (select 1 from intent as ending where ending.job_id = job.id and ending.kind = 'terminate'"
    "  and ending.done_at is null)"
)
_STOPS = (
    "select job_id, generation from intent where kind = 'terminate' and done_at is null"
    " and json_extract(request, '$.keeps_disks')"
)


def unsettled(raw: sqlite3.Connection) -> list[str]:
    """What the controllers must soon change: clusters that wait for nothing, and machines that no cluster wants.

    A cluster whose disks are kept waits until its own machines are stopped, or gone, as long as the cloud takes.
    """
    wanted: dict[int, tuple[str, str]] = {}
    live = {id for (id,) in raw.execute(_MAY_KEEP_DISKS).fetchall()}
    found = []
    for id, name, state, starts, job_id, key, finalized, cancel_at, outcome in raw.execute(_HOSTS).fetchall():
        wanted[id] = (name, state)
        is_current = state == "UP" and key == host_key(id, starts)
        if is_current and (outcome is None or outcome == Reason.NOT_RECOVERED.value):
            live.add(id)
        if not is_current and not finalized and cancel_at is None and outcome is None:
            found.append(f"job {job_id} holds machines that the cluster {name} does not want")
    return found + [
        f"the cluster {name} is wanted, and nothing launches its machines"
        for id, (name, state) in wanted.items()
        if state == "UP" and id not in live
    ]


def check_kept_disks(world: World, job_id: int) -> None:
    """A cluster gets no other machines while its own are stopped and keep its disks.

    Machines that are to be deleted keep nothing: they were never set up, are lost, or the user has discarded them.
    """
    of_cluster = "cluster_id = (select cluster_id from job where id = ?)"
    rows = world.raw_connection.execute(f"select id from job where cluster_job is null and {of_cluster}", (job_id,))
    own = {id for (id,) in rows}
    recorded = {id for (id,) in world.raw_connection.execute("select instance_id from cluster_disk")}
    stopping = set(world.raw_connection.execute(_STOPS))
    stopped = [
        id
        for cloud in world.clouds.values()
        for id, owner in cloud.stopped()
        if owner.job_id in own and (id in recorded or (owner.job_id, owner.generation) in stopping)
    ]
    if stopped:
        text = f"job {job_id} gets new machines, though {stopped} have the disks of its cluster"
        world.invariants.report_violation("I12", text)


def jobs_named(raw: sqlite3.Connection, name: str) -> set[int]:
    """The jobs of clusters with this name."""
    return {id for (id,) in raw.execute("select id from job where name = ? and cluster_job is not null", (name,))}


def explains_loss(world: World, key: AttemptKey, reason: Reason) -> bool:
    """Whether what happened to the machines of its slots explains that an attempt of a cluster's job was lost."""
    query = "select distinct host_job_id, host_generation from cluster_slot where job_id = ? and generation = ?"
    rows = world.raw_connection.execute(query, (key[0], key[2])).fetchall()
    hosts = [node for node in world.nodes.values() if (node.key[0], node.key[2]) in rows]
    return any(_explains(world, node, reason) for node in hosts)


def _explains(world: World, host: Node, reason: Reason) -> bool:
    if not isinstance(host, HostNode):
        return False
    has_late_slots = host.max_outage_s(world.scheduler.now()) >= TIMEOUTS.boot_timeout_s - 40
    return host.is_leaving or host.was_ended_by_fault or (reason is Reason.BOOT_TIMEOUT and has_late_slots)


def has_machines_ended(node: Node) -> bool:
    """Whether the end of its machine, or of its host, explains the end of a node."""
    return node.was_ended_by_fault or (isinstance(node, SlotNode) and node.is_ended_with_its_host)
