"""Slots of clusters as a cloud: what the jobs of a cluster are launched on.

A "machine" is a slot, a share of a node that the cluster already holds. Its agent is started by the agent of that node.
So launching, draining, terminating and losing a job of a cluster take the path of every other job. The slots are rows
of the database (`store.records.cluster_slots`), which makes this cloud's memory that of all controllers.

It has no offers of its own: the queue of a cluster grants them to one job at a time (`reconcile.slot_grants`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Engine, Row

from perdure.controller.clouds.base.protocol import Fault, Instance, InstanceState, LaunchRequest, Owner
from perdure.controller.runtime.clock import Clock
from perdure.controller.runtime.failpoints import failpoint
from perdure.controller.runtime.keys import AttemptKey
from perdure.controller.store.records import cluster_slots, clusters
from perdure.recovery.market.slot_queue import SLOT_CLOUD, Demand, choose_slots, free_rooms
from perdure.recovery.market.unavailable import FaultKind
from perdure.recovery.market.view import Market, Offer
from perdure.recovery.reasons import Reason

_ID = re.compile(r"slot-(\d+)-(\d+)-(\d+)-(\d+)")
_RETRY_S = 1.0


class NoSlot(Exception):
    """The cluster has no room for the job, or no machine that can take it. Nothing happened."""


def slot_offer(cluster_id: int, cluster: str, demand: Demand, accelerator: str | None) -> Offer:
    """The offer that the queue of a cluster grants to a job. It costs nothing: the cluster's machines are paid for."""
    gpus = (accelerator, demand.gpus) if accelerator and demand.gpus > 0 else None
    place = (SLOT_CLOUD, cluster, str(cluster_id), "slot", Market.ON_DEMAND)
    return Offer(*place, 0.0, 0.0, demand.cpus, demand.memory_gib, gpus)


def slot_id(key: AttemptKey, rank: int) -> str:
    """The id of a slot, as an instance and towards the agent of its node."""
    return f"slot-{key[0]}-{key[1]}-{key[2]}-{rank}"


def parse_slot_id(text: str) -> tuple[AttemptKey, int] | None:
    """The attempt and the rank that an id names; None for any other text."""
    match = _ID.fullmatch(text)
    if match is None:
        return None
    job_id, task, generation, rank = map(int, match.groups())
    return (job_id, task, generation), rank


@dataclass
class SlotCloud:
    """A `Cloud`. `on_change`: called with the attempt of the host whose slots have changed."""

    database: Engine
    clock: Clock
    on_change: Callable[[AttemptKey], None]
    name: str = SLOT_CLOUD
    ignores: frozenset[str] = frozenset()

    def notes(self) -> Sequence[str]:
        return ()

    def unusable(self) -> str | None:
        return None

    def offers(self) -> Sequence[Offer]:
        return ()

    def launch(self, request: LaunchRequest) -> Sequence[Instance]:
        """Raises NoSlot if the nodes of the cluster have no room: the queue has granted more than there is."""
        key = (request.owner.job_id, request.owner.task, request.owner.generation)
        with self.database.begin() as conn:
            cluster_id = int(request.offer.zone)
            clusters.lock(conn, cluster_id)
            if not (rows := cluster_slots.of_attempt(conn, key)):
                self._take(conn, cluster_id, key, request)
                rows = cluster_slots.of_attempt(conn, key)
        failpoint("slot.taken")
        for host in {(row.host_job_id, 0, row.host_generation) for row in rows}:
            self.on_change(host)
        return [_instance(row, request.owner.controller) for row in rows]

    def _take(self, conn: Connection, cluster_id: int, key: AttemptKey, request: LaunchRequest) -> None:
        host = clusters.hosts(conn, [cluster_id]).get(cluster_id)
        attempt = host.running if host else None
        if host is None or attempt is None:
            raise NoSlot(f"the cluster {request.offer.region} is not up")
        offer = request.offer
        demand = Demand(offer.vcpus, offer.memory_gib, offer.accelerators[1] if offer.accelerators else 0.0)
        taken = cluster_slots.as_running(cluster_slots.held(conn, cluster_id), {})
        chosen = choose_slots(free_rooms(attempt.rooms(), taken), demand, request.num_nodes)
        if chosen is None:
            raise NoSlot(f"the cluster {request.offer.region} has no room for the job now")
        now = self.clock.now()
        columns = {
            "job_id": key[0],
            "task_index": key[1],
            "generation": key[2],
            "cluster_id": cluster_id,
            "host_job_id": host.job_id,
            "host_generation": attempt.generation,
            "token": request.owner.token,
            "cpus": demand.cpus,
            "memory_gib": demand.memory_gib,
            "gpus": demand.gpus,
            "started_at": now,
        }
        rows = [
            {**columns, "rank": rank, "host_rank": node, "ip": attempt.ips[node], "gpu_shares": sorted(shares.items())}
            for rank, (node, shares) in enumerate(sorted(chosen[1].items()))
        ]
        cluster_slots.add(conn, rows)

    def describe(self, region: str, ids: Sequence[str]) -> Sequence[Instance]:  # noqa: ARG002 - ids are unique
        with self.database.connect() as conn:
            has_lost_hosts = cluster_slots.lost_hosts(conn)
        if has_lost_hosts:  # looked at first: a transaction that writes would make all others wait
            with self.database.begin() as conn:
                cluster_slots.end_with_hosts(conn, self.clock.now())
        with self.database.connect() as conn:
            rows = [row for key in _attempts(ids) for row in cluster_slots.of_attempt(conn, key)]
        return [instance for row in rows if (instance := _instance(row, "")).id in ids]

    def list_owned(self, controller: str) -> Sequence[Instance]:
        with self.database.connect() as conn:
            return [_instance(row, controller) for row in cluster_slots.held(conn)]

    def terminate(self, region: str, ids: Sequence[str]) -> None:  # noqa: ARG002 - ids are unique
        places = [place for id in ids if (place := parse_slot_id(id))]
        with self.database.begin() as conn:
            cluster_slots.request_stop(conn, places, self.clock.now())
            rows = [row for key in _attempts(ids) for row in cluster_slots.of_attempt(conn, key)]
        for host in {(row.host_job_id, 0, row.host_generation) for row in rows if row.ended_at is None}:
            self.on_change(host)

    def classify(self, error: Exception) -> Fault:
        if isinstance(error, NoSlot):
            return Fault(FaultKind.AVOID_ZONE, Reason.NO_CAPACITY, "NoSlot", str(error), retry_after_s=_RETRY_S)
        return Fault(FaultKind.AMBIGUOUS, Reason.BAD_REQUEST, type(error).__name__, str(error))


def _attempts(ids: Iterable[str]) -> list[AttemptKey]:
    return sorted({place[0] for id in ids if (place := parse_slot_id(id))})


def _instance(row: Row[Any], controller: str) -> Instance:
    key = (row.job_id, row.task_index, row.generation)
    if row.ended_at is not None:
        state = InstanceState.GONE
    else:
        state = InstanceState.RUNNING if row.stop_at is None else InstanceState.ENDING
    return Instance(
        id=slot_id(key, row.rank),
        rank=row.rank,
        owner=Owner(controller, *key, token=row.token),
        state=state,
        cloud=SLOT_CLOUD,
        region=str(row.cluster_id),
        zone=str(row.cluster_id),
        instance_type="slot",
        ip=row.ip,
        launched_at=row.started_at,
        ended_at=row.ended_at,
        gone_reason=Reason(row.gone_reason) if row.gone_reason else None,
    )
