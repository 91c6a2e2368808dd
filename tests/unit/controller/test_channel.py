"""What the daemon makes of an end whose log is not complete, and of agents that do not listen."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perdure.controller.attendance import Arrival
from perdure.controller.channel import Channel, Place
from perdure.controller.clock import ManualClock
from perdure.controller.connection import _MOST_UNREAD, _MOST_UNRECORDED, Connection
from perdure.controller.keyring import AttemptKey
from perdure.controller.nodelogs import NodeLogs
from perdure.recovery import events
from perdure.recovery.directive import Directive, Want
from perdure.recovery.statuses import NodePhase

KEY, RANK = (7, 0, 1), 0
ENDED = {"phase": "ended", "exit_code": 3, "failed_stage": "run"}
SIZE = 10


class Reconciler:
    """Keeps what it is told, and records nothing."""

    def __init__(self) -> None:
        self.told: list[events.Event] = []
        self.wanted: Directive | None = None
        self.deaf = iter(())

    def was_deaf_within(self, _seconds: float) -> bool:
        return next(self.deaf, False)

    def tell(self, _job_id: int, event: events.Event) -> None:
        self.told.append(event)

    def post(self, _turn: Any) -> Future[None]:
        return Future()

    def jobs(self) -> int:
        return 1

    def directive_of(self, _key: AttemptKey) -> Directive | None:
        return self.wanted

    @property
    def exit_codes(self) -> list[int | None]:
        return [e.exit_code for e in self.told if isinstance(e, events.NodeReported) and e.phase is NodePhase.ENDED]


class Attendant:
    """Knows the node's checkpoints up to `seq`, and tells it to wait."""

    def __init__(self, seq: int) -> None:
        self._seq = seq

    def arrive(self, _place: Place, _token: str) -> Arrival:
        return Arrival(self._seq, Directive(Want.WAIT))

    def leave(self, _place: Place, _token: str) -> bool:
        return True


@pytest.fixture
def reconciler() -> Reconciler:
    return Reconciler()


@pytest.fixture
def channel(reconciler: Any, tmp_path: Path) -> Channel:
    attendance: Any = Attendant(0)
    return Channel(reconciler, NodeLogs(tmp_path), attendance, clock=ManualClock(), beat_s=5.0, silent_s=0.4)


def connection() -> Connection:
    return Connection((KEY, RANK))


def frame(offset: int, data: bytes) -> bytes:
    return b'{"offset": %d}\n' % offset + data


def test_an_end_waits_for_the_rest_of_its_log(channel: Channel, reconciler: Reconciler) -> None:
    async def story() -> None:
        node = connection()
        await channel._message(node, {"type": "report", **ENDED, "logs": {"size": SIZE}})
        assert reconciler.exit_codes == []
        await channel._log_bytes(node, frame(0, b"x" * 4))
        assert reconciler.exit_codes == []
        await channel._log_bytes(node, frame(4, b"x" * 6))
        await channel._log_bytes(node, frame(4, b"x" * 6))

    asyncio.run(story())
    assert reconciler.exit_codes == [3], "once"


def test_an_end_waits_for_a_node_whose_line_broke_but_not_for_ever(channel: Channel, reconciler: Reconciler) -> None:
    async def story() -> None:
        said = {"type": "report", **ENDED, "logs": {"size": SIZE}}
        await channel._message(connection(), said)
        first = channel._held[KEY, RANK]
        await channel._message(connection(), said)  # its line broke, and it calls again
        channel._let_go(first)
        assert reconciler.exit_codes == [], "the time of the second has just begun"
        while not reconciler.exit_codes:
            await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(story(), 20))
    assert reconciler.exit_codes == [3], "the outcome counts more than the rest of the log"


def test_an_end_waits_longer_while_nobody_could_be_heard(channel: Channel, reconciler: Reconciler) -> None:
    """The database was away: the node could not send the rest of its log."""

    async def story() -> None:
        asked = reconciler.deaf = iter([True, True])
        await channel._message(connection(), {"type": "report", **ENDED, "logs": {"size": SIZE}})
        while not reconciler.exit_codes:
            assert channel._held
            await asyncio.sleep(0.01)
        assert next(asked, None) is None, "it was asked until it could be heard again"

    asyncio.run(asyncio.wait_for(story(), 20))


def test_an_end_is_told_before_the_machines(channel: Channel, reconciler: Reconciler) -> None:
    async def story() -> None:
        await channel._message(connection(), {"type": "report", **ENDED, "logs": {"size": SIZE}})
        channel.release(KEY, 1)
        assert reconciler.exit_codes == []
        channel.release(KEY, RANK)
        channel.release(KEY, RANK)

    asyncio.run(story())
    assert reconciler.exit_codes == [3]


@pytest.mark.parametrize("ahead_s", [0.0, 5000.0, -5000.0])
def test_a_notices_deadline_is_on_the_nodes_clock(channel: Channel, reconciler: Reconciler, ahead_s: float) -> None:
    now = ManualClock().now()
    said = {"type": "notice", "action": "terminate", "source": "imds-v2"}
    at = now + ahead_s
    asyncio.run(channel._message(connection(), {**said, "deadline": at + 120, "at": at}))
    (told,) = reconciler.told
    assert told == events.NoticeGiven(0, 1, RANK, now + 120)


class Socket:
    """Says hello, and then nothing, until it is closed."""

    def __init__(self) -> None:
        self.said: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.say({"type": "hello", "report": {"phase": "booted"}})
        self.heard: list[str] = []

    def say(self, message: dict[str, Any]) -> None:
        self.said.put_nowait({"type": "websocket.receive", "text": json.dumps(message)})

    async def accept(self) -> None:
        pass

    async def receive(self) -> dict[str, Any]:
        return await self.said.get()

    async def send_text(self, text: str) -> None:
        self.heard.append(text)

    async def close(self) -> None:
        self.said.put_nowait({"type": "websocket.disconnect"})


@pytest.mark.parametrize("is_leaving", [True, False])
def test_an_end_waits_for_a_broken_line_where_its_machine_stays(
    channel: Channel, reconciler: Reconciler, is_leaving: bool
) -> None:
    """Whatever the end's cause: a user's cancel and a drain end the machine, too."""

    async def story() -> None:
        socket: Any = Socket()
        if is_leaving:
            socket.say({"type": "notice", "action": "terminate", "deadline": 60.0})
        socket.say({"type": "report", **ENDED, "interrupted": True, "logs": {"size": SIZE}})
        await socket.close()
        await channel.serve(socket, (KEY, RANK))
        assert reconciler.exit_codes == ([3] if is_leaving else [])
        again = connection()
        await channel._message(again, {"type": "report", **ENDED, "interrupted": True, "logs": {"size": SIZE}})
        await channel._log_bytes(again, frame(0, b"x" * SIZE))

    asyncio.run(story())
    assert reconciler.exit_codes[-1:] == [3]


def test_who_has_to_answer_a_roll_call_calls_again(channel: Channel, reconciler: Reconciler) -> None:
    running = Directive(Want.RUN)

    async def serve(*messages: dict[str, Any], wanted: Directive) -> list[str]:
        """What the node hears: the welcome, and what follows from `wanted`."""
        socket: Any = Socket()
        served = asyncio.create_task(channel.serve(socket, (KEY, RANK)))
        while not socket.heard:
            await asyncio.sleep(0.01)
        channel.push(KEY, wanted)
        await asyncio.sleep(0)
        for message in messages:
            socket.say(message)
        while not served.done() and len(socket.heard) < 2:
            await asyncio.sleep(0.01)
        is_hung_up = served.done()
        await socket.close()
        await served
        return [json.loads(text)["type"] for text in socket.heard] + (["hung up"] if is_hung_up else [])

    async def story() -> None:
        stale = {"type": "report", "phase": "running"}
        called = replace(running, roll_call_at=1.0)
        assert await serve(stale, wanted=running) == ["welcome", "directive"]
        before = len(reconciler.told)
        assert await serve(stale, wanted=called) == ["welcome", "hung up"]
        reported = [e for e in reconciler.told[before:] if isinstance(e, events.NodeReported)]
        assert [e.phase for e in reported] == [NodePhase.BOOTED], "what was on its way may be older than the call"
        ended = {"type": "report", **ENDED, "logs": {"size": 0}}
        assert await serve(ended, wanted=called) == ["welcome", "hung up"]
        assert reconciler.exit_codes == [3], "an end stays true"
        reconciler.wanted = called
        assert await serve(wanted=replace(called, node_ips=("10.0.0.1",))) == ["welcome", "directive"]

    asyncio.run(asyncio.wait_for(story(), 20))


def test_all_are_hung_up_on_where_nobody_can_be_heard(channel: Channel) -> None:
    async def story() -> None:
        sockets: list[Any] = [Socket(), Socket()]
        served = [asyncio.create_task(channel.serve(socket, (KEY, rank))) for rank, socket in enumerate(sockets)]
        while not all(socket.heard for socket in sockets):
            await asyncio.sleep(0.01)
        await asyncio.to_thread(channel.hang_up)
        await asyncio.gather(*served)

    asyncio.run(asyncio.wait_for(story(), 3))  # long before a beat is missed
    assert channel.connections() == []


def test_who_reads_nothing_of_what_it_is_told_is_hung_up_on(channel: Channel) -> None:
    async def story() -> int:
        node = connection()
        for n in range(10 * _MOST_UNREAD):
            try:
                await channel._log_bytes(node, frame(n, b"x"))
            except RuntimeError:
                break
        return node.outbox.qsize()

    assert asyncio.run(story()) <= _MOST_UNREAD + 1


def test_checkpoints_are_heard_no_faster_than_they_are_recorded(channel: Channel) -> None:
    async def story() -> int:
        node, heard = connection(), 0
        try:
            for seq in range(1, 10 * _MOST_UNRECORDED):
                said = {"type": "checkpoint", "seq": seq, "state": "saved"}
                await asyncio.wait_for(channel._message(node, said), 0.1)
                heard += 1
        except TimeoutError:
            pass
        return heard

    assert asyncio.run(story()) == _MOST_UNRECORDED
