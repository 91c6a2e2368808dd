"""One agent's connection: what it has said, and what it is to be told, in order."""

from __future__ import annotations

import asyncio
import json
import uuid
from dataclasses import dataclass, field
from typing import Any

from starlette.websockets import WebSocket

from perdure.controller.clock import Pace
from perdure.controller.smallqueue import SmallQueue
from perdure.controller.store.connections import Place
from perdure.recovery.directive import Directive
from perdure.recovery.statuses import NodePhase

_MOST_UNREAD = 1000
_MOST_UNRECORDED = 64


@dataclass(eq=False, slots=True)
class Connection:
    """One agent's connection. `outbox` keeps what is sent in order; None closes.

    `beat_s`: how often the node gives a sign of life. `told`: the last directive that was put in its outbox.
    `report`: the last that was passed on, at `passed_on_at` (monotonic). `kept`: bytes of its log that are.
    `is_over`: it was hung up; what still comes of it may be old. `is_leaving`: the machine goes by itself, soon.
    """

    place: Place
    beat_s: float = 5.0
    token: str = field(default_factory=lambda: uuid.uuid4().hex)
    outbox: SmallQueue[dict[str, Any] | None] = field(default_factory=SmallQueue)
    told_seq: int = 0  # of its checkpoint messages
    # When the work in each step's checkpoint had been done, until that checkpoint is durable.
    saved_at: dict[int, float] = field(default_factory=dict)
    told: Directive | None = None
    report: dict[str, Any] | None = None
    passed_on_at: float = 0.0
    is_over: bool = False
    heard_at: float = 0.0
    kept: int = 0
    is_leaving: bool = False
    # Checkpoints that are still to be recorded: who says them faster than that is not listened to meanwhile.
    unrecorded: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_MOST_UNRECORDED))

    def say(self, message: dict[str, Any]) -> None:
        """Raises RuntimeError when the agent takes nothing of what it is told."""
        if self.outbox.qsize() > _MOST_UNREAD:
            raise RuntimeError(f"the agent has left {_MOST_UNREAD} messages unread")
        self.outbox.put_nowait(message)

    def tell(self, wanted: Directive, now: float, pace: Pace) -> None:
        """Send a directive, unless it is what was sent last. `now`: the controller's clock, which it counts by."""
        if wanted != self.told:
            self.told = wanted
            self.outbox.put_nowait({"type": "directive", **in_world(wanted, now, pace)})

    def answers(self, wanted: Directive) -> bool:
        """Whether it was made after the roll call, if there is one, or has nothing more to say."""
        called_at = self.told.roll_call_at if self.told else None
        has_ended = self.report is not None and self.report["phase"] == NodePhase.ENDED.value
        return wanted.roll_call_at in (None, called_at) or has_ended

    def hang_up(self) -> None:
        """End it: the node calls again, and says again all that still holds."""
        self.is_over = True
        self.outbox.put_nowait(None)

    async def send_to(self, socket: WebSocket) -> None:
        """Send what it is told as it is told, until it is hung up."""
        while (message := await self.outbox.get()) is not None:
            await socket.send_text(json.dumps(message))
        await socket.close()


def in_world(wanted: Directive, now: float, pace: Pace) -> dict[str, Any]:
    """A directive as it is sent, with the time by which its deadline counts."""
    deadline = None if wanted.deadline is None else pace.in_world(wanted.deadline)
    sent = {"want": wanted.want, "node_ips": wanted.node_ips, "deadline": deadline, "reason": wanted.reason}
    return {"directive": sent, "now": pace.in_world(now)}
