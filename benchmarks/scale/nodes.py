"""The machines of the simulated cloud, all of them on one event loop.

Each speaks the protocol of agents (docs/reference/agent-protocol.md) over a socket of its own. Their workloads do
nothing and never end; some of them print.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import os
import struct
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from perdure.agent.link.channel import Backoff

_LINE = b"step 001234 loss 0.12345 lr 0.000300 throughput 12345 tokens/s epoch 3 of 10 eta 01:23:45\n"
_TEXT, _BINARY, _CLOSE, _PING, _PONG = 1, 2, 8, 9, 10
_PHASE_OF = {"setup": ("mounting", "ready"), "run": ("running",)}


class Node(asyncio.Protocol):
    """One machine with its agent."""

    def __init__(self, world: World, machine: dict[str, Any], token: str) -> None:
        self.world = world
        self.machine = machine
        self.token = token
        self.phase = "booted"
        self.target = ""
        self.is_off = False
        self.log_size = 0  # bytes that the workload has printed
        self.log_sent = 0
        self.printed_at: dict[int, float] = {}  # log size → when (monotonic), until it is acknowledged
        self.heartbeat_interval_s = 5.0
        self.received_at = 0.0
        self.notice: dict[str, Any] | None = None
        self.is_welcome = False
        self.daemon_address = ("", 0)  # of the daemon that it connected to last
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._is_open = False
        self._heartbeat: asyncio.TimerHandle | None = None
        self._backoff = Backoff()

    # --- the connection -----------------------------------------------------------------------------------------------

    async def boot(self) -> None:
        """Fetch the spec, as an agent does first, with retries until the controller answers; then connect."""
        backoff = Backoff()
        while not self.is_off:
            try:
                await self.world.get("/agent/v1/spec", self.token, self.machine["rank"])
                break
            except OSError:
                await asyncio.sleep(backoff.wait_s(nobody_answered=True))
        await self.call()

    async def call(self) -> None:
        """Connect, with retries until the controller answers, as an agent does."""
        while not self.is_off:
            try:
                host, port = self.daemon_address = self.world.next_address()
                await asyncio.get_running_loop().create_connection(lambda: self, host, port)
                return
            except OSError:
                await asyncio.sleep(self._backoff.wait_s(nobody_answered=True))

    def connection_made(self, transport: Any) -> None:
        self._transport, self._is_open = transport, False
        self._buffer.clear()
        key = base64.b64encode(os.urandom(16)).decode()
        transport.write(
            f"GET /agent/v1/channel HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\n"
            f"Connection: Upgrade\r\nSec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n"
            f"Authorization: Bearer {self.token}\r\nPerdure-Rank: {self.machine['rank']}\r\n\r\n".encode()
        )

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002
        self._transport, self.is_welcome = None, False
        if self._heartbeat is not None:
            self._heartbeat.cancel()
        if not self.is_off:
            self.world.counts["lost connections"] += 1
            self.world.spawn(self._call_again())

    async def _call_again(self) -> None:
        await asyncio.sleep(self._backoff.wait_s())
        await self.call()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if not self._is_open:
            head, separator, rest = bytes(self._buffer).partition(b"\r\n\r\n")
            if not separator:
                return
            if not head.startswith(b"HTTP/1.1 101"):
                self.world.counts[f"channel: {_first_line(head)}"] += 1
                self.hang_up()
                return
            self._is_open, self._buffer = True, bytearray(rest)
            logs, report = {"size": self.log_size}, {"phase": self.phase, "ip": "10.0.0.1", "mounts": []}
            self._send_message(
                {"type": "hello", "report": report, "logs": logs, "checkpoints": {"seq": 0}, "at": time.time()}
            )
            if self.notice is not None:
                self._send_message(self.notice)
        while (frame := self._next_frame()) is not None:
            self._handle_frame(*frame)

    def _next_frame(self) -> tuple[int, bytes] | None:
        """A complete frame of the server, which never masks its frames; None until one has arrived."""
        data = self._buffer
        if len(data) < 2:
            return None
        size, start = data[1] & 127, 2
        if size >= 126:
            form, start = (">H", 4) if size == 126 else (">Q", 10)
            if len(data) < start:
                return None
            (size,) = struct.unpack(form, data[2:start])
        if len(data) < start + size:
            return None
        opcode, payload = data[0] & 15, bytes(data[start : start + size])
        del data[: start + size]
        return opcode, payload

    def _handle_frame(self, opcode: int, payload: bytes) -> None:
        self.received_at = time.monotonic()
        if opcode == _PING:
            self._send(_PONG, payload)
        elif opcode == _CLOSE:
            self.hang_up()
        elif opcode == _TEXT:
            message = json.loads(payload)
            match message["type"]:
                case "welcome":
                    self.heartbeat_interval_s, self.is_welcome = message["heartbeat_interval_s"], True
                    self._backoff.reset()
                    self._backoff.reconnect_spread_s = message["reconnect_spread_s"]
                    self.log_sent = message["log_offset"]
                    self._obey(message["directive"])
                    self._keep_alive()
                case "directive":
                    self._obey(message["directive"])
                case "log_ack":
                    self._on_log_ack(message["offset"])

    # --- what the agent does ------------------------------------------------------------------------------------------

    def _obey(self, directive: dict[str, Any]) -> None:
        self.target = directive["target"]
        if self.target in _PHASE_OF and self.phase not in ("running", "ended"):
            for phase in _PHASE_OF[self.target]:
                self.report(phase)
        elif self.target == "drain" and self.phase != "ended":
            self.report("ended", exit_code=143, interrupted=True)
        elif self.target == "stop":
            self.world.counts["stopped"] += 1

    def report(self, phase: str, **more: Any) -> None:
        if phase == "running" and self.phase != "running":
            self.world.running(self)
        self.phase = phase
        report = {"phase": phase, "ip": "10.0.0.1", "mounts": [], "exit_code": None, "failed_stage": None}
        logs = {"size": self.log_size}
        self._send_message({"type": "report", **report, **more, "logs": logs, "checkpoints": {"seq": 0}})

    def give_notice(self, seconds: float) -> None:
        """The metadata service announces a preemption."""
        now = time.time()
        self.notice = {"type": "notice", "action": "preempt", "source": "bench", "deadline": now + seconds, "at": now}
        self._send_message(self.notice)

    def print_bytes(self, data: bytes) -> None:
        """The workload prints."""
        if self._transport is None or not self._is_open:
            return
        header = b'{"offset": %d}\n' % self.log_size
        self.log_size += len(data)
        self.printed_at[self.log_size] = time.monotonic()
        self._send(_BINARY, header + data)

    def _on_log_ack(self, offset: int) -> None:
        now = time.monotonic()
        for size in [size for size in self.printed_at if size <= offset]:
            self.world.log_delays.append(now - self.printed_at.pop(size))

    def _keep_alive(self) -> None:
        if self._transport is None:
            return
        if self._heartbeat is not None:
            self._heartbeat.cancel()
        if self.received_at and time.monotonic() - self.received_at > max(3.0, 3 * self.heartbeat_interval_s):
            self.world.counts["missed heartbeats"] += 1
            self.hang_up()
            return
        self._send(_PING, b"")
        self._heartbeat = asyncio.get_running_loop().call_later(self.heartbeat_interval_s * 0.9, self._keep_alive)

    def hang_up(self) -> None:
        """Abort the connection without a closing handshake."""
        if self._transport is not None:
            self._transport.abort()

    def power_off(self) -> None:
        self.is_off = True
        self.hang_up()

    def fall_silent(self) -> None:
        """The machine freezes: its connection stays open, and it sends nothing more."""
        self.is_off = True
        if self._heartbeat is not None:
            self._heartbeat.cancel()
        if self._transport is not None:
            self._transport.pause_reading()

    def _send_message(self, message: dict[str, Any]) -> None:
        self._send(_TEXT, json.dumps(message).encode())

    def _send(self, opcode: int, payload: bytes) -> None:
        """Send a frame masked with zeros: a valid mask that costs the load generator nothing."""
        if self._transport is None:
            return
        size = len(payload)
        head = bytes([128 | opcode, 128 | min(size, 126 if size < 65536 else 127)])
        if size >= 126:
            head += struct.pack(">H" if size < 65536 else ">Q", size)
        self._transport.write(head + b"\0\0\0\0" + payload)


class World:
    """Every machine, and what the load generator observed of it. `addresses`: the daemons' addresses by home."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.addresses: dict[Path, tuple[str, int]] = {}
        self.machines: dict[str, Node] = {}
        self.counts: Counter[str] = Counter()
        self.log_delays: list[float] = []
        self.launched_at: dict[str, float] = {}
        self.new: list[str] = []  # launched since the last check
        self.running_at: dict[str, float] = {}
        self.ended_at: dict[str, float] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._daemons: list[asyncio.StreamWriter] = []
        self._calls = itertools.count()
        self._serving: set[asyncio.Task[Any]] = set()
        self._server: asyncio.Server | None = None
        self._changed = asyncio.Event()

    async def begin(self) -> None:
        self._server = await asyncio.start_unix_server(self._serve, str(self.path), limit=2**24)

    async def end(self) -> None:
        """Power off every machine and stop all tasks."""
        for node in self.living():
            node.power_off()
        for task in self._tasks:
            task.cancel()
        for daemon in self._daemons:
            daemon.close()
        await asyncio.gather(*self._tasks, *self._serving, return_exceptions=True)

    def spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def living(self) -> list[Node]:
        return [node for node in self.machines.values() if not node.is_off]

    def of_job(self, job_id: int) -> list[Node]:
        return [node for node in self.living() if node.machine["owner"][1] == job_id]

    def running(self, node: Node) -> None:
        self.running_at[node.machine["id"]] = time.monotonic()
        self._changed.set()

    async def until(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Whether `condition` came true within that time."""
        give_up_at = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > give_up_at:
                return False
            await asyncio.sleep(0.02)
        return True

    def preempt(self, nodes: list[Node]) -> None:
        """Preempt the machines: they power off, and the cloud reports them lost."""
        for node in nodes:
            node.power_off()
        self._report_lost(nodes)

    def freeze(self, nodes: list[Node]) -> None:
        """Freeze the machines: the cloud reports them lost, but their connections are not closed."""
        for node in nodes:
            node.fall_silent()
        self._report_lost(nodes)

    def _report_lost(self, nodes: list[Node]) -> None:
        self._broadcast({"lost": [node.machine["id"] for node in nodes]})

    def _broadcast(self, message: object, *, but: asyncio.StreamWriter | None = None) -> None:
        """Send a message to every daemon except `but`, since all of them use the same cloud."""
        for daemon in self._daemons:
            if daemon is not but:
                daemon.write(json.dumps(message).encode() + b"\n")

    def next_address(self) -> tuple[str, int]:
        """The daemon for the next connection: each in turn, as behind a load balancer."""
        addresses = list(self.addresses.values())
        return addresses[next(self._calls) % len(addresses)] if addresses else ("127.0.0.1", 0)

    async def get(self, path: str, token: str, rank: int) -> bytes:
        """One HTTP request on a new connection."""
        reader, writer = await asyncio.open_connection(*self.next_address())
        writer.write(
            f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n"
            f"Perdure-Rank: {rank}\r\nConnection: close\r\n\r\n".encode()
        )
        answer = await reader.read()
        writer.close()
        if not answer.startswith(b"HTTP/1.1 200"):
            self.counts[f"{path}: {_first_line(answer)}"] += 1
        return answer

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._daemons.append(writer)
        self._serving.update(filter(None, [asyncio.current_task()]))
        writer.write(json.dumps({"machines": [node.machine for node in self.living()]}).encode() + b"\n")
        try:
            await self._read_daemon(reader, writer)
        finally:
            self._daemons.remove(writer)

    async def _read_daemon(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            message, now = json.loads(line), time.monotonic()
            if "launched" in message:
                self._broadcast({"known": message["launched"]}, but=writer)
                node = Node(self, message["launched"], message["token"])
                self.machines[message["launched"]["id"]] = node
                self.launched_at[message["launched"]["id"]] = now
                self.new.append(message["launched"]["id"])
                self.spawn(node.boot())
            for ended in message.get("ended", ()):
                self.ended_at.setdefault(ended, now)
                if ended in self.machines:
                    self.machines[ended].power_off()
            if message.get("ended"):
                self._broadcast({"gone": message["ended"]}, but=writer)

    async def print_lines(self, nodes: list[Node], *, seconds: float) -> None:
        """A line a second from each of `nodes`, evenly spread."""
        began, sent = time.monotonic(), 0
        while (passed_s := time.monotonic() - began) < seconds:
            due = int(passed_s * len(nodes))
            for number in range(sent, due):
                nodes[number % len(nodes)].print_bytes(_LINE)
            sent = due
            await asyncio.sleep(0.01)


def _first_line(answer: bytes) -> str:
    return answer.split(b"\r\n", 1)[0].decode()
