"""Fakes around `NodeSessions`: a reconciler that records what it receives, and the WebSocket of a node."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from perdure.controller.nodes.connection_records import WelcomeState
from perdure.controller.nodes.frames import NodeFrame, parse_text
from perdure.controller.nodes.session import NodeSessions
from perdure.controller.reconcile.work_items import CheckpointReport, JobEvent
from perdure.controller.runtime.clock import ManualClock
from perdure.controller.runtime.keys import AttemptKey
from perdure.controller.store.logs.file_logs import FileLogStore
from perdure.controller.store.records.agent_connections import Place
from perdure.recovery import events
from perdure.recovery.directive import Directive, Target
from perdure.recovery.statuses import NodePhase

KEY, RANK = (7, 0, 1), 0
ENDED = {"phase": "ended", "exit_code": 3, "failed_stage": "run"}


class FakeReconciler:
    """Records what it receives, in order."""

    def __init__(self, *, records: bool = False) -> None:
        self.events: list[events.Event] = []
        self.received: list[str] = []  # the names of the events and the kinds of the checkpoint messages
        self.checkpoints: list[CheckpointReport] = []
        self.directive: Directive | None = None  # of every attempt
        self.outages: Iterator[bool] = iter(())  # the answers to `had_outage_within`; False after the last
        self.is_busy = False  # then it records no events, until `record` is called
        self.unrecorded: list[Future[None]] = []
        self._records = records  # whether checkpoints are recorded at once, or never

    def had_outage_within(self, _seconds: float) -> bool:
        return next(self.outages, False)

    def submit(self, event: JobEvent) -> Future[None]:
        recorded: Future[None] = Future()
        if event.checkpoint is None:
            self.events.append(event.event)
            self.received.append(type(event.event).__name__)
            if self.is_busy:
                self.unrecorded.append(recorded)
            else:
                recorded.set_result(None)
            return recorded
        self.checkpoints.append(event.checkpoint)
        self.received.append(event.checkpoint.note.kind)
        if self._records:
            recorded.set_result(None)
        return recorded

    def record(self) -> None:
        """Be busy no more, and record what has come in meanwhile."""
        self.is_busy = False
        while self.unrecorded:
            self.unrecorded.pop(0).set_result(None)

    def num_jobs(self) -> int:
        return 1

    def directive_of(self, _key: AttemptKey) -> Directive | None:
        return self.directive

    @property
    def exit_codes(self) -> list[int | None]:
        """The exit codes of the final reports."""
        return [e.exit_code for e in self.events if isinstance(e, events.NodeReported) and e.phase is NodePhase.ENDED]


class FakePresence:
    """Welcomes every node with `seq` recorded checkpoints, and with the directive to wait."""

    def __init__(self, seq: int) -> None:
        self._seq = seq

    def mark_connected(self, _place: Place, _session_id: str) -> WelcomeState:
        return WelcomeState(self._seq, Directive(Target.WAIT))

    def mark_disconnected(self, _place: Place, _session_id: str) -> bool:
        return True


class FakeSocket:
    """The WebSocket of a node that sends hello, then what the test sends, until it is closed."""

    def __init__(self, hello: dict[str, Any] | None = None) -> None:
        self._messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.received: list[str] = []
        self.closed_with: tuple[int, str] | None = None  # the code and the reason of the close frame
        self.send({"type": "hello", "report": {"phase": "booted"}} if hello is None else hello)

    def send(self, message: dict[str, Any] | bytes | str) -> None:
        """Send a message of the node; text is sent as it is."""
        text = message if isinstance(message, str) else ""
        data = {"bytes": message} if isinstance(message, bytes) else {"text": text or json.dumps(message)}
        self._messages.put_nowait({"type": "websocket.receive", **data})

    async def accept(self) -> None:
        pass

    async def receive(self) -> dict[str, Any]:
        return await self._messages.get()

    async def send_text(self, text: str) -> None:
        self.received.append(text)

    async def close(self, code: int = 1000, reason: str | None = None) -> None:
        self.closed_with = (code, reason or "")
        self._messages.put_nowait({"type": "websocket.disconnect"})


def make_sessions(reconciler: FakeReconciler, folder: Path, *, seq: int = 0) -> NodeSessions:
    """Sessions with a store for logs in `folder`. Final reports are held back for 0.2 s at most."""
    inbox: Any = reconciler
    presence: Any = FakePresence(seq)
    logs = FileLogStore(folder)
    return NodeSessions(inbox, logs, presence, clock=ManualClock(), heartbeat_interval_s=5.0, node_timeout_s=0.4)


def frame_of(message: dict[str, Any]) -> NodeFrame:
    """The message as the session receives it."""
    return parse_text(json.dumps(message))


def log_frame(offset: int, data: bytes) -> bytes:
    return b'{"offset": %d}\n' % offset + data
