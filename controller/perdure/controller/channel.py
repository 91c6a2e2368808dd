"""The daemon's end of the agents' channel (docs/agent-protocol.md): reports in, directives and acknowledgements out.

Lives on the event loop. What agents say goes to the reconciler as events; log bytes go straight to where they are kept.
Whatever asks a database or a disk is done in a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

import structlog
from starlette.websockets import WebSocket, WebSocketDisconnect

from perdure.controller import crowd
from perdure.controller.attendance import Attendance
from perdure.controller.clock import REAL_TIME, Clock, Pace
from perdure.controller.connection import Connection, in_world
from perdure.controller.crashpoints import reach
from perdure.controller.keyring import AttemptKey
from perdure.controller.nodelogs import Logs
from perdure.controller.offload import Offload, Singly
from perdure.controller.patience import Patience
from perdure.controller.reconcile import Reconciler
from perdure.controller.store.connections import Place as Place
from perdure.controller.store.database import UNAVAILABLE
from perdure.controller.turns import Checkpoint, Turn
from perdure.recovery import events
from perdure.recovery.actions import Note
from perdure.recovery.directive import Directive
from perdure.recovery.statuses import NodePhase

log = structlog.get_logger(__name__)

_MISSED_BEATS = 3
_HELD_S = 60.0


@dataclass(frozen=True, eq=False)
class _Held:
    """An `ended` that came before the last log bytes or checkpoints, and waits for them: what follows from it ends the
    machine. `log_size` and `kept` in bytes; `seq` of the last checkpoint message."""

    connection: Connection
    log_size: int
    seq: int
    report: dict[str, Any]
    kept: int = 0


class Channel:
    """Every connected agent of this daemon. `on_log`: told the job whose log grew.

    `offload`: does what asks the database or a disk; without one, each call of `logs` and `attendance` has a thread.
    `silent_s`: how long a node may be away before it is given up. `pace`: of `clock` beside the world, where nodes are.
    """

    def __init__(
        self,
        reconciler: Reconciler,
        logs: Logs,
        attendance: Attendance,
        *,
        clock: Clock,
        beat_s: float,
        silent_s: float,
        pace: Pace = REAL_TIME,
        monotonic: Callable[[], float] = time.monotonic,
        offload: Offload | None = None,
    ) -> None:
        self._offload = offload or Singly(logs, attendance)
        self._reconciler = reconciler
        self._logs = logs
        self._attendance = attendance
        self._clock = clock
        self._pace = pace
        self._monotonic = monotonic
        self._beat_s = beat_s
        self._held_s = min(_HELD_S, silent_s / 2)
        self._held: dict[Place, _Held] = {}
        self._connections: dict[Place, Connection] = {}
        self._ranks: dict[AttemptKey, set[int]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self.on_log: Callable[[int], None] = lambda _job_id: None

    def push(self, key: AttemptKey, wanted: Directive) -> None:
        """Tell an attempt's connected nodes their directive. From any thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._push, key, wanted)

    def _push(self, key: AttemptKey, wanted: Directive) -> None:
        for rank in self._ranks.get(key, ()):
            self.tell(self._connections[key, rank], wanted)

    def tell(self, connection: Connection, wanted: Directive) -> None:
        """Tell one node its directive, on the event loop. Who has to call again for it hears it then."""
        if connection.answers(wanted) or connection.place in self._held:
            connection.tell(wanted, self._clock.now(), self._pace)
        elif not connection.is_over:
            connection.hang_up()

    def release(self, key: AttemptKey, rank: int) -> None:
        """The node's machine is gone, and so is what was left of its log. From any thread."""
        held = self._held.get((key, rank))
        if held is not None:
            self._let_go(held)

    def hang_up(self) -> None:
        """End every connection: each node calls again, and finds whoever can hear it. From any thread."""
        if self._connections and self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._hang_up)

    def _hang_up(self) -> None:
        log.warning("agents.let_go", nodes=len(self._connections))
        for connection in self._connections.values():
            connection.hang_up()

    def hold(self, connection: Connection) -> None:
        """From now on this is the node's connection."""
        key, rank = connection.place
        self._connections[connection.place] = connection
        self._ranks.setdefault(key, set()).add(rank)

    def connections(self) -> list[Connection]:
        """Those that there are. From any thread."""
        return list(self._connections.values())

    async def serve(self, socket: WebSocket, place: Place) -> None:
        """Speak with one agent until its connection ends."""
        self._loop = asyncio.get_running_loop()
        await socket.accept()
        connection = Connection(place, self._beat_s)
        sender = asyncio.create_task(connection.send_to(socket))
        try:
            await self._listen(socket, connection)
        except (WebSocketDisconnect, OSError, RuntimeError, *UNAVAILABLE) as error:
            log.info("agent.disconnected", place=place, why=f"{type(error).__name__}: {error}")
        except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError) as error:
            log.warning("agent.protocol_error", place=place, error=f"{type(error).__name__}: {error}")
        finally:
            sender.cancel()
            await self._left(connection)

    async def _left(self, connection: Connection) -> None:
        place = connection.place
        if self._connections.get(place) is not connection:
            return
        del self._connections[place]
        self._ranks[place[0]].discard(place[1])
        if not self._ranks[place[0]]:
            del self._ranks[place[0]]
        held = self._held.get(place)
        if held is not None and connection.is_leaving:
            self._let_go(held)  # the machine may be gone before it calls again, and the next attempt waits for this end
        try:
            is_silent = await self._offload.leave(place, connection.token)
        except UNAVAILABLE as error:
            log.warning("database.refused", place=place, error=str(error))
            is_silent = True
        if is_silent:
            (job_id, task, generation), rank = place
            self._reconciler.tell(job_id, events.NodeSilent(task, generation, rank))

    async def _listen(self, socket: WebSocket, connection: Connection) -> None:
        """Raises TimeoutError once nothing has been heard for three beats, be it a mere ping."""
        loop = asyncio.get_running_loop()
        connection.heard_at = loop.time()

        def heard_at() -> float:
            return max(connection.heard_at, getattr(socket, "heard_at", 0.0))

        async with Patience(heard_at, self._beat_s * _MISSED_BEATS) as patience:
            while True:
                patience.is_busy, patience.silent_s = False, connection.beat_s * _MISSED_BEATS
                message = await socket.receive()
                connection.heard_at, patience.is_busy = loop.time(), True
                if message["type"] == "websocket.disconnect":
                    return
                if message.get("bytes") is not None:
                    await self._log_bytes(connection, message["bytes"])
                else:
                    await self._message(connection, json.loads(message["text"]))

    async def _log_bytes(self, connection: Connection, frame: bytes) -> None:
        header, _, data = frame.partition(b"\n")
        key, rank = connection.place
        connection.kept = kept = await self._offload.append(key, rank, int(json.loads(header)["offset"]), data)
        connection.say({"type": "log_ack", "offset": kept})
        self.on_log(key[0])
        self._look_at_held(connection, kept)

    async def _message(self, connection: Connection, message: dict[str, Any]) -> None:
        (job_id, task, generation), rank = connection.place
        match message["type"]:
            case "hello":
                await self._hello(connection, message)
            case "report":
                await self._report_or_hold(connection, message)
            case "notice":
                if message.get("action") == "rebalance":
                    self._reconciler.at_risk(connection.place[0], rank)
                    return
                reach("agent.noticed")
                connection.is_leaving = True
                deadline = float(message["deadline"])
                if message.get("at") is not None:
                    deadline += self._pace.in_world(self._clock.now()) - float(message["at"])
                notice = events.NoticeGiven(task, generation, rank, self._pace.of_world(deadline))
                self._reconciler.tell(job_id, notice)
            case "checkpoint":
                await self._checkpoint(connection, message)
            case "beat":
                pass
            case unknown:
                log.warning("agent.unknown_message", place=connection.place, type=unknown)

    async def _hello(self, connection: Connection, message: dict[str, Any]) -> None:
        reach("agent.welcoming")
        key = connection.place[0]
        arrival, connection.kept = await self._offload.arrive(connection.place, connection.token)
        before = self._connections.get(connection.place)
        if before is not None:
            before.hang_up()
        self.hold(connection)
        # What the reconciler knows is newer than what was read, if it has the job; it tells of no change before this.
        connection.told = self._reconciler.directive_of(key) or arrival.wanted
        connection.told_seq = arrival.checkpoint_seq
        welcome = {"type": "welcome", "log_offset": connection.kept, "checkpoint_seq": arrival.checkpoint_seq}
        nodes = max(len(self._connections), self._reconciler.jobs())
        connection.beat_s = crowd.beat_s(nodes, self._beat_s)
        welcome |= {
            "beat_s": connection.beat_s,
            "beat": "ping",
            "calls_within_s": crowd.calls_within_s(nodes),
            **in_world(connection.told, self._clock.now(), self._pace),
        }
        connection.outbox.put_nowait(welcome)
        await self._report_or_hold(connection, {**message, **message["report"]})

    async def _report_or_hold(self, connection: Connection, message: dict[str, Any]) -> None:
        """Pass a report on; `ended` only when all that the node has to say is here: what follows ends the machine.

        It is kept no longer than more is waited for: the outcome counts more.
        """
        if message.get("phase") != NodePhase.ENDED.value:
            if not connection.is_over:
                self.pass_on(connection, message)
            return
        reach("agent.ended")
        log_size = int((message.get("logs") or {}).get("size", 0))
        seq = int((message.get("checkpoints") or {}).get("seq", 0))
        self._held[connection.place] = _Held(connection, log_size, seq, message)
        self._look_at_held(connection, connection.kept)

    def _look_at_held(self, connection: Connection, kept: int | None = None) -> None:
        """Let an `ended` go that waits for nothing any more; what has come meanwhile earns the rest more time.

        `kept`: bytes of its log; None where no more of them have come.
        """
        if (before := self._held.get(connection.place)) is None:
            return
        # The timer of the one before finds that it is no more.
        held = replace(before, connection=connection, kept=before.kept if kept is None else kept)
        self._held[connection.place] = held
        if held.log_size <= held.kept and held.seq <= connection.told_seq:
            self._let_go(held)
        else:
            asyncio.get_running_loop().call_later(self._held_s, self._wait_no_more, held)

    def _wait_no_more(self, held: _Held) -> None:
        """While the database was away the node could not say the rest: it is given its time from then on."""
        if self._held.get(held.connection.place) is held and self._reconciler.was_deaf_within(self._held_s):
            asyncio.get_running_loop().call_later(self._held_s, self._wait_no_more, held)
        else:
            self._let_go(held)

    def _let_go(self, held: _Held) -> None:
        place = held.connection.place
        if self._held.get(place) is held and self._held.pop(place, None) is held:
            self.pass_on(held.connection, held.report)

    def pass_on(self, connection: Connection, report: dict[str, Any]) -> None:
        """Hand a report to the reconciler. From any thread."""
        (job_id, task, generation), rank = connection.place
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
            message=str(report.get("message") or "").replace("\0", "")[:2000],  # PostgreSQL keeps no NUL
        )
        connection.report, connection.passed_on_at = report, self._monotonic()
        self._reconciler.tell(job_id, event)

    async def _checkpoint(self, connection: Connection, message: dict[str, Any]) -> None:
        key, rank = connection.place
        seq = int(message["seq"])
        known = {name: message.get(name) for name in ("step", "path", "at")}
        note = Note(f"checkpoint.{message['state']}", key[1], key[2], rank, data=known)
        await connection.unrecorded.acquire()
        event = _saved(connection, message, self._pace) or events.Tick()
        done = self._reconciler.post(Turn(key[0], event, checkpoint=Checkpoint(key, rank, seq, note)))
        loop = asyncio.get_running_loop()

        def acknowledge() -> None:
            connection.unrecorded.release()
            connection.outbox.put_nowait({"type": "checkpoint_ack", "seq": seq})

        def recorded(_: Future[None]) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(acknowledge)

        done.add_done_callback(recorded)
        connection.told_seq = max(connection.told_seq, seq)
        self._look_at_held(connection)


def _saved(connection: Connection, message: dict[str, Any], pace: Pace) -> events.Saved | None:
    """What a checkpoint message says of durable work. A checkpoint holds what had been done when it was written, which
    may be long before its last byte reached the bucket."""
    step, at = message.get("step"), message.get("at")
    if not isinstance(step, int) or not isinstance(at, int | float):
        return None
    if message["state"] in ("saved", "committed"):
        connection.saved_at.setdefault(step, float(at))
    written_at = connection.saved_at.get(step)
    if message["state"] != "durable" or written_at is None:
        return None
    connection.saved_at = {known: when for known, when in connection.saved_at.items() if known > step}
    (_, task, generation), _ = connection.place
    total_steps = message.get("total_steps")
    total_steps = total_steps if isinstance(total_steps, int) and total_steps > 0 else None
    return events.Saved(task, generation, pace.of_world(written_at), step, total_steps)
