"""Slots of clusters whose machines are gone."""

from __future__ import annotations

from sqlalchemy import Engine

from perdure.controller.clouds.base.protocol import InstanceState
from perdure.controller.clouds.slot_cloud import SlotCloud, slot_id
from perdure.controller.runtime.clock import ManualClock
from perdure.controller.store.records import cluster_slots
from perdure.recovery.reasons import Reason
from support.helpers.past_jobs import executed_statements

JOB = (2, 0, 1)


def test_describe__ends_slots_with_their_machines_and_writes_nothing_else(database: Engine) -> None:
    columns = {"cluster_id": 1, "host_job_id": 1, "host_generation": 1, "host_rank": 0, "token": "t", "cpus": 1.0}
    usage = {"memory_gib": 0.0, "gpus": 0.0, "gpu_shares": [], "started_at": 0.0}
    attempt = {"job_id": JOB[0], "task_index": JOB[1], "generation": JOB[2], "rank": 0}
    with database.begin() as conn:
        cluster_slots.add(conn, [columns | usage | attempt])
    cloud = SlotCloud(database, ManualClock(), lambda _: None)
    (slot,) = cloud.describe("1", [slot_id(JOB, 0)])
    assert (slot.state, slot.gone_reason) == (InstanceState.GONE, Reason.MACHINE_STOPPED), "there is no such host"
    executed = executed_statements(database, lambda: cloud.describe("1", [slot_id(JOB, 0)]))
    assert len(executed) == 2
    assert all(statement.startswith("SELECT") for statement, _ in executed)
