"""The frames of streams as typed values (docs/reference/agent-protocol.md, "Streams").

Users and nodes may send anything. Nothing passes from one to the other but bytes of limited length, and what this
module returns.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, Literal, TypeVar

from pydantic import AfterValidator, ConfigDict, Field, StringConstraints, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from perdure.controller.nodes.frames import ExitCode, InvalidFrame, Message, Word

MAX_DATA_BYTES = 64 * 1024 + 1  # with the byte that names the output of a command
_MAX_OPEN_CHARS, _MAX_CONTROL_CHARS = 128 * 1024, 4096
_MAX_WORDS, _MAX_COMMAND_CHARS = 1000, 100_000
_MAX_PORT = 65_535
# As in `nodes.frames`.
_CONFIG = ConfigDict(strict=True, allow_inf_nan=False, extra="ignore", defer_build=True)
_DEFERRED = ConfigDict(defer_build=True)
_PUBLIC_KEY = re.compile(r"ssh-ed25519 [A-Za-z0-9+/]{68}")
_TERM = r"^[A-Za-z0-9._+-]{1,64}$"


class StreamKind(StrEnum):
    """What a stream is for."""

    EXEC = "exec"
    SSH = "ssh"
    PORT = "port"


def _public_key(text: str) -> str:
    if not _PUBLIC_KEY.fullmatch(text):
        raise ValueError("not an ed25519 public key")
    return text


def _command(words: list[str]) -> list[str]:
    if any("\0" in word for word in words) or sum(map(len, words)) > _MAX_COMMAND_CHARS:
        raise ValueError(f"a command has at most {_MAX_COMMAND_CHARS} characters, and no NUL")
    return words


Size = Annotated[int, Field(ge=1, le=10_000)]
PublicKey = Annotated[str, StringConstraints(max_length=100), AfterValidator(_public_key)]
Command = Annotated[list[str], Field(min_length=1, max_length=_MAX_WORDS), AfterValidator(_command)]
Term = Annotated[str, StringConstraints(pattern=_TERM)]


@dataclass(frozen=True, slots=True, kw_only=True, config=_CONFIG)
class OpenFrame:
    """The first frame of a user. `name`: the node's, such as `job-17` or `job-17-worker1`."""

    type: Literal["open"]
    name: Annotated[str, StringConstraints(max_length=200)]
    kind: Annotated[StreamKind, Field(strict=False)]
    user: Word = ""
    argv: Command | None = None
    tty: bool = False
    term: Term | None = None
    rows: Size = 24
    columns: Size = 80
    port: Annotated[int, Field(ge=1, le=_MAX_PORT)] | None = None
    public_key: PublicKey | None = None


@dataclass(frozen=True, slots=True, kw_only=True, config=_CONFIG)
class EofFrame:
    """The sender sends no more bytes."""

    type: Literal["eof"]


@dataclass(frozen=True, slots=True, kw_only=True, config=_CONFIG)
class ResizeFrame:
    type: Literal["resize"]
    rows: Size
    columns: Size


@dataclass(frozen=True, slots=True, kw_only=True, config=_CONFIG)
class SignalFrame:
    type: Literal["signal"]
    name: Literal["INT", "TERM", "HUP", "QUIT"]


@dataclass(frozen=True, slots=True, kw_only=True, config=_CONFIG)
class OpenedFrame:
    """The first frame of a node, unless it is an ErrorFrame."""

    type: Literal["opened"]


@dataclass(frozen=True, slots=True, kw_only=True, config=_CONFIG)
class ErrorFrame:
    """The node cannot open the stream, or ended it. The last frame."""

    type: Literal["error"]
    message: Message
    fix: Message = ""


@dataclass(frozen=True, slots=True, kw_only=True, config=_CONFIG)
class ExitFrame:
    """The command has ended. The last frame."""

    type: Literal["exit"]
    code: ExitCode


Frame = TypeVar("Frame")
UserFrame = EofFrame | ResizeFrame | SignalFrame
NodeStreamFrame = OpenedFrame | ErrorFrame | ExitFrame | EofFrame

_OPEN: TypeAdapter[OpenFrame] = TypeAdapter(OpenFrame)
_FROM_USER: TypeAdapter[UserFrame] = TypeAdapter(
    Annotated[EofFrame | ResizeFrame | SignalFrame, Field(discriminator="type")], config=_DEFERRED
)
_FROM_NODE: TypeAdapter[NodeStreamFrame] = TypeAdapter(
    Annotated[OpenedFrame | ErrorFrame | ExitFrame | EofFrame, Field(discriminator="type")], config=_DEFERRED
)
_REQUIRED = {StreamKind.EXEC: "argv", StreamKind.SSH: "public_key", StreamKind.PORT: "port"}


def parse_open(text: str) -> OpenFrame:
    """The first frame of a user. Raises InvalidFrame."""
    frame = _parse(_OPEN, text)
    required = _REQUIRED[frame.kind]
    if getattr(frame, required) is None:
        raise InvalidFrame(f"{required}: a stream of kind {frame.kind} needs it")
    return frame


def parse_from_user(text: str) -> UserFrame:
    """A later control frame of a user. Raises InvalidFrame."""
    return _parse(_FROM_USER, text, max_chars=_MAX_CONTROL_CHARS)


def parse_from_node(text: str) -> NodeStreamFrame:
    """A control frame of a node. Raises InvalidFrame."""
    return _parse(_FROM_NODE, text, max_chars=_MAX_CONTROL_CHARS)


def check_data(data: bytes) -> bytes:
    """Bytes of a stream. Raises InvalidFrame if there are too many."""
    if len(data) > MAX_DATA_BYTES:
        raise InvalidFrame(f"a message of a stream has at most {MAX_DATA_BYTES} bytes")
    return data


def _parse(adapter: TypeAdapter[Frame], text: str, *, max_chars: int = _MAX_OPEN_CHARS) -> Frame:
    if len(text) > max_chars:
        raise InvalidFrame(f"a control message has at most {max_chars} characters")
    try:
        return adapter.validate_json(text)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in problem["loc"])
        raise InvalidFrame(f"{where}: {problem['msg']}" if where else str(problem["msg"])) from None
    except ValueError as error:  # a lone surrogate
        raise InvalidFrame(f"not UTF-8: {error}") from None
