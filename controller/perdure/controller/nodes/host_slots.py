"""The slots of the nodes that hold a cluster's machines: what each such node must run, and what it reports of it.

The whole wanted state is sent at each change, and a node reports the whole state of its slots, so that a lost message
costs nothing. The agent's side is `lifecycle.slot_host`.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import structlog
from sqlalchemy import Connection, Engine, Row

from perdure.controller.clouds.slot_cloud import parse_slot_id, slot_id
from perdure.controller.nodes.connection import Connection as NodeConnection
from perdure.controller.nodes.frames import SlotReport, SlotState
from perdure.controller.runtime.clock import Clock
from perdure.controller.runtime.failpoints import failpoint
from perdure.controller.runtime.security.keyring import Keyring
from perdure.controller.store.clusters import idle_rules
from perdure.controller.store.engine.database import UNAVAILABLE
from perdure.controller.store.records import cluster_slots
from perdure.controller.store.records.agent_connections import Place

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class HostSlots:
    """Sends wanted slots and records reports. Runs on the event loop."""

    database: Engine
    clock: Clock
    keyring: Keyring
    retry_s: float = 1.0  # after the database could not be reached
    _tasks: set[asyncio.Task[None]] = field(default_factory=set, repr=False)  # the loop holds them weakly

    async def on_report(self, connection: NodeConnection, reports: Sequence[SlotReport]) -> None:
        """Record what a node reports of its slots, and send what it shall run.

        A node sends a report once: it is kept until it is recorded.
        """
        connection.slot_reports = reports
        await self._send(connection)

    def refresh(self, connections: Sequence[NodeConnection]) -> None:
        """Send these nodes what they must run, if that has changed. Returns at once."""
        for connection in connections:
            if connection.closed:
                continue
            task = asyncio.get_running_loop().create_task(self._refresh(connection))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _refresh(self, connection: NodeConnection) -> None:
        try:
            await self._send(connection)
        except Exception:  # a bug, or a node that reads nothing: it costs this connection alone
            log.exception("slots.not_sent", place=connection.place)
            connection.close()

    async def _send(self, connection: NodeConnection) -> None:
        async with connection.slots_lock:  # a state that was read earlier must not be sent later
            reports = connection.slot_reports
            try:
                wanted = await asyncio.to_thread(self._exchange, connection.place, reports)
            except UNAVAILABLE as error:
                log.warning("database.unavailable", place=connection.place, error=str(error))
                asyncio.get_running_loop().call_later(self.retry_s, self.refresh, [connection])
                return
            if connection.slot_reports is reports:  # otherwise another one has arrived, which is sent next
                connection.slot_reports = ()
            if wanted != connection.last_slots and not connection.closed:
                connection.last_slots = wanted
                connection.send({"type": "slots", **wanted})

    def _exchange(self, place: Place, reports: Sequence[SlotReport]) -> dict[str, Any]:
        """Record `reports`; returns what the node shall run. Raises what the database raises."""
        key, rank = place
        ended = [slot for one in reports if one.state is SlotState.ENDED if (slot := parse_slot_id(one.id))]
        if not ended:
            with self.database.connect() as conn:
                return self._wanted(conn, place)
        with self.database.begin() as conn:
            cluster_slots.end(conn, key, rank, ended, self.clock.now())
            wanted = self._wanted(conn, place)
        failpoint("slot.ended")
        return wanted

    def _wanted(self, conn: Connection, place: Place) -> dict[str, Any]:
        slots = [self._slot(row) for row in cluster_slots.held_by_host(conn, *place)]
        return {"slots": slots, **idle_rules.of_host(conn, place[0][0])}

    def _slot(self, row: Row[Any]) -> dict[str, Any]:
        key = (row.job_id, row.task_index, row.generation)
        return {
            "id": slot_id(key, row.rank),
            "rank": row.rank,
            "token": self.keyring.attempt_token(key),
            "stop": row.stop_at is not None,
            "workdir": _workdir_id(row.workdir),
            "gpus": [int(gpu) for gpu, _ in row.gpu_shares],
        }


def _workdir_id(workdir: Any) -> str | None:
    """What tells one snapshot of a workdir from another; None for a job that brings none."""
    if not workdir:
        return None
    if "upload" in workdir:
        return str(workdir["upload"])
    return "git-" + hashlib.sha256(json.dumps(workdir, sort_keys=True).encode()).hexdigest()
