"""A line between agent and controller that is slow, one-way, cut in the middle of a frame, or half closed.

What a real network of namespaces shows of dropped packets is tested in tests/integration/network; this needs no root.
"""

from __future__ import annotations

import hashlib
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import pytest

PRINTS = "echo begun; until [ -e ~/go ]; do sleep 0.02; done; seq 1 {lines}; exit 3"


class Relay:
    """A TCP relay in front of a controller. Directions: "up" is from the agent, "down" is to it."""

    def __init__(self, target: tuple[str, int]) -> None:
        self.frozen: set[str] = set()
        self.bytes_per_s: float | None = None
        self.cut_after: int | None = None  # bytes from the agent
        self.connections = 0
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[tuple[socket.socket, socket.socket]] = []
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def cut(self) -> None:
        """Every connection ends with a reset."""
        pairs, self._open = self._open, []
        for pair in pairs:
            for side in pair:
                side.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
                side.close()

    def half_close(self) -> None:
        """The agent hears that the controller will say nothing more, and may still talk itself."""
        for agent, _ in self._open:
            with suppress(OSError):  # one that is over already
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
        if direction == "up" and self.cut_after is not None:
            self.cut_after -= len(data)
            if self.cut_after <= 0:
                self.cut_after = None
                self.cut()
        return data


@pytest.fixture
def relay(controller: Any, node: Any) -> Iterator[Relay]:
    parts = urlsplit(controller.endpoint)
    relay = Relay((str(parts.hostname), int(parts.port or 0)))
    node.env["PERDURE_ENDPOINT"] = relay.endpoint
    yield relay
    relay.close()


def until(condition: Callable[[], object], what: str) -> None:
    give_up_at = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < give_up_at, f"in vain: {what}"
        threading.Event().wait(0.01)


def start(controller: Any, node: Any, *, lines: int) -> None:
    controller.spec["run"] = PRINTS.format(lines=lines)
    controller.directive.update(want="run", node_ips=["10.0.0.1"])
    node.start()
    controller.until_log(b"begun\n")


def check(controller: Any, *, lines: int) -> None:
    """The end and every byte came, and a report of an end that comes twice is the same one."""
    whole = b"begun\n" + b"".join(b"%d\n" % n for n in range(1, lines + 1))
    controller.until(lambda: len(controller.log) >= len(whole), 60)
    assert hashlib.sha256(controller.log).digest() == hashlib.sha256(whole).digest()
    assert controller.until_phase("ended")["exit_code"] == 3


@pytest.mark.parametrize("direction", ["up", "down"])
def test_a_line_that_carries_one_way_only_is_given_up_and_made_anew(
    controller: Any, node: Any, relay: Any, direction: str
) -> None:
    controller.beat_s = 0.5
    start(controller, node, lines=1000)
    relay.frozen.add(direction)
    (node.home / "go").touch()
    before = relay.connections
    node.until_file(node.state_dir / "stages/run/result.json")
    until(lambda: "silent" in node.agent_log.read_text(), "the agent to notice")
    relay.cut()
    relay.frozen.clear()
    until(lambda: relay.connections > before, "another connection")
    check(controller, lines=1000)


@pytest.mark.long
def test_lines_cut_in_the_middle_of_frames_lose_and_double_nothing(controller: Any, node: Any, relay: Any) -> None:
    start(controller, node, lines=400_000)
    (node.home / "go").touch()
    for bytes_until_cut in (1000, 100_000, 300_000, 70_000, 500_001):
        relay.cut_after = bytes_until_cut
        connections = relay.connections
        until(lambda c=connections: relay.cut_after is None and relay.connections > c, "a further connection")
    check(controller, lines=400_000)


def test_a_half_closed_line_is_made_anew(controller: Any, node: Any, relay: Any) -> None:
    start(controller, node, lines=1000)
    before = relay.connections
    relay.half_close()
    (node.home / "go").touch()
    until(lambda: relay.connections > before, "another connection")
    check(controller, lines=1000)


@pytest.mark.long
def test_a_line_too_slow_for_a_frame_in_three_beats_still_carries_all(controller: Any, node: Any, relay: Any) -> None:
    controller.beat_s = 1.0
    start(controller, node, lines=60_000)
    connections = relay.connections
    relay.bytes_per_s = 16_000.0
    (node.home / "go").touch()
    check(controller, lines=60_000)
    assert relay.connections == connections, "slow is not broken"
