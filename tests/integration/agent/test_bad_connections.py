"""A line between agent and controller that is slow, one-way, cut in the middle of a frame, or half closed.

What a real network of namespaces shows of dropped packets is tested in tests/integration/network; this needs no root.
"""

from __future__ import annotations

import hashlib
import select
import socket
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from urllib.parse import urlsplit

import pytest

from integration.agent.controller import Controller
from integration.agent.node import Node
from support.helpers.timing import wait_until

PRINTS = "echo begun; until [ -e ~/go ]; do sleep 0.02; done; seq 1 {lines}; exit 3"


class Relay:
    """A TCP relay in front of a controller. Directions: "up" is from the agent, "down" is to it."""

    def __init__(self, target: tuple[str, int]) -> None:
        self.frozen: set[str] = set()
        self.bytes_per_s: float | None = None
        self.cuts: deque[int] = deque()  # bytes from the agent until each next cut of all connections
        self.connections = 0
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[tuple[socket.socket, socket.socket]] = []
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def cut(self) -> None:
        """Reset every connection."""
        pairs, self._open = self._open, []
        for pair in pairs:
            for side in pair:
                side.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
                side.close()

    def half_close(self) -> None:
        """Close the direction to the agent; the agent may still send."""
        for agent, _ in self._open:
            with suppress(OSError):  # already closed
                agent.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                agent, _ = self._listener.accept()
                controller = socket.create_connection(self._target)
            except OSError:
                return
            self.connections += 1
            self._open.append((agent, controller))
            threading.Thread(target=self._carry, args=(agent, controller, "up"), daemon=True).start()
            threading.Thread(target=self._carry, args=(controller, agent, "down"), daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket, direction: str) -> None:
        try:
            while data := self._read(source, direction):
                sink.sendall(data)
                if self.bytes_per_s is not None:
                    threading.Event().wait(len(data) / self.bytes_per_s)
            sink.shutdown(socket.SHUT_WR)
        except (OSError, ValueError):
            return

    def _read(self, source: socket.socket, direction: str) -> bytes:
        while direction in self.frozen or not select.select([source], [], [], 0.05)[0]:
            threading.Event().wait(0.01)
        data = source.recv(4096 if self.bytes_per_s else 65536)
        if direction == "up" and self.cuts:
            self.cuts[0] -= len(data)
            if self.cuts[0] <= 0:
                self.cuts.popleft()
                self.cut()
        return data


@pytest.fixture
def relay(controller: Controller, node: Node) -> Iterator[Relay]:
    parts = urlsplit(controller.endpoint)
    relay = Relay((str(parts.hostname), int(parts.port or 0)))
    node.env["PERDURE_ENDPOINT"] = relay.endpoint
    yield relay
    relay.close()


def start(controller: Controller, node: Node, *, lines: int) -> None:
    controller.spec["run"] = PRINTS.format(lines=lines)
    controller.directive.update(target="run", node_ips=["10.0.0.1"])
    node.start()
    controller.until_log(b"begun\n")


def check(controller: Controller, *, lines: int) -> None:
    """Check that the end and every byte arrived, and that a repeated report of the end is identical."""
    whole = b"begun\n" + b"".join(b"%d\n" % n for n in range(1, lines + 1))
    controller.until(lambda: len(controller.log) >= len(whole), 60)
    assert hashlib.sha256(controller.log).digest() == hashlib.sha256(whole).digest()
    assert controller.until_phase("ended")["exit_code"] == 3


@pytest.mark.parametrize("direction", ["up", "down"])
def test_connection__that_carries_one_way_only_is_replaced(
    controller: Controller, node: Node, relay: Relay, direction: str
) -> None:
    controller.heartbeat_interval_s = 0.5
    start(controller, node, lines=1000)
    relay.frozen.add(direction)
    (node.home / "go").touch()
    before = relay.connections
    node.until_file(node.state_dir / "stages/run/result.json")
    wait_until(lambda: "has sent nothing" in node.agent_log.read_text(), "the agent to notice")
    relay.cut()
    relay.frozen.clear()
    wait_until(lambda: relay.connections > before, "another connection")
    check(controller, lines=1000)


@pytest.mark.long
def test_connection__cut_in_mid_frame_loses_and_repeats_nothing(
    controller: Controller, node: Node, relay: Relay
) -> None:
    start(controller, node, lines=400_000)
    connections = relay.connections
    relay.cuts.extend((1000, 100_000, 300_000, 70_000, 500_001))
    (node.home / "go").touch()
    wait_until(lambda: not relay.cuts and relay.connections > connections + 4, "a connection after the last cut")
    check(controller, lines=400_000)


def test_connection__half_closed_is_replaced(controller: Controller, node: Node, relay: Relay) -> None:
    start(controller, node, lines=1000)
    before = relay.connections
    relay.half_close()
    (node.home / "go").touch()
    wait_until(lambda: relay.connections > before, "another connection")
    check(controller, lines=1000)


@pytest.mark.long
def test_connection__slower_than_a_frame_in_three_heartbeats_carries_everything(
    controller: Controller, node: Node, relay: Relay
) -> None:
    controller.heartbeat_interval_s = 1.0
    start(controller, node, lines=60_000)
    connections = relay.connections
    relay.bytes_per_s = 16_000.0
    (node.home / "go").touch()
    check(controller, lines=60_000)
    assert relay.connections == connections, "slow is not broken"
