"""Which node a machine is: asked by what hears of machines from their cloud, which knows no jobs."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, and_, bindparam, exists, select

from perdure.controller.store.jobs import Attempt, EventT
from perdure.controller.store.jobs import Node as NodeT
from perdure.recovery.statuses import AttemptState

_OF_NODE = and_(
    EventT.c.job_id == NodeT.c.job_id,
    EventT.c.task_index == NodeT.c.task_index,
    EventT.c.generation == NodeT.c.generation,
    EventT.c.rank == NodeT.c.rank,
)
_NODE = (
    select(
        NodeT.c.job_id,
        NodeT.c.task_index,
        NodeT.c.generation,
        NodeT.c.rank,
        NodeT.c.notice_deadline,
        exists().where(_OF_NODE, EventT.c.kind == "node.at_risk").label("is_at_risk"),
        Attempt.c.offer,
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
        NodeT.c.gone.is_(None),
        Attempt.c.state != AttemptState.GONE.value,
    )
)


@dataclass(frozen=True)
class Node:
    """`key`: (job, task, generation). `notice_deadline`: when it will be taken, if that is known; epoch seconds.
    `is_at_risk`: whether its cloud was heard to say so."""

    key: tuple[int, int, int]
    rank: int
    notice_deadline: float | None
    is_at_risk: bool


def node_of(conn: Connection, cloud: str, instance_id: str) -> Node | None:
    """The node that the machine is, unless it is gone; None if it is nobody's here."""
    for row in conn.execute(_NODE, {"instance_id": instance_id}):
        if row.offer["cloud"] == cloud:
            key = (row.job_id, row.task_index, row.generation)
            return Node(key, row.rank, row.notice_deadline, bool(row.is_at_risk))
    return None
