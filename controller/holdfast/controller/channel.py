"""The daemon's end of the agents' channel (docs/agent-protocol.md): reports in, directives and acknowledgements out.

Lives on the event loop. What agents say goes to the reconciler as events; log bytes go straight to their files.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import structlog
from starlette.websockets import WebSocket, WebSocketDisconnect

from holdfast.controller.clock import Clock
from holdfast.controller.crashpoints import reach
from holdfast.controller.keyring import AttemptKey
from holdfast.controller.nodelogs import NodeLogs
from holdfast.controller.reconcile import Checkpoint, Reconciler, Turn
from holdfast.recovery import events
from holdfast.recovery.actions import Note
from holdfast.recovery.directive import STOP, Directive, Want
from holdfast.recovery.statuses import NodePhase

log = structlog.get_logger(__name__)

Place = tuple[AttemptKey, int]
"""An attempt and a rank of it"""

_MISSED_BEATS = 3
_MOST_UNREAD = 1000
_MOST_UNRECORDED = 64
_HELD_S = 60.0


@dataclass(frozen=True, eq=False)
class _Held:
    """An `ended` that came before the last log bytes or checkpoints, and waits for them: what follows from it ends the
    machine. `log_size` in bytes; `seq` of the last checkpoint message."""

    log_size: int
    seq: int
    report: dict[str, Any]


@dataclass
class _Connection:
    """One agent's connection. `outbox` keeps what is sent in order; None closes."""

    place: Place
    outbox: asyncio.Queue[dict[str, Any] | None] = field(default_factory=asyncio.Queue)
    told_seq: int = 0  # of its checkpoint messages
    # Checkpoints that are still to be recorded: who says them faster than that is not listened to meanwhile.
    unrecorded: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_MOST_UNRECORDED))

    def say(self, message: dict[str, Any]) -> None:
        """Raises RuntimeError when the agent takes nothing of what it is told."""
        if self.outbox.qsize() > _MOST_UNREAD:
            raise RuntimeError(f"the agent has left {_MOST_UNREAD} messages unread")
        self.outbox.put_nowait(message)


class Channel:
    """Every connected agent of this daemon. `on_log`: told the job whose log grew.

    `recorded` answers, from the database, for a node: its last checkpoint message, and whether its attempt is live.
    `silent_s`: how long a node may be away before it is given up.
    """

    def __init__(
        self,
        reconciler: Reconciler,
        logs: NodeLogs,
        recorded: Callable[[AttemptKey, int], tuple[int, bool]],
        *,
        clock: Clock,
        beat_s: float,
        silent_s: float,
    ) -> None:
        self._reconciler = reconciler
        self._logs = logs
        self._recorded = recorded
        self._clock = clock
        self._beat_s = beat_s
        self._held_s = min(_HELD_S, silent_s / 2)
        self._held: dict[Place, _Held] = {}
        self._connections: dict[Place, _Connection] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self.on_log: Callable[[int], None] = lambda _job_id: None

    def push(self, key: AttemptKey, wanted: Directive) -> None:
        """Tell an attempt's connected nodes their directive. From any thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._push, key, wanted)

    def _push(self, key: AttemptKey, wanted: Directive) -> None:
        for place, connection in self._connections.items():
            if place[0] == key:
                said = {"type": "directive", "directive": asdict(wanted), "now": self._clock.now()}
                connection.outbox.put_nowait(said)

    def release(self, key: AttemptKey, rank: int) -> None:
        """The node's machine is gone, and so is what was left of its log. From any thread."""
        held = self._held.get((key, rank))
        if held is not None:
            self._let_go((key, rank), held)

    async def serve(self, socket: WebSocket, place: Place) -> None:
        """Speak with one agent until its connection ends."""
        self._loop = asyncio.get_running_loop()
        await socket.accept()
        connection = _Connection(place)
        sender = asyncio.create_task(_send(socket, connection.outbox))
        try:
            await self._listen(socket, connection)
        except (WebSocketDisconnect, OSError, RuntimeError) as error:
            log.info("agent.disconnected", place=place, why=f"{type(error).__name__}: {error}")
        except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError) as error:
            log.warning("agent.protocol_error", place=place, error=f"{type(error).__name__}: {error}")
        finally:
            sender.cancel()
            if self._connections.get(place) is connection:
                del self._connections[place]
                held = self._held.get(place)
                if held is not None and held.report.get("interrupted"):
                    self._let_go(place, held)  # the next attempt waits for this one's end, and does not wait for a log
                (job_id, task, generation), rank = place
                self._reconciler.tell(job_id, events.NodeSilent(task, generation, rank))

    async def _listen(self, socket: WebSocket, connection: _Connection) -> None:
        while True:
            message = await asyncio.wait_for(socket.receive(), self._beat_s * _MISSED_BEATS)
            if message["type"] == "websocket.disconnect":
                return
            if message.get("bytes") is not None:
                self._log_bytes(connection, message["bytes"])
            else:
                await self._message(connection, json.loads(message["text"]))

    def _log_bytes(self, connection: _Connection, frame: bytes) -> None:
        header, _, data = frame.partition(b"\n")
        key, rank = connection.place
        kept = self._logs.append(key, rank, int(json.loads(header)["offset"]), data)
        connection.say({"type": "log_ack", "offset": kept})
        self.on_log(key[0])
        self._look_at_held(connection)

    async def _message(self, connection: _Connection, message: dict[str, Any]) -> None:
        (job_id, task, generation), rank = connection.place
        match message["type"]:
            case "hello":
                await self._hello(connection, message)
            case "report":
                self._report_or_hold(connection, message)
            case "notice":
                if message.get("action") == "rebalance":
                    return
                reach("agent.noticed")
                notice = events.NoticeGiven(task, generation, rank, float(message["deadline"]))
                self._reconciler.tell(job_id, notice)
            case "checkpoint":
                await self._checkpoint(connection, message)
            case "beat":
                pass
            case unknown:
                log.warning("agent.unknown_message", place=connection.place, type=unknown)

    async def _hello(self, connection: _Connection, message: dict[str, Any]) -> None:
        reach("agent.welcoming")
        key, rank = connection.place
        seq, is_live = await asyncio.to_thread(self._recorded, key, rank)
        before = self._connections.get(connection.place)
        if before is not None:
            before.outbox.put_nowait(None)
        self._connections[connection.place] = connection
        kept = self._logs.size(key, rank)
        welcome = {"type": "welcome", "log_offset": kept, "checkpoint_seq": seq, "beat_s": self._beat_s}
        welcome["now"] = self._clock.now()
        connection.outbox.put_nowait({**welcome, "directive": asdict(self._wanted(key, is_live))})
        connection.told_seq = seq
        self._report_or_hold(connection, {**message, **message["report"]})

    def _wanted(self, key: AttemptKey, is_live: bool) -> Directive:
        """The directive to welcome a node with. Only what is recorded as gone is told to stop: a job that is not in
        this daemon's hands (yet) is left as it is, since WAIT moves no node back."""
        known = self._reconciler.directive_of(key)
        return known or (Directive(Want.WAIT) if is_live else STOP)

    def _report_or_hold(self, connection: _Connection, message: dict[str, Any]) -> None:
        """Pass a report on; `ended` only when all that the node has to say is here: what follows ends the machine.

        It is kept no longer than more is waited for: the outcome counts more.
        """
        if message.get("phase") != NodePhase.ENDED.value:
            self._report(connection.place, message)
            return
        reach("agent.ended")
        log_size = int((message.get("logs") or {}).get("size", 0))
        held = _Held(log_size, int((message.get("checkpoints") or {}).get("seq", 0)), message)
        self._held[connection.place] = held
        self._look_at_held(connection)

    def _look_at_held(self, connection: _Connection) -> None:
        """Let an `ended` go that waits for nothing any more; what has come meanwhile earns the rest more time."""
        place = connection.place
        if (before := self._held.get(place)) is None:
            return
        held = replace(before)  # the timer of the one before finds that it is no more
        self._held[place] = held
        if held.log_size <= self._logs.size(*place) and held.seq <= connection.told_seq:
            self._let_go(place, held)
        else:
            asyncio.get_running_loop().call_later(self._held_s, self._let_go, place, held)

    def _let_go(self, place: Place, held: _Held) -> None:
        if self._held.get(place) is held and self._held.pop(place, None) is held:
            self._report(place, held.report)

    def _report(self, place: Place, report: dict[str, Any]) -> None:
        (job_id, task, generation), rank = place
        event = events.NodeReported(
            task,
            generation,
            rank,
            NodePhase(report["phase"]),
            ip=report.get("ip"),
            exit_code=report.get("exit_code"),
            failed_stage=report.get("failed_stage"),
            interrupted=bool(report.get("interrupted")),
            mount_lost=bool(report.get("mount_lost")),
            message=str(report.get("message") or "")[:2000],
        )
        self._reconciler.tell(job_id, event)

    async def _checkpoint(self, connection: _Connection, message: dict[str, Any]) -> None:
        key, rank = connection.place
        seq = int(message["seq"])
        known = {name: message.get(name) for name in ("step", "path", "at")}
        note = Note(f"checkpoint.{message['state']}", key[1], key[2], rank, data=known)
        await connection.unrecorded.acquire()
        done = self._reconciler.post(Turn(key[0], checkpoint=Checkpoint(key, rank, seq, note)))
        loop = asyncio.get_running_loop()

        def acknowledge() -> None:
            connection.unrecorded.release()
            connection.outbox.put_nowait({"type": "checkpoint_ack", "seq": seq})

        def recorded(_: Future[None]) -> None:
            loop.call_soon_threadsafe(acknowledge)

        done.add_done_callback(recorded)
        connection.told_seq = max(connection.told_seq, seq)
        self._look_at_held(connection)


async def _send(socket: WebSocket, outbox: asyncio.Queue[dict[str, Any] | None]) -> None:
    while (message := await outbox.get()) is not None:
        await socket.send_text(json.dumps(message))
    await socket.close()
