"""What a program reports, and whatever else it may write into the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.agent.usage.gpu_monitor import GpuMonitor
from perdure.agent.usage.progress_file import ProgressFile, parse_report
from perdure.agent.usage.usage_stream import UsageStream
from perdure.checkpoint import progress, report_progress
from perdure.controller.nodes.frames import UsageFrame, parse_text
from support.helpers.timing import wait_until
from unit.agent.usage.test_usage_stream import GOOD, Socket


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PERDURE_RUN_DIR", str(tmp_path))
    monkeypatch.setattr(progress, "_written_at", float("-inf"))
    return tmp_path


def test_report__is_taken_once(run_dir: Path) -> None:
    file = ProgressFile(run_dir / "progress.json")
    assert file.take_new() == {}
    report_progress(12, loss=0.5, lr=1)
    assert file.take_new() == {"step": 12, "values": {"loss": 0.5, "lr": 1.0}}
    assert file.take_new() == {}
    report_progress(13, loss=0.4)
    assert file.take_new() == {}, "at most one a second is written"
    assert [path.name for path in run_dir.iterdir()] == ["progress.json"]


def test_report__costs_nothing_between_two_that_are_written(run_dir: Path) -> None:
    class Tensor:
        def __float__(self) -> float:
            raise AssertionError("waited for the device")

    report_progress(1)
    report_progress(2, loss=Tensor())


def test_other_processes_of_a_machine__do_not_report(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "3")
    report_progress(1)
    assert not list(run_dir.iterdir())


def test_program_without_an_agent__reports_to_nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(progress, "_written_at", float("-inf"))
    monkeypatch.delenv("PERDURE_RUN_DIR", raising=False)
    report_progress(1, loss=1.0)
    monkeypatch.setenv("PERDURE_RUN_DIR", str(tmp_path / "missing"))
    report_progress(1, loss=1.0)


@pytest.mark.parametrize(
    ("report", "expected"),
    [
        ({"step": 5, "values": {"loss": float("nan"), "acc": 0.5}}, {"step": 5, "values": {"acc": 0.5}}),
        ({"step": 5, "values": {"loss": True, "x y": 1, "": 1, "ok": 1e31}}, {"step": 5, "values": {}}),
        ({"step": 5}, {"step": 5, "values": {}}),
        ({"step": -1}, {}),
        ({"step": 2**63}, {}),
        ({"step": 1.5}, {}),
        ({"step": True}, {}),
        ([], {}),
        (7, {}),
    ],
)
def test_other_contents__are_left_out(report: object, expected: dict[str, Any]) -> None:
    assert parse_report(json.dumps(report).encode()) == expected


@given(st.binary(max_size=200) | st.lists(st.integers() | st.floats() | st.text()).map(repr).map(str.encode))
def test_any_bytes__end_nothing(data: bytes) -> None:
    accepted = parse_report(data)
    assert isinstance(parse_text(json.dumps({**GOOD, **accepted})), UsageFrame)


def test_report__reaches_the_controller_with_the_use_of_the_machine(run_dir: Path) -> None:
    (run_dir / "progress.json").write_text(json.dumps({"step": 3, "values": {f"v{n}": n for n in range(20)}}))
    none = GpuMonitor(print, str(run_dir / "none"))
    stream = UsageStream(run_dir, print, interval_s=3600.0, gpus=none, progress=run_dir / "progress.json")
    socket: Any = Socket()
    stream.attach(socket, {})
    stream.start()
    stream.send_now()  # as when the program ends
    wait_until(lambda: socket.sent, "the frame", 10)
    frame = parse_text(socket.sent[0])
    assert isinstance(frame, UsageFrame)
    assert (frame.step, len(frame.values), frame.values["v0"]) == (3, 8, 0.0)
