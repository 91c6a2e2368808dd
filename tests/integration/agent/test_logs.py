"""The log arrives complete and once, whatever happens to the connection and the controller."""

from __future__ import annotations

import hashlib
import threading

import pytest

from integration.agent.controller import Controller
from integration.agent.node import Node

FLOOD = """
import sys
out = sys.stdout.buffer
for i in range(1_000_000):
    out.write(b'line %d\\n' % i)
"""
WILD = """
import random, sys, time
out, rng = sys.stdout.buffer, random.Random(1)
for i in range(60):
    out.write(rng.randbytes(1 << rng.randrange(18)))
    out.write(b'x' * 1_000_000 + b'\\n' if i % 10 == 0 else b'')
    out.flush()
    time.sleep(0.02)
"""


def start(controller: Controller, node: Node, python: str) -> None:
    (node.home / "program.py").write_text(python)
    controller.spec.update(run="python3 ~/program.py")
    controller.directive.update(target="run", node_ips=["10.0.0.1"])
    node.start()


def output_on_disk(node: Node) -> bytes:
    data: bytes = (node.state_dir / "log").read_bytes()
    return data


def digest(data: bytes | bytearray) -> str:
    return hashlib.sha256(data).hexdigest()


def test_logs__of_a_million_lines_arrive(controller: Controller, node: Node) -> None:
    start(controller, node, FLOOD)
    controller.until_phase("ended", 60)
    whole = b"".join(b"line %d\n" % i for i in range(1_000_000))
    controller.until(lambda: len(controller.log) >= len(whole), 60)
    assert digest(controller.log) == digest(whole)


@pytest.mark.slow
def test_logs__binary_and_long_lines_survive_broken_connections(controller: Controller, node: Node) -> None:
    start(controller, node, WILD)
    breaks = 0
    for size in range(100_000, 5_000_000, 700_000):
        controller.until(lambda size=size: len(controller.log) > size)  # type: ignore[misc]
        controller.drop_connections()
        breaks += 1
    controller.until_phase("ended")
    whole = output_on_disk(node)
    assert len(whole) > 6_000_000
    controller.until(lambda: len(controller.log) >= len(whole))
    assert digest(controller.log) == digest(whole)
    assert len(controller.hellos) > breaks // 2, "a break while it calls again is no further connection"


def test_logs__at_most_one_window_is_unacknowledged(controller: Controller, node: Node) -> None:
    controller.acks_logs = False
    start(controller, node, "import sys\nsys.stdout.buffer.write(b'x' * 8_000_000)\n")
    controller.until_phase("ended")
    controller.until(lambda: len(controller.log) == 1024 * 1024)
    controller.ack_logs()
    controller.until(lambda: len(controller.log) == 8_000_000)


def test_logs__continue_after_the_controller_was_away(controller: Controller, node: Node) -> None:
    start(controller, node, "import time\nfor i in range(40): print(i, flush=True); time.sleep(0.05)\n")
    controller.until_log(b"5\n")
    controller.stop()
    away = threading.Event()
    away.wait(1.0)
    controller.start()
    report = controller.until_phase("ended")
    assert report["exit_code"] == 0
    controller.until(lambda: controller.log.count(b"\n") == 40)
    assert bytes(controller.log) == b"".join(b"%d\n" % i for i in range(40))
