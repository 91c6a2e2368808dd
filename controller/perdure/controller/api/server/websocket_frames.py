"""The frames of a WebSocket, as a server reads and writes them (RFC 6455, section 5). Without extensions."""

from __future__ import annotations

import base64
import binascii
import hashlib
from enum import IntEnum
from typing import NamedTuple

try:
    from websockets.speedups import apply_mask
except ImportError:  # it was installed without its C extension
    from websockets.utils import apply_mask

_ACCEPT_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_KEY_BYTES = 16
_MAX_CONTROL_BYTES = 125
_FINAL, _RESERVED, _MASKED = 0x80, 0x70, 0x80


class Opcode(IntEnum):
    CONTINUATION = 0
    TEXT = 1
    BINARY = 2
    CLOSE = 8
    PING = 9
    PONG = 10


class CloseCode(IntEnum):
    """RFC 6455, section 7.4.1."""

    NORMAL = 1000
    PROTOCOL_ERROR = 1002
    NO_CODE = 1005  # never sent: the close frame had none
    ABNORMAL = 1006  # never sent: the connection ended without a close frame
    INVALID_PAYLOAD = 1007
    TOO_LARGE = 1009
    RESTARTING = 1012


_OPCODES = dict(Opcode._value2member_map_)
# 1004 has no meaning; 1005, 1006 and 1015 must not be sent.
_VALID_CODES = frozenset({1000, 1001, 1002, 1003, *range(1007, 1015), *range(3000, 5000)})


class ProtocolViolation(Exception):
    """What the other side sent ends the connection. `code`: of the close frame that says so."""

    def __init__(self, code: CloseCode, why: str) -> None:
        super().__init__(why)
        self.code = code


class Frame(NamedTuple):
    opcode: Opcode
    is_final: bool
    payload: bytes


def parse_frame(data: bytes | bytearray, start: int, max_bytes: int) -> tuple[Frame, int] | None:
    """The frame of a client that begins at `start`, and where the next one begins; None if it is incomplete.

    Raises ProtocolViolation, also for a payload of more than `max_bytes`, before all of it has arrived.
    """
    if len(data) < start + 2:
        return None
    first, second = data[start], data[start + 1]
    opcode = _OPCODES.get(first & 15)
    if opcode is None or first & _RESERVED:
        raise ProtocolViolation(CloseCode.PROTOCOL_ERROR, "unknown opcode, or a reserved bit is set")
    if not second & _MASKED:
        raise ProtocolViolation(CloseCode.PROTOCOL_ERROR, "a client must mask its frames")
    size, mask_at = second & 127, start + 2
    if opcode >= Opcode.CLOSE and (size > _MAX_CONTROL_BYTES or not first & _FINAL):
        raise ProtocolViolation(CloseCode.PROTOCOL_ERROR, "a control frame is too long or fragmented")
    if size > _MAX_CONTROL_BYTES:  # 126 or 127: the size is in the next 2 or 8 bytes
        size_at, mask_at = mask_at, mask_at + (2 if size == 126 else 8)
        if len(data) < mask_at:
            return None
        size = int.from_bytes(data[size_at:mask_at], "big")
    if size > max_bytes:
        raise ProtocolViolation(CloseCode.TOO_LARGE, f"a message may have {max_bytes} bytes")
    begin = mask_at + 4
    end = begin + size
    if len(data) < end:
        return None
    payload = apply_mask(bytes(data[begin:end]), bytes(data[mask_at:begin])) if size else b""
    return Frame(opcode, bool(first & _FINAL), payload), end


def parse_close(payload: bytes) -> tuple[int, str]:
    """The code and the reason in the payload of a close frame. Raises ProtocolViolation."""
    if not payload:
        return CloseCode.NO_CODE, ""
    code = int.from_bytes(payload[:2], "big")
    if len(payload) < 2 or code not in _VALID_CODES:
        raise ProtocolViolation(CloseCode.PROTOCOL_ERROR, "invalid close code")
    return code, decode_text(payload[2:])


def decode_text(payload: bytes) -> str:
    """Raises ProtocolViolation if it is not UTF-8."""
    try:
        return payload.decode()
    except UnicodeDecodeError as error:
        raise ProtocolViolation(CloseCode.INVALID_PAYLOAD, f"not UTF-8: {error.reason}") from None


def render_frame(opcode: Opcode, payload: bytes) -> bytes:
    """A frame of the server: final and not masked."""
    size, first = len(payload), _FINAL | opcode
    if size <= _MAX_CONTROL_BYTES:
        return bytes((first, size)) + payload
    if size < 2**16:
        return bytes((first, 126)) + size.to_bytes(2, "big") + payload
    return bytes((first, 127)) + size.to_bytes(8, "big") + payload


def render_close(code: int, reason: str = "") -> bytes:
    """A close frame. Its reason is cut to the bytes that a control frame has room for."""
    if code == CloseCode.NO_CODE:
        return render_frame(Opcode.CLOSE, b"")
    text = reason.encode()[: _MAX_CONTROL_BYTES - 2].decode(errors="ignore").encode()
    return render_frame(Opcode.CLOSE, code.to_bytes(2, "big") + text)


def accept_key(key: bytes) -> bytes | None:
    """The value of Sec-WebSocket-Accept for a Sec-WebSocket-Key; None if the key is invalid."""
    try:
        is_valid = len(base64.b64decode(key, validate=True)) == _KEY_BYTES
    except binascii.Error:
        return None
    return base64.b64encode(hashlib.sha1(key + _ACCEPT_GUID, usedforsecurity=False).digest()) if is_valid else None
