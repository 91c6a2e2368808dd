"""Reads and writes slots: the nodes of the jobs of clusters."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Row, exists, insert, select, update

from perdure.controller.runtime.keys import AttemptKey
from perdure.controller.store.records.jobs import Attempt, Task
from perdure.controller.store.tables import ClusterSlotRow
from perdure.recovery.market.slot_queue import Demand, RunningJob
from perdure.recovery.reasons import Reason
from perdure.recovery.statuses import AttemptState

Slot = ClusterSlotRow.__table__  # type: ignore[attr-defined]

_HELD = Slot.c.ended_at.is_(None)
_HOST_IS_LIVE = exists().where(
    Attempt.c.job_id == Slot.c.host_job_id,
    Attempt.c.generation == Slot.c.host_generation,
    Attempt.c.state != AttemptState.GONE.value,
)


def add(conn: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert the slots of one attempt."""
    conn.execute(insert(Slot), list(rows))


def of_attempt(conn: Connection, key: AttemptKey) -> list[Row[Any]]:
    """The slots of an attempt, by rank, also those that have ended."""
    where = (Slot.c.job_id == key[0], Slot.c.task_index == key[1], Slot.c.generation == key[2])
    return list(conn.execute(select(Slot).where(*where).order_by(Slot.c.rank)))


def held(conn: Connection, cluster_id: int | None = None) -> list[Row[Any]]:
    """The slots that have not ended, of one cluster or of all."""
    query = select(Slot).where(_HELD)
    return list(conn.execute(query if cluster_id is None else query.where(Slot.c.cluster_id == cluster_id)))


def held_by_host(conn: Connection, host: AttemptKey, rank: int) -> list[Row[Any]]:
    """The slots on one node that have not ended, with the `workdir` of their tasks."""
    of_task = (Task.c.job_id == Slot.c.job_id) & (Task.c.index == Slot.c.task_index)
    query = select(Slot, Task.c.spec["workdir"].label("workdir")).join(Task, of_task)
    where = (Slot.c.host_job_id == host[0], Slot.c.host_generation == host[2], Slot.c.host_rank == rank, _HELD)
    return list(conn.execute(query.where(*where).order_by(Slot.c.job_id, Slot.c.generation)))


def request_stop(conn: Connection, keys: Iterable[tuple[AttemptKey, int]], now: float) -> None:
    """Mark slots (attempt, rank) as no longer wanted. One that has ended, or does not exist, is left alone."""
    for (job_id, task, generation), rank in keys:
        where = (Slot.c.job_id == job_id, Slot.c.task_index == task, Slot.c.generation == generation)
        query = update(Slot).where(*where, Slot.c.rank == rank, _HELD, Slot.c.stop_at.is_(None))
        conn.execute(query.values(stop_at=now))


def end(conn: Connection, host: AttemptKey, rank: int, ended: Collection[tuple[AttemptKey, int]], now: float) -> None:
    """Record that nothing of these slots runs on the node any more. Slots of other nodes are left alone."""
    for (job_id, task, generation), slot_rank in ended:
        of_slot = (Slot.c.job_id == job_id, Slot.c.task_index == task, Slot.c.generation == generation)
        of_host = (Slot.c.host_job_id == host[0], Slot.c.host_generation == host[2], Slot.c.host_rank == rank)
        query = update(Slot).where(*of_slot, Slot.c.rank == slot_rank, *of_host, _HELD)
        # Nothing asked it to end: its agent has failed for good.
        conn.execute(query.where(Slot.c.stop_at.is_(None)).values(gone_reason=Reason.MACHINE_CRASHED.value))
        conn.execute(query.values(ended_at=now))


def lost_hosts(conn: Connection) -> bool:
    """Whether `end_with_hosts` would end a slot."""
    return conn.execute(select(Slot.c.job_id).where(_HELD, ~_HOST_IS_LIVE).limit(1)).first() is not None


def end_with_hosts(conn: Connection, now: float) -> int:
    """End the slots whose machines their cloud has confirmed to be gone. Returns how many."""
    query = update(Slot).where(_HELD, ~_HOST_IS_LIVE)
    return conn.execute(query.values(ended_at=now, gone_reason=Reason.MACHINE_STOPPED.value)).rowcount


def as_running(rows: Iterable[Row[Any]], ends_by: Mapping[int, float]) -> list[RunningJob]:
    """The queue's view of held slots. `ends_by`: job id → when it reaches its limit, if it has one."""
    jobs: dict[AttemptKey, list[Row[Any]]] = {}
    for row in rows:
        jobs.setdefault((row.job_id, row.task_index, row.generation), []).append(row)
    running = []
    for (job_id, _, _), slots in jobs.items():
        first = slots[0]
        shares = {slot.host_rank: {int(gpu): float(share) for gpu, share in slot.gpu_shares} for slot in slots}
        demand = Demand(first.cpus, first.memory_gib, first.gpus)
        running.append(RunningJob(demand, shares, ends_by.get(job_id)))
    return running
