"""What a node may send: typed frames in their ranges. Everything else is rejected with a reason."""

from __future__ import annotations

import json
from typing import Any

import pytest

from perdure.agent.link.channel import _to_json
from perdure.agent.link.outbox import Outbox, Report
from perdure.agent.notices.notice import Notice
from perdure.agent.storage.checkpoint_journal import parse_line
from perdure.controller.nodes.frames import (
    CheckpointFrame,
    CheckpointState,
    HeartbeatFrame,
    HelloFrame,
    InvalidFrame,
    LogFrame,
    NoticeFrame,
    ReportFrame,
    UnknownFrame,
    parse_log,
    parse_text,
)
from perdure.recovery.statuses import NodePhase

REPORT: dict[str, Any] = {"type": "report", "phase": "running"}
CHECKPOINT: dict[str, Any] = {"type": "checkpoint", "seq": 1, "step": 5, "state": "committed"}


def text(frame: dict[str, Any], **changes: Any) -> str:
    return json.dumps({**frame, **changes})


def test_frames__of_the_agent_are_parsed() -> None:
    report = {"phase": "setup", "exit_code": None, "failed_stage": None, "interrupted": False, "mount_lost": False,
              "message": "", "ip": "10.0.0.1", "mounts": [{"path": "/c", "state": "mounted"}]}  # fmt: skip
    sizes = {"logs": {"size": 7}, "checkpoints": {"seq": 2}}
    hello = parse_text(json.dumps({"type": "hello", "report": report, **sizes, "agent": "0.1.0", "at": 1.8e9}))
    assert isinstance(hello, HelloFrame)
    assert (hello.report.phase, hello.report.ip, hello.logs.size, hello.checkpoints.seq) == (
        NodePhase.SETUP, "10.0.0.1", 7, 2,
    )  # fmt: skip
    ended = parse_text(text(REPORT, phase="ended", exit_code=-9, failed_stage="run", interrupted=True))
    assert isinstance(ended, ReportFrame)
    assert (ended.phase, ended.exit_code, ended.failed_stage, ended.interrupted) == (NodePhase.ENDED, -9, "run", True)
    notice = parse_text('{"type": "notice", "deadline": 12, "action": "terminate", "source": "imds-v2", "at": 3.5}')
    assert isinstance(notice, NoticeFrame)
    assert (notice.deadline, notice.at, notice.is_rebalance) == (12.0, 3.5, False)
    assert parse_text(text(CHECKPOINT, path="/c/5", at=3)) == CheckpointFrame(
        type="checkpoint", seq=1, step=5, state=CheckpointState.COMMITTED, path="/c/5", at=3.0
    )
    assert isinstance(parse_text('{"type": "heartbeat", "at": 1.0}'), HeartbeatFrame)
    assert parse_log(b'{"offset": 12}\nab\nc') == LogFrame(12, b"ab\nc")


@pytest.mark.parametrize(
    ("sent", "parsed"),
    [("", ""), ("10.0.0.1", "10.0.0.1"), ("FE80::0:1%eth0", "fe80::1%eth0"), ("::ffff:10.0.0.1", "::ffff:a00:1")],
)
def test_address__has_its_usual_form(sent: str, parsed: str) -> None:
    frame = parse_text(text(REPORT, ip=sent))
    assert isinstance(frame, ReportFrame)
    assert frame.ip == parsed


@pytest.mark.parametrize("sent", ["10.0.0", "010.0.0.1", "10.0.0.256", "1.2.3.4.5", ":::", "10.0.0.1%eth0"])
def test_address__that_is_invalid_is_rejected(sent: str) -> None:
    with pytest.raises(InvalidFrame):
        parse_text(text(REPORT, ip=sent))


def test_frames__of_the_agents_own_code_are_accepted() -> None:
    """Whatever the machine and the workload wrote into a message or the journal."""
    report = Report(phase="ended", exit_code=-9, failed_stage="mounts", message="no file /\udc80\0\n" + "x" * 9000)
    sizes = {"logs": {"size": 2**40}, "checkpoints": {"seq": 3}}
    outbox = Outbox(report, notices=[Notice(1.8e9, "terminate", "imds-v2")], sizes=lambda: sizes)
    outbox.add_notice(Notice(None, "rebalance", "imds-v2"))
    outbox.update_report(ip="fe80::1%eth0", mount_lost=True)
    frames = [*outbox.opening_frames(), *outbox.take_pending()]
    outbox.update_report(mounts=[{"path": "/c"}])
    frames += outbox.take_pending()
    kinds = [type(parse_text(_to_json(frame))) for frame in frames]
    assert kinds == [HelloFrame, NoticeFrame, NoticeFrame, ReportFrame]
    lines = [{"step": 7, "state": state, "path": "/\udc80", "at": 12, "total_steps": 9} for state in CheckpointState]
    for line in lines:
        parsed = parse_line(json.dumps(line).encode())
        assert parsed is not None
        assert isinstance(parse_text(json.dumps({"type": "checkpoint", "seq": 1, **parsed})), CheckpointFrame)


def test_frames__of_a_newer_agent_are_ignored() -> None:
    assert parse_text('{"type": "telemetry", "load": 3}') == UnknownFrame()
    assert isinstance(parse_text(text(REPORT, a_newer_field={"x": 1})), ReportFrame)


@pytest.mark.parametrize(
    ("frame", "where"),
    [
        ("{", "JSON"), ("[" * 100_000, "JSON"), ("7", "object"), ("{}", "type"),
        ('{"type": "notice", "deadline": NaN}', "notice.deadline"),
        ('{"type": "notice", "deadline": Infinity}', "notice.deadline"),
        ('{"type": "notice", "deadline": 1e999}', "notice.deadline"),
        ('{"type": "notice", "deadline": 1e300, "at": -1e300}', "notice.deadline"),
        ('{"type": "notice", "deadline": "soon"}', "notice.deadline"),
        ('{"type": "notice", "action": "terminate"}', "notice.deadline"),
        ('{"type": "report"}', "report.phase"),
        (text(REPORT, phase="dancing"), "report.phase"), (text(REPORT, phase="not_connected"), "report.phase"),
        (text(REPORT, ip={}), "report.ip"), (text(REPORT, ip="10.0.0.1\x1b[0m"), "report.ip"),
        (text(REPORT, ip="fe80::1%\x1b"), "report.ip"), (text(REPORT, ip="10.0.0.256"), "report.ip"),
        (text(REPORT, exit_code=2**80), "report.exit_code"), (text(REPORT, exit_code=True), "report.exit_code"),
        (text(REPORT, failed_stage="lunch"), "report.failed_stage"), (text(REPORT, interrupted=1), "interrupted"),
        (text(REPORT, message="\ud800"), "JSON"), (text(REPORT, logs={"size": -1}), "logs.size"),
        (text(REPORT, logs={"size": 2**63}), "logs.size"), (text(REPORT, checkpoints={"seq": 2**31}), "seq"),
        ('{"type": "hello", "report": 5}', "hello.report"),
        (text(CHECKPOINT, seq=2**70), "seq"), (text(CHECKPOINT, seq=0), "seq"), (text(CHECKPOINT, step=-1), "step"),
        (text(CHECKPOINT, step=1.5), "step"), (text(CHECKPOINT, state="\x1b[2Jsaved"), "state"),
        (text(CHECKPOINT, path="x" * 5000), "path"), (text(CHECKPOINT, path="a\0b"), "path"),
        (text(CHECKPOINT, at=float("nan")), "at"), (text(CHECKPOINT, total_steps=0), "total_steps"),
    ],
)  # fmt: skip
def test_invalid_frame__is_rejected_with_its_field(frame: str, where: str) -> None:
    with pytest.raises(InvalidFrame) as rejected:
        parse_text(frame)
    reason = str(rejected.value)
    assert where in reason
    assert reason.isprintable()
    assert len(reason.encode()) <= 123, "a close frame has no room for more"


@pytest.mark.parametrize(
    "message",
    [b"", b"no header", b"{}\n", b'{"offset": -5}\nx', b'{"offset": 1e999}\nx', b'{"offset": "x"}\n', b"\n" * 1000,
     b'{"offset": NaN}\n', b'{"offset": 9223372036854775807}\nx', b" " * 2**20 + b'{"offset": 1}\n'],
)  # fmt: skip
def test_invalid_log__is_rejected(message: bytes) -> None:
    with pytest.raises(InvalidFrame):
        parse_log(message)


def test_message__of_a_report_is_cut_and_made_printable() -> None:
    """It is shown on terminals: no escape sequence, no line of its own, no NUL."""
    report = parse_text(text(REPORT, message="\x1b[31mlost\nFAKE LINE\0" + "x" * 100_000))
    assert isinstance(report, ReportFrame)
    assert report.message.startswith(" [31mlost FAKE LINE xxx")
    assert len(report.message) == 2000
