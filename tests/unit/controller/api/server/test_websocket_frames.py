"""WebSocket frames: what the `websockets` library sends is read as it was, at any cut; violations have their codes."""

from __future__ import annotations

import pytest
from websockets import frames as peer
from websockets.exceptions import ProtocolError

from perdure.controller.api.server.websocket_frames import (
    CloseCode,
    Frame,
    Opcode,
    ProtocolViolation,
    accept_key,
    decode_text,
    parse_close,
    parse_frame,
    render_close,
    render_frame,
)

MAX = 70_000
MASK = b"\x01\x02\x03\x04"
SIZES = (0, 1, 125, 126, 127, 65_535, 65_536, MAX)


def sent(opcode: int, payload: bytes, *, final: bool = True, masked: bool = True) -> bytes:
    """A frame as the library writes it."""
    return peer.Frame(peer.Opcode(opcode), payload, fin=final).serialize(mask=masked)


@pytest.mark.parametrize("size", SIZES)
def test_frame__of_a_client_is_read(size: int) -> None:
    payload = bytes(i % 251 for i in range(size))
    data = b"before" + sent(Opcode.BINARY, payload, final=False) + b"after"
    assert parse_frame(data, 6, MAX) == (Frame(Opcode.BINARY, False, payload), len(data) - 5)
    assert parse_frame(bytearray(data), 6, MAX) == parse_frame(data, 6, MAX)


@pytest.mark.parametrize("size", [0, 5, 126, 65_536])
def test_frame__is_incomplete_at_any_cut(size: int) -> None:
    data = sent(Opcode.TEXT, b"x" * size)
    for end in {*range(20), len(data) - 1}:
        if end < len(data):
            assert parse_frame(data[:end], 0, MAX) is None


@pytest.mark.parametrize("size", SIZES)
def test_frame__of_the_server_is_read_by_the_library(size: int) -> None:
    data, payload = bytearray(), b"y" * size
    data += render_frame(Opcode.BINARY, payload)

    def read_exact(count: int):  # type: ignore[no-untyped-def]
        read = bytes(data[:count])
        del data[:count]
        yield from ()
        return read

    reading = peer.Frame.parse(read_exact, mask=False, max_size=None)
    with pytest.raises(StopIteration) as done:
        next(reading)
    assert (done.value.value.opcode, bytes(done.value.value.data), done.value.value.fin) == (2, payload, True)
    assert not data


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (sent(Opcode.TEXT, b"hi", masked=False), CloseCode.PROTOCOL_ERROR),
        (b"\xc1\x80" + MASK, CloseCode.PROTOCOL_ERROR),  # a reserved bit: compression was not negotiated
        (b"\x83\x80" + MASK, CloseCode.PROTOCOL_ERROR),  # opcode 3
        (b"\x09\x80" + MASK, CloseCode.PROTOCOL_ERROR),  # a fragmented ping
        (b"\x89\xfe\x00\x7e" + MASK, CloseCode.PROTOCOL_ERROR),  # a ping of 126 bytes
        (b"\x82\xff" + (MAX + 1).to_bytes(8, "big"), CloseCode.TOO_LARGE),  # before its payload arrives
        (b"\x82\xff" + b"\xff" * 8, CloseCode.TOO_LARGE),
    ],
)
def test_frame__violation_has_its_close_code(data: bytes, code: CloseCode) -> None:
    with pytest.raises(ProtocolViolation) as error:
        parse_frame(data, 0, MAX)
    assert error.value.code is code


@pytest.mark.parametrize("code", [1000, 1001, 1003, 1007, 1011, 1014, 3000, 4999])
def test_close__code_and_reason_are_read(code: int) -> None:
    assert parse_close(peer.Close(code, "gone ✓").serialize()) == (code, "gone ✓")
    assert peer.Close.parse(render_close(code, "gone ✓")[2:]) == peer.Close(code, "gone ✓")


def test_close__without_code_is_allowed() -> None:
    assert parse_close(b"") == (CloseCode.NO_CODE, "")
    assert render_close(CloseCode.NO_CODE) == b"\x88\x00"


@pytest.mark.parametrize("code", [0, 999, 1004, 1005, 1006, 1015, 1016, 2999, 5000])
def test_close__invalid_code_is_rejected_as_by_the_library(code: int) -> None:
    payload = code.to_bytes(2, "big")
    with pytest.raises(ProtocolError):
        peer.Close.parse(payload).check()
    with pytest.raises(ProtocolViolation) as error:
        parse_close(payload)
    assert error.value.code is CloseCode.PROTOCOL_ERROR


def test_close__half_a_code_is_rejected() -> None:
    with pytest.raises(ProtocolViolation):
        parse_close(b"\x03")


def test_close__long_reason_is_cut_between_characters() -> None:
    frame = render_close(1007, "é" * 100)
    assert frame[1] <= 125
    assert parse_close(frame[2:]) == (1007, "é" * 61)


def test_text__must_be_utf_8() -> None:
    with pytest.raises(ProtocolViolation) as error:
        decode_text(b"\xff\xfe")
    assert error.value.code is CloseCode.INVALID_PAYLOAD


def test_accept_key__is_that_of_the_standard() -> None:
    assert accept_key(b"dGhlIHNhbXBsZSBub25jZQ==") == b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo="


@pytest.mark.parametrize("key", [b"", b"short", b"dGhlIHNhbXBsZSBub25jZQ", b"AAAA", b"\xff\xfe"])
def test_accept_key__invalid_key_has_none(key: bytes) -> None:
    assert accept_key(key) is None
