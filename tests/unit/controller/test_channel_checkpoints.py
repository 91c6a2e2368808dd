"""The daemon's end of the agents' channel: what a node has said last is acted on only when all of it is here."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from perdure.controller.attendance import Arrival
from perdure.controller.channel import Channel, Place
from perdure.controller.clock import ManualClock
from perdure.controller.nodelogs import NodeLogs
from perdure.recovery import events
from perdure.recovery.directive import Directive, Want

KEY = (1, 0, 1)
ENDED = {"phase": "ended", "exit_code": 0, "interrupted": True}


class Reconciler:
    """Remembers what it is told, in order."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def tell(self, _job: int, event: events.Event) -> None:
        self.told.append(type(event).__name__)

    def post(self, turn: Any) -> Future[None]:
        self.told.append(turn.checkpoint.note.kind)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def jobs(self) -> int:
        return 1

    def directive_of(self, _key: object) -> None:
        return None


class Attendant:
    """Knows the node's checkpoints up to `seq`, and tells it to wait."""

    def __init__(self, seq: int) -> None:
        self._seq = seq

    def arrive(self, _place: Place, _token: str) -> Arrival:
        return Arrival(self._seq, Directive(Want.WAIT))

    def leave(self, _place: Place, _token: str) -> bool:
        return True


class Socket:
    """An agent's connection that says what it is given, and then breaks."""

    def __init__(self, *said: dict[str, Any] | bytes) -> None:
        frames = [{"bytes": f} if isinstance(f, bytes) else {"text": json.dumps(f)} for f in said]
        self.frames = [{"type": "websocket.receive", **frame} for frame in frames]

    async def accept(self) -> None: ...
    async def close(self) -> None: ...
    async def send_text(self, text: str) -> None: ...

    async def receive(self) -> dict[str, Any]:
        return self.frames.pop(0) if self.frames else {"type": "websocket.disconnect"}


def channel_of(reconciler: Any, directory: Path, *, seq: int) -> Channel:
    attendance: Any = Attendant(seq)
    return Channel(reconciler, NodeLogs(directory), attendance, clock=ManualClock(), beat_s=5.0, silent_s=0.4)  # type: ignore[arg-type]


def hello(*, log_bytes: int, checkpoints: int) -> dict[str, Any]:
    return {"type": "hello", "report": ENDED, "logs": {"size": log_bytes}, "checkpoints": {"seq": checkpoints}}


CHECKPOINT = {"type": "checkpoint", "seq": 1, "state": "durable", "step": 5, "path": "/c/5", "at": 1.0}
LOG = b'{"offset": 0}\nbye\n'


@pytest.mark.parametrize("rest", [(CHECKPOINT, LOG), (LOG, CHECKPOINT)])
def test_an_end_said_again_waits_for_the_checkpoints_and_the_log_that_came_before_it(
    tmp_path: Path, rest: tuple[Any, ...]
) -> None:
    reconciler = Reconciler()
    channel = channel_of(reconciler, tmp_path, seq=0)
    socket = Socket(hello(log_bytes=4, checkpoints=1), *rest)
    asyncio.run(channel.serve(socket, (KEY, 0)))  # type: ignore[arg-type]
    assert reconciler.told == ["checkpoint.durable", "NodeReported", "NodeSilent"]


def test_what_is_recorded_already_is_not_waited_for(tmp_path: Path) -> None:
    reconciler = Reconciler()
    channel = channel_of(reconciler, tmp_path, seq=1)
    asyncio.run(channel.serve(Socket(hello(log_bytes=0, checkpoints=1)), (KEY, 0)))  # type: ignore[arg-type]
    assert reconciler.told == ["NodeReported", "NodeSilent"]
