"""`NodeSessions`: notices, roll calls, and nodes that do not read or that send too fast."""

from __future__ import annotations

import asyncio
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from unittest.mock import AsyncMock

import pytest
from starlette.websockets import WebSocket
from structlog.testing import capture_logs

from perdure.controller.nodes.connection import (
    _FRAMES_AT_ONCE,
    _FRAMES_PER_S,
    _MAX_INFLIGHT_CHECKPOINTS,
    _MAX_UNREAD,
    Connection,
)
from perdure.controller.nodes.final_report import _MAX_UNRECORDED
from perdure.controller.nodes.io_batches import ThreadPerCall
from perdure.controller.nodes.session import NodeSessions
from perdure.controller.runtime.clock import ManualClock
from perdure.controller.store.logs.bounded_logs import BoundedLogs, DiskReserve
from perdure.controller.store.logs.file_logs import FileLogStore
from perdure.recovery import events
from perdure.recovery.directive import Directive, Target
from perdure.recovery.statuses import NodePhase
from support.fakes.node_sessions import ENDED, KEY, RANK, FakeReconciler, FakeSocket, frame_of, log_frame


def new_connection() -> Connection:
    return Connection((KEY, RANK))


@pytest.mark.parametrize("ahead_s", [0.0, 5000.0, -5000.0])
def test_notice__has_its_deadline_on_the_clock_of_the_node(
    sessions: NodeSessions, reconciler: FakeReconciler, ahead_s: float
) -> None:
    now = ManualClock().now()
    notice = {"type": "notice", "action": "terminate", "source": "imds-v2"}
    at = now + ahead_s
    frame = frame_of({**notice, "deadline": at + 120, "at": at})
    asyncio.run(sessions._on_frame(new_connection(), frame))
    assert reconciler.events == [events.PreemptionNotice(0, 1, RANK, now + 120)]


@pytest.mark.parametrize(("deadline_in_s", "expected_s"), [(-50.0, 0.0), (120.0, 120.0), (1e6, 3600.0)])
def test_notice__is_moved_into_the_next_hour(
    sessions: NodeSessions, reconciler: FakeReconciler, deadline_in_s: float, expected_s: float
) -> None:
    now = ManualClock().now()
    frame = frame_of({"type": "notice", "action": "terminate", "deadline": now + deadline_in_s})
    asyncio.run(sessions._on_frame(new_connection(), frame))
    assert reconciler.events == [events.PreemptionNotice(0, 1, RANK, now + expected_s)]


@pytest.mark.parametrize(
    ("frames", "why"),
    [
        (['{"type": "notice", "deadline": NaN}'], "notice.deadline"),
        ([b"no header"], "log: it must begin"),
        ([{"type": "hello", "report": {"phase": "booted"}}], "no other, must be a hello"),
        (["[" * 100_000], "JSON"),
    ],
)
def test_invalid_frame__closes_the_connection_with_a_reason(
    sessions: NodeSessions, reconciler: FakeReconciler, frames: list[Any], why: str
) -> None:
    socket: Any = FakeSocket()
    for frame in [*frames, {"type": "report", "phase": "running"}]:
        socket.send(frame)
    asyncio.run(asyncio.wait_for(sessions.serve(socket, (KEY, RANK)), 20))
    code, reason = socket.closed_with
    assert (code, why in reason) == (1007, True)
    assert reconciler.received == ["NodeReported", "NodeDisconnected"], "nothing that follows the frame is read"
    assert sessions.rejected_frames.total == 1


@pytest.mark.parametrize("frame", [{"type": "report", "phase": "running"}, log_frame(0, b"x")])
def test_connection__must_begin_with_a_hello(
    sessions: NodeSessions, reconciler: FakeReconciler, frame: dict[str, Any] | bytes
) -> None:
    """Otherwise a node would count as connected, and nobody would notice its end."""
    socket: Any = FakeSocket(hello=frame)  # type: ignore[arg-type]
    asyncio.run(asyncio.wait_for(sessions.serve(socket, (KEY, RANK)), 20))
    assert socket.closed_with[0] == 1007
    assert reconciler.received == []


def test_bug_in_a_session__closes_its_connection_alone(
    sessions: NodeSessions, reconciler: FakeReconciler, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise LookupError("a bug")

    monkeypatch.setattr(sessions._inbox, "submit", fail)
    monkeypatch.setattr(sessions, "_on_disconnect", AsyncMock())
    socket: Any = FakeSocket()
    with capture_logs() as lines:
        asyncio.run(asyncio.wait_for(sessions.serve(socket, (KEY, RANK)), 20))
    assert socket.closed_with[0] == 1011
    assert [(line["event"], line["job"]) for line in lines] == [("agent.session_failed", KEY[0])]


def test_saved_steps__of_a_connection_take_bounded_memory(sessions: NodeSessions) -> None:
    connection = new_connection()
    for step in range(5000):
        connection.record_save(step, 1.0)
    assert len(connection.saved_at) == 1000
    assert max(connection.saved_at) == 4999


def test_roll_call__makes_nodes_reconnect_unless_they_have_ended(
    sessions: NodeSessions, reconciler: FakeReconciler
) -> None:
    running = Directive(Target.RUN)

    async def serve(*messages: dict[str, Any], directive: Directive) -> list[str]:
        """What the node receives: the welcome, and what follows from `directive`."""
        socket: Any = FakeSocket()
        served = asyncio.create_task(sessions.serve(socket, (KEY, RANK)))
        while not socket.received:
            await asyncio.sleep(0.01)
        sessions.push_directive(KEY, directive)
        await asyncio.sleep(0)
        for message in messages:
            socket.send(message)
        while not served.done() and len(socket.received) < 2:
            await asyncio.sleep(0.01)
        was_closed = served.done()
        await socket.close()
        await served
        return [json.loads(text)["type"] for text in socket.received] + (["closed"] if was_closed else [])

    async def run() -> None:
        stale = {"type": "report", "phase": "running"}
        roll_call = replace(running, roll_call_at=1.0)
        assert await serve(stale, directive=running) == ["welcome", "directive"]
        before = len(reconciler.events)
        assert await serve(stale, directive=roll_call) == ["welcome", "closed"]
        reports = [e for e in reconciler.events[before:] if isinstance(e, events.NodeReported)]
        assert [e.phase for e in reports] == [NodePhase.BOOTED], "a report in flight may be older than the roll call"
        ended = {"type": "report", **ENDED, "logs": {"size": 0}}
        assert await serve(ended, directive=roll_call) == ["welcome", "closed"]
        assert reconciler.exit_codes == [3], "a final report stays true"
        reconciler.directive = roll_call
        assert await serve(directive=replace(roll_call, node_ips=("10.0.0.1",))) == ["welcome", "directive"]

    asyncio.run(asyncio.wait_for(run(), 20))


def test_close_all__ends_every_session_at_once(sessions: NodeSessions) -> None:
    async def run() -> None:
        sockets: list[Any] = [FakeSocket(), FakeSocket()]
        served = [asyncio.create_task(sessions.serve(socket, (KEY, rank))) for rank, socket in enumerate(sockets)]
        while not all(socket.received for socket in sockets):
            await asyncio.sleep(0.01)
        await asyncio.to_thread(sessions.close_all)
        await asyncio.gather(*served)

    asyncio.run(asyncio.wait_for(run(), 3))  # long before a heartbeat is missed
    assert sessions.connections() == []


def test_session__ends_when_the_node_stops_reading(sessions: NodeSessions) -> None:
    async def run() -> int:
        connection = new_connection()
        for n in range(10 * _MAX_UNREAD):
            try:
                await sessions._on_log_bytes(connection, log_frame(n, b"x"))
            except RuntimeError:
                break
        return connection.outbox.qsize()

    assert asyncio.run(run()) <= _MAX_UNREAD + 1


def report_of(number: int) -> dict[str, Any]:
    return {"type": "report", "phase": "running", "message": str(number)}


def test_reports__of_a_node_wait_for_the_reconciler_and_the_newest_counts(
    sessions: NodeSessions, reconciler: FakeReconciler
) -> None:
    reconciler.is_busy = True

    async def run() -> None:
        connection = new_connection()
        for number in range(1000):
            await sessions._on_frame(connection, frame_of(report_of(number)))
        for deadline_s in (300.0, 120.0, 200.0):
            notice = {"type": "notice", "action": "terminate", "deadline": ManualClock().now() + deadline_s}
            await sessions._on_frame(connection, frame_of(notice))
        other = Connection((KEY, 1))
        await sessions._on_frame(other, frame_of(report_of(0)))

    asyncio.run(run())
    assert reconciler.received == ["NodeReported"] * (_MAX_UNRECORDED + 1), "the other node waits for nothing"
    reconciler.record()
    notice, newest = reconciler.events[-2:]
    assert notice == events.PreemptionNotice(0, 1, RANK, ManualClock().now() + 120.0), "the earliest deadline counts"
    assert isinstance(newest, events.NodeReported)
    assert (newest.message, len(reconciler.events)) == ("999", _MAX_UNRECORDED + 3)
    assert sessions._events._nodes == {}, "nothing is kept of a node whose events are recorded"


def test_final_report__that_had_to_wait_is_the_last(sessions: NodeSessions, reconciler: FakeReconciler) -> None:
    reconciler.is_busy = True

    async def run() -> None:
        connection = new_connection()
        for number in range(_MAX_UNRECORDED):
            await sessions._on_frame(connection, frame_of(report_of(number)))
        await sessions._on_frame(connection, frame_of({"type": "report", **ENDED}))
        await sessions._on_frame(connection, frame_of(report_of(9)))
        sessions.register(connection)
        await sessions._on_disconnect(connection)

    asyncio.run(run())
    reconciler.record()
    assert reconciler.received[_MAX_UNRECORDED:] == ["NodeDisconnected", "NodeReported"]
    assert reconciler.exit_codes == [3]


def test_reconnects__of_a_node_wait_for_the_reconciler(sessions: NodeSessions, reconciler: FakeReconciler) -> None:
    """A report that was held back is dropped with its connection: the next one brings the whole state again."""
    reconciler.is_busy = True

    async def run() -> None:
        for _ in range(50):
            socket: Any = FakeSocket()
            serving = asyncio.create_task(sessions.serve(socket, (KEY, RANK)))
            while not socket.received:
                await asyncio.sleep(0.001)
            await socket.close()
            await serving

    asyncio.run(asyncio.wait_for(run(), 20))
    assert len(reconciler.events) <= 2 * _MAX_UNRECORDED
    assert reconciler.received[-1] == "NodeDisconnected"
    reconciler.record()
    assert reconciler.received[-1] == "NodeDisconnected"


def test_frames__beyond_what_an_honest_node_sends_are_read_slowly() -> None:
    connection = new_connection()
    assert [connection.pause_s(100.0) for _ in range(_FRAMES_AT_ONCE)] == pytest.approx(
        [0.0] * _FRAMES_AT_ONCE, abs=1e-6
    )
    assert connection.pause_s(100.0) == pytest.approx(1 / _FRAMES_PER_S)
    assert connection.pause_s(101.0) == 0.0


def test_session__pauses_after_too_many_frames(sessions: NodeSessions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Connection, "pause_s", lambda *_: 60.0)
    socket: Any = FakeSocket()
    for number in range(3):
        socket.send(report_of(number))

    async def run() -> int:
        serving = asyncio.create_task(sessions.serve(socket, (KEY, RANK)))
        while not socket.received:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0)
        serving.cancel()
        await asyncio.wait([serving])
        return int(socket._messages.qsize())

    assert asyncio.run(run()) == 3


def test_checkpoints__are_bounded_over_reconnects(sessions: NodeSessions) -> None:
    async def run() -> bool:
        bounds = []
        for _ in range(2):
            connection = new_connection()
            await sessions._on_hello(connection, frame_of({"type": "hello", "report": {"phase": "running"}}))  # type: ignore[arg-type]
            bounds.append(connection.inflight_checkpoints)
        return bounds[0] is bounds[1]

    assert asyncio.run(run())


def test_checkpoints__are_read_no_faster_than_they_are_recorded(sessions: NodeSessions) -> None:
    async def run() -> int:
        connection, count = new_connection(), 0
        try:
            for seq in range(1, 10 * _MAX_INFLIGHT_CHECKPOINTS):
                frame = frame_of({"type": "checkpoint", "seq": seq, "step": 1, "state": "saved"})
                await asyncio.wait_for(sessions._on_frame(connection, frame), 0.1)
                count += 1
        except TimeoutError:
            pass
        return count

    assert asyncio.run(run()) == _MAX_INFLIGHT_CHECKPOINTS


def test_checkpoint__has_a_bounded_path_in_the_timeline(sessions: NodeSessions, reconciler: FakeReconciler) -> None:
    frame = frame_of({"type": "checkpoint", "seq": 1, "step": 1, "state": "saved", "path": "p" * 1025})
    asyncio.run(sessions._on_frame(new_connection(), frame))
    assert reconciler.checkpoints[0].note.data["path"] == "p" * 1024


def test_log__is_held_while_the_disk_is_nearly_full(
    sessions: NodeSessions, reconciler: FakeReconciler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = [0]
    monkeypatch.setattr(shutil, "disk_usage", lambda _folder: (2**30, 2**30 - free[0], free[0]))
    reserve = DiskReserve(tmp_path, 2**20, monotonic=iter([0.0, 2.0]).__next__)
    logs = BoundedLogs(FileLogStore(tmp_path), max_bytes=None, reserve=reserve)
    sessions._blocking_io = ThreadPerCall(logs, sessions._presence)
    socket = FakeSocket()

    async def main() -> None:
        serving = asyncio.create_task(sessions.serve(cast(WebSocket, socket), (KEY, RANK)))
        socket.send(log_frame(0, b"abc"))
        socket.send({"type": "report", "phase": "setup"})
        while len(reconciler.events) < 2:
            await asyncio.sleep(0.001)
        free[0] = 2**29
        socket.send(log_frame(0, b"abc"))
        while len(socket.received) < 3:
            await asyncio.sleep(0.001)
        await socket.close()
        await serving

    asyncio.run(main())
    welcome, held, acknowledged = map(json.loads, socket.received)
    assert welcome["type"] == "welcome"
    assert held == {"type": "log_hold", "offset": 0, "retry_s": 10.0}
    assert acknowledged == {"type": "log_ack", "offset": 3}, "the connection goes on"


def test_sender__closes_the_connection_rather_than_send_invalid_json() -> None:
    """NaN is no JSON: a parser that is strict would fail, and another would compute with it."""
    connection, socket = new_connection(), AsyncMock()
    connection.outbox.put_nowait({"type": "directive", "deadline": float("nan")})
    connection.outbox.put_nowait({"type": "never"})
    with capture_logs() as logs:
        asyncio.run(connection.run_sender(socket))
    socket.send_text.assert_not_awaited()
    socket.close.assert_awaited_once()
    assert [entry["event"] for entry in logs] == ["message.not_sent"]
