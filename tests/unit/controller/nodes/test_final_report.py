"""A final report is delivered once everything that the node sent before it is stored, or after a bounded wait."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from perdure.controller.nodes.connection import Connection
from perdure.controller.nodes.session import NodeSessions
from support.fakes.node_sessions import ENDED, KEY, RANK, FakeReconciler, FakeSocket, frame_of, log_frame, make_sessions

SIZE = 10
FINAL = {"type": "report", **ENDED, "logs": {"size": SIZE}}


def new_connection() -> Connection:
    return Connection((KEY, RANK))


def test_final_report__waits_for_the_rest_of_the_log(sessions: NodeSessions, reconciler: FakeReconciler) -> None:
    async def run() -> None:
        connection = new_connection()
        await sessions._on_frame(connection, frame_of(FINAL))
        assert reconciler.exit_codes == []
        await sessions._on_log_bytes(connection, log_frame(0, b"x" * 4))
        assert reconciler.exit_codes == []
        await sessions._on_log_bytes(connection, log_frame(4, b"x" * 6))
        await sessions._on_log_bytes(connection, log_frame(4, b"x" * 6))

    asyncio.run(run())
    assert reconciler.exit_codes == [3], "delivered once"


def test_final_report__waits_a_bounded_time_after_a_reconnect(
    sessions: NodeSessions, reconciler: FakeReconciler
) -> None:
    async def run() -> None:
        await sessions._on_frame(new_connection(), frame_of(FINAL))
        first = sessions._final_reports._pending[KEY, RANK]
        await sessions._on_frame(new_connection(), frame_of(FINAL))  # the connection broke, and the node reconnects
        sessions._final_reports._release(first)
        assert reconciler.exit_codes == [], "the reconnect has restarted the timer"
        while not reconciler.exit_codes:
            await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(run(), 20))
    assert reconciler.exit_codes == [3], "the outcome matters more than the rest of the log"


def test_final_report__waits_longer_after_a_database_outage(sessions: NodeSessions, reconciler: FakeReconciler) -> None:
    """The node could not send the rest of its log during the outage."""

    async def run() -> None:
        outages = reconciler.outages = iter([True, True])
        await sessions._on_frame(new_connection(), frame_of(FINAL))
        while not reconciler.exit_codes:
            assert (KEY, RANK) in sessions._final_reports
            await asyncio.sleep(0.01)
        assert next(outages, None) is None, "it waited until there was no outage"

    asyncio.run(asyncio.wait_for(run(), 20))


def test_final_report__is_released_when_the_machine_is_gone(sessions: NodeSessions, reconciler: FakeReconciler) -> None:
    async def run() -> None:
        await sessions._on_frame(new_connection(), frame_of(FINAL))
        sessions.release_final_report(KEY, 1)
        assert reconciler.exit_codes == []
        sessions.release_final_report(KEY, RANK)
        sessions.release_final_report(KEY, RANK)

    asyncio.run(run())
    assert reconciler.exit_codes == [3]


@pytest.mark.parametrize("has_notice", [True, False])
def test_final_report__outlives_a_broken_connection_unless_the_machine_is_leaving(
    sessions: NodeSessions, reconciler: FakeReconciler, has_notice: bool
) -> None:
    """Whatever the cause of the end: a cancel and a drain end the machine, too."""

    async def run() -> None:
        socket: Any = FakeSocket()
        if has_notice:
            socket.send({"type": "notice", "action": "terminate", "deadline": 60.0})
        socket.send({**FINAL, "interrupted": True})
        await socket.close()
        await sessions.serve(socket, (KEY, RANK))
        assert reconciler.exit_codes == ([3] if has_notice else [])
        reconnected = new_connection()
        await sessions._on_frame(reconnected, frame_of({**FINAL, "interrupted": True}))
        await sessions._on_log_bytes(reconnected, log_frame(0, b"x" * SIZE))

    asyncio.run(run())
    assert reconciler.exit_codes[-1:] == [3]


CHECKPOINT = {"type": "checkpoint", "seq": 1, "state": "durable", "step": 5, "path": "/c/5", "at": 1.0}
LOG = log_frame(0, b"bye\n")


def received(folder: Path, *rest: dict[str, Any] | bytes, log_bytes: int, seq: int) -> list[str]:
    """What the reconciler receives from a node whose hello holds its final report, and whose last checkpoint has the
    number 1. `seq`: of its last checkpoint that is recorded."""
    reconciler = FakeReconciler(records=True)

    async def run() -> None:
        report = {"phase": "ended", "exit_code": 0, "interrupted": True}
        sizes = {"logs": {"size": log_bytes}, "checkpoints": {"seq": 1}}
        socket: Any = FakeSocket({"type": "hello", "report": report, **sizes})
        for message in rest:
            socket.send(message)
        await socket.close()
        await make_sessions(reconciler, folder, seq=seq).serve(socket, (KEY, RANK))

    asyncio.run(run())
    return reconciler.received


@pytest.mark.parametrize("rest", [(CHECKPOINT, LOG), (LOG, CHECKPOINT)])
def test_final_report__in_a_hello_waits_for_checkpoints_and_log(
    tmp_path: Path, rest: tuple[dict[str, Any] | bytes, ...]
) -> None:
    expected = ["checkpoint.durable", "NodeReported", "NodeDisconnected"]
    assert received(tmp_path, *rest, log_bytes=4, seq=0) == expected


def test_final_report__does_not_wait_for_what_is_recorded_already(tmp_path: Path) -> None:
    assert received(tmp_path, log_bytes=0, seq=1) == ["NodeReported", "NodeDisconnected"]
