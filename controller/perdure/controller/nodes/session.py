"""The controller's end of the nodes' connections (docs/reference/agent-protocol.md).

Receives reports, notices, checkpoints and logs; sends directives and acknowledgements. Runs on the event loop. Messages
become events that are handed to `reconcile.inbox`; log bytes go straight to the log store. Blocking calls are made by
`io_batches`.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from concurrent.futures import Future

import structlog
from starlette.websockets import WebSocket, WebSocketDisconnect

from perdure.controller.execute.call_types import DescribeResult, IntentResult
from perdure.controller.nodes.connection import Connection, checkpoint_event, directive_frame
from perdure.controller.nodes.connection_records import ConnectionRecords
from perdure.controller.nodes.final_report import FinalReports, NodeEvents
from perdure.controller.nodes.frames import (
    CheckpointFrame,
    HeartbeatFrame,
    HelloFrame,
    InvalidFrame,
    NodeFrame,
    NodeReport,
    NoticeFrame,
    ReadinessFrame,
    ReportFrame,
    UnknownFrame,
    UsageFrame,
    parse_log,
    parse_text,
)
from perdure.controller.nodes.host_slots import HostSlots
from perdure.controller.nodes.idle_connection_timer import IdleConnectionTimer
from perdure.controller.nodes.io_batches import BlockingIo, ThreadPerCall
from perdure.controller.nodes.node_usage import NodeUsage
from perdure.controller.nodes.readiness import NodeReadiness
from perdure.controller.nodes.rejected_frames import RejectedFrames
from perdure.controller.reconcile.inbox import ReconcilerInbox, clamp_notice_deadline
from perdure.controller.reconcile.work_items import CheckpointReport, JobEvent
from perdure.controller.runtime.clock import REAL_TIME, Clock, TimeScale
from perdure.controller.runtime.failpoints import failpoint
from perdure.controller.runtime.keys import AttemptKey
from perdure.controller.store.engine.database import UNAVAILABLE
from perdure.controller.store.logs.bounded_logs import LogHeld
from perdure.controller.store.logs.protocol import LogStore
from perdure.controller.store.records.agent_connections import Place
from perdure.recovery import events, heartbeat_interval
from perdure.recovery.actions import TimelineEntry
from perdure.recovery.directive import Directive
from perdure.recovery.statuses import NodePhase

log = structlog.get_logger(__name__)

_MISSED_HEARTBEATS = 3
REPLICA_HEARTBEAT_S = 1.0  # callers wait for a replica that is silent
_FINAL_REPORT_WAIT_S = 60.0
_MAX_REMEMBERED = 10_000
_MAX_PATH_CHARS = 1024  # of a checkpoint in the timeline
# WebSocket close codes (RFC 6455, 7.4.1).
_INVALID_PAYLOAD, _INTERNAL_ERROR = 1007, 1011


class NodeSessions:
    """The sessions of all nodes that are connected to this daemon."""

    def __init__(
        self,
        inbox: ReconcilerInbox,
        logs: LogStore,
        presence: ConnectionRecords,
        *,
        clock: Clock,
        heartbeat_interval_s: float,
        node_timeout_s: float,
        time_scale: TimeScale = REAL_TIME,
        monotonic: Callable[[], float] = time.monotonic,
        blocking_io: BlockingIo | None = None,
        on_log: Callable[[int], None] = lambda _job_id: None,
        host_slots: HostSlots | None = None,
    ) -> None:
        """`node_timeout_s`: how long a node may be disconnected before its attempt is given up.

        `time_scale`: from `clock` to the wall clock, which nodes use. `blocking_io`: makes the calls of `logs` and
        `presence`; by default each in a thread of its own. `on_log`: called with the id of a job whose log grew.
        """
        self._host_slots = host_slots
        self._blocking_io = blocking_io or ThreadPerCall(logs, presence)
        self._inbox = inbox
        self._logs = logs
        self._presence = presence
        self._clock = clock
        self._time_scale = time_scale
        self._monotonic = monotonic
        self._heartbeat_interval_s = heartbeat_interval_s
        self._final_reports = FinalReports(
            self.deliver_report,
            wait_s=min(_FINAL_REPORT_WAIT_S, node_timeout_s / 2),
            had_outage_within=inbox.had_outage_within,
        )
        self._events = NodeEvents(inbox)
        self._connections: dict[Place, Connection] = {}  # the current connection of each node
        self._ranks: dict[AttemptKey, set[int]] = {}  # the ranks that are connected, by attempt
        self._loop: asyncio.AbstractEventLoop | None = None  # None until the first node connects
        self._on_log = on_log
        #: Nodes that have reported a rebalance recommendation: the timeline has it once, however often they do.
        self._at_risk: set[Place] = set()
        self.usage = NodeUsage(inbox, clock.now, time_scale.speed)
        self.readiness = NodeReadiness(clock.now, time_scale)
        #: The invalid frames of all nodes.
        self.rejected_frames = RejectedFrames(monotonic)

    def push_directive(self, key: AttemptKey, directive: Directive) -> None:
        """Send a directive to the connected nodes of an attempt. From any thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._push_directive, key, directive)

    def _push_directive(self, key: AttemptKey, directive: Directive) -> None:
        for rank in self._ranks.get(key, ()):
            self.send_directive(self._connections[key, rank], directive)

    def send_directive(self, connection: Connection, directive: Directive) -> None:
        """Send a directive to one node. On the event loop.

        A node that has to answer a roll call is disconnected instead; it receives the directive when it reconnects.
        """
        if connection.acknowledges(directive) or connection.place in self._final_reports:
            connection.send_directive(directive, self._clock.now(), self._time_scale)
        elif not connection.closed:
            connection.close()

    def refresh_slots(self, key: AttemptKey) -> None:
        """Send the connected nodes of a cluster the slots that they shall run. From any thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._refresh_slots, key)

    def _refresh_slots(self, key: AttemptKey) -> None:
        if self._host_slots is not None:
            self._host_slots.refresh([self._connections[key, rank] for rank in self._ranks.get(key, ())])

    def release_final_report(self, key: AttemptKey, rank: int) -> None:
        """Deliver the node's final report, if it is held back: its machine is gone, and with it the rest of its log.

        From any thread.
        """
        self._final_reports.release((key, rank))

    def on_result(self, result: IntentResult | DescribeResult) -> None:
        """Pass the result of a call on to the reconciler, after the final reports of the nodes that are gone.

        From any thread.
        """
        try:
            if isinstance(result, DescribeResult):
                described = result.event
                for rank in (rank for rank, reason in described.gone_reasons.items() if reason is not None):
                    self.release_final_report((result.job_id, described.task, described.generation), rank)
        finally:  # a result that is lost would keep its intent open for ever
            self._inbox.on_result(result)

    def close_without_lease(self, has_lease: Callable[[], bool]) -> None:
        """Close every connection while this controller has no lease: the other controllers count it as dead, so they
        would treat the nodes that are connected to it as lost. From any thread."""
        if not has_lease():
            self.close_all()

    def close_all(self) -> None:
        """Close every connection, so that each node reconnects to a controller that can serve it. From any thread."""
        if self._connections and self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._close_all)

    def _close_all(self) -> None:
        log.warning("agents.disconnected", nodes=len(self._connections))
        for connection in self._connections.values():
            connection.close()

    def register(self, connection: Connection) -> None:
        """Make this the node's current connection."""
        key, rank = connection.place
        self._connections[connection.place] = connection
        self.usage.expect(connection.place)
        self._ranks.setdefault(key, set()).add(rank)

    def connections(self) -> list[Connection]:
        """The current connections. From any thread."""
        return list(self._connections.values())

    @property
    def num_connections(self) -> int:
        return len(self._connections)

    async def serve(self, socket: WebSocket, place: Place) -> None:
        """Serve one node until its connection ends."""
        self._loop = asyncio.get_running_loop()
        await socket.accept()
        connection = Connection(place, self._heartbeat_interval_s)
        sender = asyncio.create_task(connection.run_sender(socket))
        try:
            await self._receive_all(socket, connection)
        except (WebSocketDisconnect, OSError, RuntimeError, *UNAVAILABLE) as error:
            log.info("agent.disconnected", place=place, error=f"{type(error).__name__}: {error}")
        except InvalidFrame as error:
            self.rejected_frames.count(place, str(error))
            await _close(socket, sender, _INVALID_PAYLOAD, str(error))
        except Exception:  # a bug: it must not reach the server, and costs this connection alone
            (job_id, task, generation), rank = place
            log.exception("agent.session_failed", job=job_id, task=task, generation=generation, rank=rank)
            await _close(socket, sender, _INTERNAL_ERROR, "the controller failed to handle a frame")
        finally:
            sender.cancel()
            await self._on_disconnect(connection)

    async def _on_disconnect(self, connection: Connection) -> None:
        place = connection.place
        if self._connections.get(place) is not connection:
            return
        del self._connections[place]
        self._events.drop_held_report(place)
        self.usage.forget(place)
        self.readiness.forget(place)
        self._ranks[place[0]].discard(place[1])
        if not self._ranks[place[0]]:
            del self._ranks[place[0]]
        if connection.notice_received:
            # The machine may be gone before the node can reconnect, and the next attempt waits for this report.
            self._final_reports.release(place)
        try:
            is_disconnected = await self._blocking_io.mark_disconnected(place, connection.session_id)
        except UNAVAILABLE as error:
            log.warning("database.unavailable", place=place, error=str(error))
            is_disconnected = True
        if is_disconnected:
            self._events.disconnected(place, events.NodeDisconnected(place[0][1], place[0][2], place[1]))

    async def _receive_all(self, socket: WebSocket, connection: Connection) -> None:
        """Raises TimeoutError when nothing, not even a ping, has arrived for three heartbeat intervals."""
        loop = asyncio.get_running_loop()
        connection.last_received_at = loop.time()

        def last_received_at() -> float:
            return max(connection.last_received_at, getattr(socket, "last_received_at", 0.0))

        async with IdleConnectionTimer(last_received_at, self._heartbeat_interval_s * _MISSED_HEARTBEATS) as timeout:
            while True:
                timeout.suspended, timeout.idle_s = False, connection.heartbeat_interval_s * _MISSED_HEARTBEATS
                message = await socket.receive()
                connection.last_received_at, timeout.suspended = loop.time(), True
                if message["type"] == "websocket.disconnect":
                    return
                if message.get("bytes") is not None:
                    if not connection.has_hello:
                        raise InvalidFrame("the first frame must be a hello")
                    await self._on_log_bytes(connection, message["bytes"])
                else:
                    frame = parse_text(message["text"])
                    if isinstance(frame, HelloFrame) == connection.has_hello:
                        raise InvalidFrame("the first frame, and no other, must be a hello")
                    await self._on_frame(connection, frame)
                    # Checkpoints are read as fast as they are recorded.
                    if not isinstance(frame, CheckpointFrame) and (pause_s := connection.pause_s(loop.time())):
                        await asyncio.sleep(pause_s)

    async def _on_log_bytes(self, connection: Connection, message: bytes) -> None:
        frame = parse_log(message)
        key, rank = connection.place
        try:
            connection.stored_bytes = await self._blocking_io.append(key, rank, frame.offset, frame.data)
        except LogHeld as held:
            connection.send({"type": "log_hold", "offset": connection.stored_bytes, "retry_s": held.retry_s})
            return
        connection.send({"type": "log_ack", "offset": connection.stored_bytes})
        self._on_log(key[0])
        self._final_reports.on_progress(connection)

    async def _on_frame(self, connection: Connection, frame: NodeFrame) -> None:
        match frame:
            case HelloFrame():
                await self._on_hello(connection, frame)
            case ReportFrame():
                await self._on_report(connection, frame, frame)
            case NoticeFrame():
                self._on_notice(connection, frame)
            case CheckpointFrame():
                await self._on_checkpoint(connection, frame)
            case UsageFrame():
                self.usage.on_usage(connection.place, frame)
            case ReadinessFrame():
                self.readiness.on_report(connection.place, frame)
            case HeartbeatFrame():
                pass
            case UnknownFrame():
                log.debug("agent.unknown_frame", place=connection.place)

    def _on_notice(self, connection: Connection, frame: NoticeFrame) -> None:
        key, rank = connection.place
        if frame.is_rebalance or frame.deadline is None:
            self._inbox.recommend_rebalance(key, rank, confirmed=False, is_new=connection.place not in self._at_risk)
            if len(self._at_risk) >= _MAX_REMEMBERED:
                self._at_risk.clear()
            self._at_risk.add(connection.place)
            return
        failpoint("agent.notice_received")
        connection.notice_received = True
        now, deadline = self._clock.now(), frame.deadline
        if frame.at is not None:
            deadline += self._time_scale.to_wall(now) - frame.at
        deadline = clamp_notice_deadline(self._time_scale.from_wall(deadline), now, self._time_scale.speed)
        self._events.notice(connection.place, events.PreemptionNotice(key[1], key[2], rank, deadline))

    async def _on_hello(self, connection: Connection, frame: HelloFrame) -> None:
        failpoint("agent.welcoming")
        connection.has_hello = True
        connection.inflight_checkpoints = self._events.inflight_checkpoints(connection)
        key = connection.place[0]
        place, session_id = connection.place, connection.session_id
        state, connection.stored_bytes = await self._blocking_io.mark_connected(place, session_id)
        previous = self._connections.get(place)
        if previous is not None:
            previous.close()
        self.register(connection)
        if frame.serves:
            self.readiness.on_hello(connection, frame.revision)
        # If the reconciler owns the job, its directive is newer than the one from the database. Changes before this
        # line were not pushed to this connection.
        connection.last_directive = self._inbox.directive_of(key) or state.directive
        connection.received_seq = state.checkpoint_seq
        welcome = {"type": "welcome", "log_offset": connection.stored_bytes, "checkpoint_seq": state.checkpoint_seq}
        nodes = max(len(self._connections), self._inbox.num_jobs())
        base_s = min(self._heartbeat_interval_s, REPLICA_HEARTBEAT_S) if frame.serves else self._heartbeat_interval_s
        connection.heartbeat_interval_s = heartbeat_interval.heartbeat_interval_s(nodes, base_s)
        welcome |= {
            "heartbeat_interval_s": connection.heartbeat_interval_s,
            "heartbeat": "ping",
            "reconnect_spread_s": heartbeat_interval.reconnect_spread_s(nodes),
            **directive_frame(connection.last_directive, self._clock.now(), self._time_scale),
        }
        connection.outbox.put_nowait(welcome)
        await self._on_report(connection, frame.report, frame)

    async def _on_report(self, connection: Connection, report: NodeReport, frame: HelloFrame | ReportFrame) -> None:
        """Deliver a report; `ended` only when everything that the node sent before it is stored."""
        if report.phase is NodePhase.ENDED:
            failpoint("agent.ended")
            self._final_reports.add(connection, report, frame)
        elif not connection.closed:
            self.deliver_report(connection, report)
        if report.slots is not None and self._host_slots is not None:
            await self._host_slots.on_report(connection, report.slots)

    def deliver_report(self, connection: Connection, report: NodeReport) -> None:
        """Hand a report to the reconciler. From any thread."""
        (_, task, generation), rank = connection.place
        event = events.NodeReported(
            task,
            generation,
            rank,
            report.phase,
            ip=report.ip,
            exit_code=report.exit_code,
            failed_stage=report.failed_stage,
            interrupted=report.interrupted,
            mount_lost=report.mount_lost,
            message=report.message,
        )
        connection.report, connection.reported_at = report, self._monotonic()
        self._events.report(connection.place, event)

    async def _on_checkpoint(self, connection: Connection, frame: CheckpointFrame) -> None:
        key, rank = connection.place
        path = frame.path[:_MAX_PATH_CHARS]
        data: dict[str, object] = {"step": frame.step, "path": path, "at": frame.at, "seq": frame.seq}
        note = TimelineEntry(f"checkpoint.{frame.state}", key[1], key[2], rank, data=data)
        await connection.inflight_checkpoints.acquire()
        event = checkpoint_event(connection, frame, self._time_scale)
        done = self._inbox.submit(JobEvent(key[0], event, checkpoint=CheckpointReport(key, rank, frame.seq, note)))
        loop = asyncio.get_running_loop()

        def acknowledge() -> None:
            connection.inflight_checkpoints.release()
            connection.outbox.put_nowait({"type": "checkpoint_ack", "seq": frame.seq})

        def on_recorded(_: Future[None]) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(acknowledge)

        done.add_done_callback(on_recorded)
        connection.received_seq = max(connection.received_seq, frame.seq)
        self._final_reports.on_progress(connection)


async def _close(socket: WebSocket, sender: asyncio.Task[None], code: int, reason: str) -> None:
    sender.cancel()
    with contextlib.suppress(WebSocketDisconnect, OSError, RuntimeError):  # the node has closed it
        await socket.close(code, reason)
