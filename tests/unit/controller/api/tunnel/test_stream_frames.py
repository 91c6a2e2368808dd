"""What users and nodes may send on a stream: typed frames in their ranges. All else is rejected with a reason."""

from __future__ import annotations

import json
from typing import Any

import pytest

from perdure.controller.api.tunnel.stream_frames import (
    MAX_DATA_BYTES,
    EofFrame,
    ErrorFrame,
    ExitFrame,
    OpenedFrame,
    ResizeFrame,
    SignalFrame,
    StreamKind,
    check_data,
    parse_from_node,
    parse_from_user,
    parse_open,
)
from perdure.controller.nodes.frames import InvalidFrame

KEY = "ssh-ed25519 " + "A" * 68
EXEC: dict[str, Any] = {"type": "open", "name": "job-1", "kind": "exec", "argv": ["true"]}
SSH: dict[str, Any] = {"type": "open", "name": "job-1", "kind": "ssh", "public_key": KEY}
PORT: dict[str, Any] = {"type": "open", "name": "job-1", "kind": "port", "port": 8888}


def test_open__of_every_kind_is_parsed() -> None:
    command = parse_open(json.dumps({**EXEC, "tty": True, "rows": 50, "columns": 200, "term": "xterm", "user": "me"}))
    assert (command.kind, command.argv, command.tty, command.rows) == (StreamKind.EXEC, ["true"], True, 50)
    assert parse_open(json.dumps(SSH)).public_key == KEY
    assert parse_open(json.dumps(PORT)).port == 8888


@pytest.mark.parametrize(
    ("frame", "changes", "field"),
    [
        (EXEC, {"argv": None}, "argv"),
        (EXEC, {"argv": []}, "argv"),
        (EXEC, {"argv": ["a\0b"]}, "argv"),
        (EXEC, {"argv": ["x" * 100_001]}, "argv"),
        (EXEC, {"argv": ["x"] * 1001}, "argv"),
        (EXEC, {"argv": "true"}, "argv"),
        (EXEC, {"kind": "shell"}, "kind"),
        (EXEC, {"name": "n" * 201}, "name"),
        (EXEC, {"rows": 0}, "rows"),
        (EXEC, {"columns": 10_001}, "columns"),
        (EXEC, {"term": "xterm;reboot"}, "term"),
        (EXEC, {"user": "u" * 101}, "user"),
        (SSH, {"public_key": None}, "public_key"),
        (SSH, {"public_key": KEY + "\nssh-ed25519 " + "B" * 68}, "public_key"),
        (SSH, {"public_key": 'command="reboot" ' + KEY}, "public_key"),
        (SSH, {"public_key": "ssh-rsa " + "A" * 68}, "public_key"),
        (PORT, {"port": None}, "port"),
        (PORT, {"port": 0}, "port"),
        (PORT, {"port": 65_536}, "port"),
        (PORT, {"port": "22"}, "port"),
        (PORT, {"port": True}, "port"),
    ],
)
def test_open__beyond_its_limits_is_rejected_by_field(
    frame: dict[str, Any], changes: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidFrame, match=field):
        parse_open(json.dumps(frame | changes))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"type": "eof"}', '{"type": "open"}', '"\\ud800"', "x" * 200_000])
def test_open__that_is_none_is_rejected(text: str) -> None:
    with pytest.raises(InvalidFrame):
        parse_open(text)


def test_user_frames__are_parsed() -> None:
    assert parse_from_user('{"type": "eof"}') == EofFrame(type="eof")
    assert parse_from_user('{"type": "signal", "name": "INT"}') == SignalFrame(type="signal", name="INT")
    resize = parse_from_user('{"type": "resize", "rows": 24, "columns": 80}')
    assert resize == ResizeFrame(type="resize", rows=24, columns=80)


@pytest.mark.parametrize(
    "text",
    ['{"type": "signal", "name": "KILL"}', '{"type": "resize", "rows": -1, "columns": 80}', "null",
     '{"type": "exit", "code": 0}', '{"type": "opened"}', '{"type": "open"}',
     '{"type": "eof", "pad": "' + "x" * 5000 + '"}'],
)  # fmt: skip
def test_user_frame__that_only_a_node_may_send_or_that_is_invalid_is_rejected(text: str) -> None:
    with pytest.raises(InvalidFrame):
        parse_from_user(text)


def test_node_frames__are_parsed() -> None:
    assert parse_from_node('{"type": "opened", "newer": 1}') == OpenedFrame(type="opened")
    assert parse_from_node('{"type": "exit", "code": 143}') == ExitFrame(type="exit", code=143)
    error = parse_from_node('{"type": "error", "message": "a\\u001b[2Jb", "fix": ""}')
    assert isinstance(error, ErrorFrame)
    assert error.message == "a [2Jb", "what a node sends cannot control a terminal"


@pytest.mark.parametrize(
    "text",
    ['{"type": "exit", "code": 2147483648}', '{"type": "exit", "code": true}', '{"type": "exit"}', "[]", "1",
     '{"type": "signal", "name": "INT"}', '{"type": "open_stream", "id": "0"}', '{"type": "error"}', '{"type": "exi'],
)  # fmt: skip
def test_node_frame__that_only_a_user_may_send_or_that_is_invalid_is_rejected(text: str) -> None:
    with pytest.raises(InvalidFrame):
        parse_from_node(text)


def test_data__has_a_limit() -> None:
    assert check_data(b"x" * MAX_DATA_BYTES) == b"x" * MAX_DATA_BYTES
    with pytest.raises(InvalidFrame):
        check_data(b"x" * (MAX_DATA_BYTES + 1))
