"""One node's connection to this daemon: its state and the queue of messages to send.

What a message means is decided in `session`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import structlog
from starlette.websockets import WebSocket, WebSocketDisconnect

from perdure.controller.nodes.frames import CheckpointFrame, CheckpointState, NodeReport, SlotReport
from perdure.controller.runtime.clock import TimeScale
from perdure.controller.runtime.compact_queue import CompactQueue
from perdure.controller.runtime.keys import AttemptKey
from perdure.controller.store.records.agent_connections import Place
from perdure.recovery import events
from perdure.recovery.directive import Directive
from perdure.recovery.statuses import NodePhase

_MAX_UNREAD = 1000
_MAX_INFLIGHT_CHECKPOINTS = 64
_MAX_SAVED_STEPS = 1000
_FRAMES_PER_S, _FRAMES_AT_ONCE = 20.0, 200


log = structlog.get_logger(__name__)


@dataclass(eq=False, slots=True)
class Connection:
    """One node's connection. All fields but `place` and `session_id` change while it lasts."""

    #: The attempt and the rank of the node.
    place: Place
    #: How often the node sends a heartbeat.
    heartbeat_interval_s: float = 5.0
    #: Names this connection in the database; a reconnect gets another one.
    session_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    #: Messages to send, in order; None closes the connection.
    outbox: CompactQueue[dict[str, Any] | None] = field(default_factory=CompactQueue)
    #: The number of the last checkpoint message that was received.
    received_seq: int = 0
    #: Step → when its checkpoint was written (the node's wall clock), until that checkpoint is durable.
    saved_at: dict[int, float] = field(default_factory=dict)
    #: The last directive that was put in `outbox`.
    last_directive: Directive | None = None
    #: The last report that was delivered to the reconciler.
    report: NodeReport | None = None
    #: When `report` was delivered (monotonic clock).
    reported_at: float = 0.0
    #: Whether the node's hello was received: its first frame, and only that one.
    has_hello: bool = False
    #: Whether this side has closed it. Messages that still arrive may be out of date.
    closed: bool = False
    #: When the last message arrived (the event loop's clock).
    last_received_at: float = 0.0
    #: When the node's next frame would be due if it sent them one after another (the event loop's clock).
    next_frame_at: float = 0.0
    #: How many bytes of the node's log are stored.
    stored_bytes: int = 0
    #: Whether the node has received an interruption notice: its machine will soon be gone.
    notice_received: bool = False
    #: Bounds the checkpoints that are not recorded yet; while it is exhausted, nothing more is read from the node.
    inflight_checkpoints: asyncio.Semaphore = field(
        default_factory=lambda: asyncio.Semaphore(_MAX_INFLIGHT_CHECKPOINTS)
    )

    #: The slots that the node was last asked to run, as they were sent; None: none were sent.
    last_slots: dict[str, Any] | None = None
    #: What the node has reported of its slots, until it is recorded.
    slot_reports: Sequence[SlotReport] = ()
    #: Held while the node's slots are read and sent.
    slots_lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def record_save(self, step: int, at: float) -> None:
        """Add to `saved_at`, which holds a limited number of steps: the highest."""
        self.saved_at.setdefault(step, at)
        if len(self.saved_at) > _MAX_SAVED_STEPS:
            del self.saved_at[min(self.saved_at)]

    def pause_s(self, now: float) -> float:
        """For how long nothing more is read from the node, after a frame: a node that sends more frames than any that
        is honest gets no more of this process. `now`: the event loop's clock."""
        self.next_frame_at = max(self.next_frame_at, now) + 1 / _FRAMES_PER_S
        return max(0.0, self.next_frame_at - now - _FRAMES_AT_ONCE / _FRAMES_PER_S)

    def send(self, message: dict[str, Any]) -> None:
        """Queue a message. Raises RuntimeError when the agent has stopped reading."""
        if self.outbox.qsize() > _MAX_UNREAD:
            raise RuntimeError(f"the agent has left {_MAX_UNREAD} messages unread")
        self.outbox.put_nowait(message)

    def send_directive(self, directive: Directive, now: float, time_scale: TimeScale) -> None:
        """Queue a directive, unless it equals the last one. `now`: the controller's clock."""
        if directive != self.last_directive:
            self.last_directive = directive
            self.outbox.put_nowait({"type": "directive", **directive_frame(directive, now, time_scale)})

    def acknowledges(self, directive: Directive) -> bool:
        """Whether this connection answers the directive's roll call.

        True if there is no roll call, if the connection was made after it, or if the node has reported its end.
        """
        called_at = self.last_directive.roll_call_at if self.last_directive else None
        has_ended = self.report is not None and self.report.phase is NodePhase.ENDED
        return directive.roll_call_at in (None, called_at) or has_ended

    def close(self) -> None:
        """Close the connection. The node reconnects and sends its whole state again."""
        self.closed = True
        self.outbox.put_nowait(None)

    async def run_sender(self, socket: WebSocket) -> None:
        """Send messages as they are queued, until the connection is closed here or by the node."""
        with contextlib.suppress(WebSocketDisconnect, OSError, RuntimeError):  # the receiving side notices it, too
            while (message := await self.outbox.get()) is not None:
                try:
                    text = json.dumps(message, allow_nan=False)
                except ValueError:
                    log.exception("message.not_sent", type=message.get("type"))
                    break
                await socket.send_text(text)
            await socket.close()


def directive_frame(directive: Directive, now: float, time_scale: TimeScale) -> dict[str, Any]:
    """The JSON form of a directive, with the controller's time: `deadline` and `now` are wall-clock seconds."""
    fields = {
        "target": directive.target,
        "node_ips": directive.node_ips,
        "deadline": None if directive.deadline is None else time_scale.to_wall(directive.deadline),
        "reason": directive.reason,
    }
    return {"directive": fields, "now": time_scale.to_wall(now)}


def checkpoint_event(connection: Connection, frame: CheckpointFrame, time_scale: TimeScale) -> events.Event:
    """The event for a checkpoint message; a `Tick` if it means nothing but an entry of the timeline."""
    return _durable_event(connection, frame, time_scale) or _saved_event(connection.place[0], frame)


def _saved_event(key: AttemptKey, frame: CheckpointFrame) -> events.Event:
    """The event for a checkpoint that has not become durable yet, or that was loaded."""
    if frame.state in (CheckpointState.SAVED, CheckpointState.COMMITTED):
        return events.StepSaved(key[1], key[2], frame.step)
    if frame.state is CheckpointState.LOADED:
        return events.CheckpointLoaded(key[1], key[2], frame.step)
    return events.Tick()


def _durable_event(
    connection: Connection, frame: CheckpointFrame, time_scale: TimeScale
) -> events.CheckpointDurable | None:
    """The event for a checkpoint that has become durable; None for other checkpoint messages.

    A checkpoint holds the work that was done when it was written, which may be long before its last byte reached the
    bucket. So the time of the event is that of the message "saved" or "committed".
    """
    if frame.at is None:
        return None
    if frame.state in (CheckpointState.SAVED, CheckpointState.COMMITTED):
        connection.record_save(frame.step, frame.at)
    written_at = connection.saved_at.get(frame.step)
    if frame.state is not CheckpointState.DURABLE or written_at is None:
        return None
    connection.saved_at = {other: when for other, when in connection.saved_at.items() if other > frame.step}
    (_, task, generation), _ = connection.place
    return events.CheckpointDurable(task, generation, time_scale.from_wall(written_at), frame.step, frame.total_steps)
