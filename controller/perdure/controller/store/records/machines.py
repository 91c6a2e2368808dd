"""Finds the node that runs on a machine, for notices of a cloud, which name machines and not jobs."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, and_, bindparam, exists, select

from perdure.controller.store.records.jobs import Attempt, TimelineEvent
from perdure.controller.store.records.jobs import Node as NodeT
from perdure.recovery.statuses import AttemptState

_OF_NODE = and_(
    TimelineEvent.c.job_id == NodeT.c.job_id,
    TimelineEvent.c.task_index == NodeT.c.task_index,
    TimelineEvent.c.generation == NodeT.c.generation,
    TimelineEvent.c.rank == NodeT.c.rank,
)
_NODE = (
    select(
        NodeT.c.job_id,
        NodeT.c.task_index,
        NodeT.c.generation,
        NodeT.c.rank,
        NodeT.c.notice_deadline,
        exists().where(_OF_NODE, TimelineEvent.c.kind == "node.rebalance_recommended").label("rebalance_recommended"),
        Attempt.c.offer,
        Attempt.c.loss_confirmed,
    )
    .join(
        Attempt,
        and_(
            Attempt.c.job_id == NodeT.c.job_id,
            Attempt.c.task_index == NodeT.c.task_index,
            Attempt.c.generation == NodeT.c.generation,
        ),
    )
    .where(
        NodeT.c.instance_id == bindparam("instance_id"),
        NodeT.c.gone_reason.is_(None),
        Attempt.c.state != AttemptState.GONE.value,
    )
)


@dataclass(frozen=True)
class InstanceNode:
    """The node of a machine."""

    key: tuple[int, int, int]  # job, task, generation
    rank: int
    notice_deadline: float | None  # when the machine is preempted, if that is known; epoch seconds
    rebalance_recommended: bool  # whether the cloud has recommended to leave the machine
    loss_confirmed: bool  # whether the cloud itself has reported that it takes a machine of the attempt


def find_by_instance(conn: Connection, cloud: str, instance_id: str) -> InstanceNode | None:
    """The node on this machine; None if the node is gone, or if this controller did not launch the machine."""
    for row in conn.execute(_NODE, {"instance_id": instance_id}):
        if row.offer["cloud"] == cloud:
            key = (row.job_id, row.task_index, row.generation)
            recommended, confirmed = bool(row.rebalance_recommended), bool(row.loss_confirmed)
            return InstanceNode(key, row.rank, row.notice_deadline, recommended, confirmed)
    return None
