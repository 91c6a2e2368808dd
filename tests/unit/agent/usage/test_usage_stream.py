"""What a machine uses, from the real /proc, as frames that the controller accepts."""

from __future__ import annotations

import json
import resource
from pathlib import Path
from typing import Any

import pytest

from perdure.agent.link.websocket import Disconnected
from perdure.agent.usage.gpu_monitor import GpuMonitor
from perdure.agent.usage.proc_stats import ProcStats
from perdure.agent.usage.usage_stream import UsageStream
from perdure.controller.nodes.frames import InvalidFrame, UsageFrame, parse_text
from support.helpers.timing import wait_until


class Socket:
    """A connection that records what is sent, until it breaks."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.is_broken = False

    def send_text(self, text: str) -> None:
        if self.is_broken:
            raise Disconnected("gone")
        self.sent.append(text)


def test_usage__is_that_of_this_machine(tmp_path: Path) -> None:
    stats = ProcStats(tmp_path)
    first = stats.read_usage()
    assert (first["cpu_used"], first["received_per_s"]) == (0.0, 0.0), "there is nothing to compare with yet"
    deadline = resource.getrusage(resource.RUSAGE_SELF).ru_utime + 0.3
    while resource.getrusage(resource.RUSAGE_SELF).ru_utime < deadline:
        pass
    second = stats.read_usage()
    assert 0.0 < second["cpu_used"] <= second["cpus"] * 1.1
    assert 0 < second["memory_used"] < second["memory_total"]
    assert 0 < second["disk_used"] <= second["disk_total"]


def test_frames__are_accepted_by_the_controller(tmp_path: Path) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho '0, 50, 10, 100, 200.5, 60'\nexec sleep 60\n")
    program.chmod(0o755)
    stream = UsageStream(tmp_path, print, interval_s=0.05, gpus=GpuMonitor(print, str(program)))
    socket: Any = Socket()
    stream.attach(socket, {})
    stream.start()
    frames = wait_until(lambda: [f for f in map(parse_text, list(socket.sent)) if _has_gpus(f)], "a frame", 20)
    frame = frames[0]
    assert isinstance(frame, UsageFrame)
    assert frame.gpus[0].utilization == 0.5
    assert frame.memory_total > 2**20
    # A broken connection ends nothing: the next one gets the next frames.
    socket.is_broken = True
    wait_until(lambda: stream._ws is None, "the loss of the connection", 10)
    second: Any = Socket()
    stream.attach(second, {})
    wait_until(lambda: second.sent, "a frame", 10)
    stream.detach()


def _has_gpus(frame: object) -> bool:
    return isinstance(frame, UsageFrame) and bool(frame.gpus)


def test_reading__costs_next_to_nothing(tmp_path: Path) -> None:
    """Half a percent of a core, once a minute, would be 300 ms."""
    stats = ProcStats(tmp_path)
    before = resource.getrusage(resource.RUSAGE_SELF)
    for _ in range(20):
        stats.read_usage()
    after = resource.getrusage(resource.RUSAGE_SELF)
    spent_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert spent_s / 20 < 0.02


GOOD: dict[str, Any] = {
    "type": "usage", "cpus": 2, "cpu_used": 1.5, "memory_used": 1, "memory_total": 2, "disk_used": 1, "disk_total": 2,
    "gpus": [],
}  # fmt: skip
GPU = {"utilization": 0.5, "memory_used": 1, "memory_total": 2}


@pytest.mark.parametrize(
    "change",
    [
        {"cpu_used": -1},
        {"cpu_used": 1e300},
        {"memory_used": "1"},
        {"gpus": [GPU] * 65},
        {"gpus": [{**GPU, "utilization": 1.5}]},
        {"gpus": [{**GPU, "power_w": -1}]},
        {"gpus": {}},
        {"disk_total": True},
    ],
)
def test_wrong_frames__are_rejected(change: dict[str, Any]) -> None:
    assert isinstance(parse_text(json.dumps(GOOD)), UsageFrame)
    with pytest.raises(InvalidFrame):
        parse_text(json.dumps({**GOOD, **change}))
    with pytest.raises(InvalidFrame):
        parse_text(json.dumps(GOOD).replace("1.5", "NaN"))


def test_error_of_one_reading__ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read, logged, failures = ProcStats.read_usage, list[str](), iter([False, True, True, False])

    def read_usage(stats: ProcStats) -> dict[str, float]:
        if next(failures, False):
            raise OSError("no such device")
        return read(stats)

    monkeypatch.setattr(ProcStats, "read_usage", read_usage)
    stream = UsageStream(tmp_path, logged.append, interval_s=0.01, gpus=GpuMonitor(print, str(tmp_path / "none")))
    socket: Any = Socket()
    stream.attach(socket, {})
    stream.start()
    wait_until(lambda: len(socket.sent) > 1, "frames after the error", 20)
    assert logged == ["the use of this machine is not reported: OSError('no such device')"], "once, not each time"
