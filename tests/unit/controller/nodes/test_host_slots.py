"""What is recorded and sent of the slots of a cluster's node."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from sqlalchemy import Connection as DatabaseConnection
from sqlalchemy import Engine
from sqlalchemy.exc import OperationalError

from perdure.controller.clouds.slot_cloud import slot_id
from perdure.controller.nodes.connection import Connection
from perdure.controller.nodes.frames import SlotReport, SlotState
from perdure.controller.nodes.host_slots import HostSlots
from perdure.controller.runtime.clock import ManualClock
from perdure.controller.runtime.security.keyring import Keyring
from perdure.controller.store.records import cluster_slots

HOST, JOB = (1, 0, 1), (2, 0, 1)


class Outage:
    """A database that cannot be reached for the first `failures` transactions."""

    def __init__(self, database: Engine, failures: int) -> None:
        self._database, self.failures = database, failures

    def _open(self, what: Callable[[], AbstractContextManager[DatabaseConnection]]) -> Any:
        if self.failures:
            self.failures -= 1
            raise OperationalError("begin", {}, Exception("the server closed the connection"))
        return what()

    def begin(self) -> Any:
        return self._open(self._database.begin)

    def connect(self) -> Any:
        return self._open(self._database.connect)


def add_slot(database: Engine) -> None:
    row = {
        "job_id": JOB[0],
        "task_index": JOB[1],
        "generation": JOB[2],
        "rank": 0,
        "cluster_id": 1,
        "host_job_id": HOST[0],
        "host_generation": HOST[2],
        "host_rank": 0,
        "token": "t",
        "cpus": 1.0,
        "memory_gib": 0.0,
        "gpus": 0.0,
        "gpu_shares": [],
        "started_at": 0.0,
    }
    with database.begin() as conn:
        cluster_slots.add(conn, [row])


def test_report__of_an_end_is_recorded_after_an_outage_of_the_database(database: Engine) -> None:
    add_slot(database)
    outage: Any = Outage(database, failures=3)

    async def report() -> None:
        slots = HostSlots(outage, ManualClock(), Keyring(bytes(32), "t"), retry_s=0.01)
        connection = Connection((HOST, 0))
        await slots.on_report(connection, [SlotReport(id=slot_id(JOB, 0), state=SlotState.ENDED)])
        assert outage.failures == 2
        assert connection.last_slots is None
        message = await asyncio.wait_for(connection.outbox.get(), 20)  # the node sends its report only once
        assert message == {"type": "slots", "slots": [], "autostop_s": None}
        assert connection.slot_reports == ()

    asyncio.run(report())
    with database.connect() as conn:
        (slot,) = cluster_slots.of_attempt(conn, JOB)
    assert slot.ended_at is not None
