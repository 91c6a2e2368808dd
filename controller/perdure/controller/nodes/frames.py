"""The frames that a node sends, as typed values (docs/reference/agent-protocol.md).

A node runs the user's code and may send anything. So nothing passes from its connection into the controller but what
this module returns: finite numbers in their ranges, known words, and text of limited length.
"""

from __future__ import annotations

import contextlib
import ipaddress
import re
import socket
from dataclasses import dataclass as plain_dataclass
from dataclasses import field as plain_field
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field, StringConstraints, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from perdure.recovery.statuses import NodePhase

# A close frame has room for 123 bytes of text.
_MAX_REASON_CHARS = 120
_MAX_HEADER_BYTES = 256
_MAX_INT = 2**63 - 1
_MAX_SEQ = 2**31 - 1  # its column is an integer of 32 bits
# Of a report's message; the rest is cut off. A frame has at most 1 MiB.
_MAX_MESSAGE_CHARS = 2000
_MAX_SLOTS = 10_000
_MAX_GPUS = 64
_MAX_VALUES = 8
_ADDRESS = re.compile(r"[0-9A-Fa-f:.]{2,45}(%[0-9A-Za-z._-]{1,32})?")
# Unknown fields are ignored: the agent may be newer than this controller. Validators are built for the first frame,
# because users and nodes wait for a daemon that starts.
_CONFIG = ConfigDict(strict=True, allow_inf_nan=False, extra="ignore", defer_build=True)


class InvalidFrame(ValueError):
    """A frame that breaks the protocol. The text says why; it is printable and short enough for a close frame."""

    def __init__(self, why: str) -> None:
        super().__init__(_printable(why)[:_MAX_REASON_CHARS])


class CheckpointState(StrEnum):
    """What a line of the checkpoint journal reports. The controller treats SAVED like COMMITTED."""

    SAVED = "saved"
    COMMITTED = "committed"
    DURABLE = "durable"
    LOADED = "loaded"


class SlotState(StrEnum):
    """What a node that holds machines of a cluster reports of a slot."""

    RUNNING = "running"
    ENDED = "ended"  # nothing of it runs, and nothing will


def _printable(text: str) -> str:
    return text if text.isprintable() else "".join(c if c.isprintable() else " " for c in text)


def _short_message(text: str) -> str:
    return _printable(text[:_MAX_MESSAGE_CHARS])


def _reported_phase(phase: NodePhase) -> NodePhase:
    if phase is NodePhase.NOT_CONNECTED:
        raise ValueError("not a phase that a node reports")
    return phase


def _address(text: str) -> str:
    if text and not _ADDRESS.fullmatch(text):
        raise ValueError("not an IP address")
    if not text:
        return ""
    with contextlib.suppress(OSError):
        socket.inet_pton(socket.AF_INET, text)  # accepts only the canonical form, and `ipaddress` is slow
        return text
    return str(ipaddress.ip_address(text))


Count = Annotated[int, Field(ge=0, le=_MAX_INT)]
ExitCode = Annotated[int, Field(ge=-(2**31), le=2**31 - 1)]
# The upper bound is far from any clock, and low enough that sums of times stay finite.
EpochSeconds = Annotated[float, Field(ge=0.0, le=1e11)]
MAX_REVISION = _MAX_SEQ
Revision = Annotated[int, Field(ge=0, le=MAX_REVISION)]
Bytes = Annotated[float, Field(ge=0.0, le=1e18)]
Word = Annotated[str, StringConstraints(max_length=100), AfterValidator(_printable)]
Path = Annotated[str, StringConstraints(max_length=4096, pattern=r"^[^\x00]*$")]
ValueName = Annotated[str, StringConstraints(max_length=40, pattern=r"^[A-Za-z_][A-Za-z0-9_./-]*$")]
Value = Annotated[float, Field(ge=-1e30, le=1e30)]  # so that sums stay finite
Message = Annotated[str, AfterValidator(_short_message)]
Phase = Annotated[NodePhase, AfterValidator(_reported_phase)]
Address = Annotated[str, AfterValidator(_address)]


@dataclass(frozen=True, slots=True, kw_only=True, config=_CONFIG)
class LogSize:
    size: Count = 0  # of the node's whole log, in bytes


@dataclass(frozen=True, slots=True, kw_only=True, config=_CONFIG)
class CheckpointCount:
    seq: Annotated[int, Field(ge=0, le=_MAX_SEQ)] = 0  # the number of the node's last checkpoint message


@dataclass(frozen=True, slots=True, kw_only=True, config=_CONFIG)
class SlotReport:
    """The state of one slot: the node of a cluster's job on this node."""

    id: Word
    state: SlotState


@dataclass(frozen=True, slots=True, kw_only=True, config=_CONFIG)
class NodeReport:
    """The state of a node: a whole snapshot."""

    phase: Phase
    ip: Address | None = None
    exit_code: ExitCode | None = None
    failed_stage: Literal["start", "mounts", "setup", "run", "flush"] | None = None
    interrupted: bool = False
    mount_lost: bool = False
    message: Message = ""
    slots: Annotated[list[SlotReport], Field(max_length=_MAX_SLOTS)] | None = None  # None: it is no node of a cluster


@dataclass(frozen=True, slots=True, kw_only=True, config=_CONFIG)
class ReportFrame(NodeReport):
    type: Literal["report"]
    logs: LogSize = LogSize()
    checkpoints: CheckpointCount = CheckpointCount()


@dataclass(frozen=True, slots=True, kw_only=True, config=_CONFIG)
class HelloFrame:
    """The first frame of every connection."""

    type: Literal["hello"]
    report: NodeReport
    logs: LogSize = LogSize()
    checkpoints: CheckpointCount = CheckpointCount()
    agent: Word = ""  # its version
    serves: bool = False  # it is a replica of a service
    revision: Revision | None = None  # of the node spec that it runs; None: an older agent, which keeps the first one


@dataclass(frozen=True, slots=True, kw_only=True, config=_CONFIG)
class NoticeFrame:
    """An interruption notice. Only a rebalance recommendation has no deadline."""

    type: Literal["notice"]
    deadline: EpochSeconds | None = None
    at: EpochSeconds | None = None  # the node's time now; its clock may differ from the controller's
    action: Word = ""
    source: Word = ""

    @property
    def is_rebalance(self) -> bool:
        return self.action == "rebalance"


@dataclass(frozen=True, slots=True, kw_only=True, config=_CONFIG)
class CheckpointFrame:
    """A line of the node's checkpoint journal."""

    type: Literal["checkpoint"]
    seq: Annotated[int, Field(ge=1, le=_MAX_SEQ)]
    step: Count
    state: CheckpointState
    path: Path = ""
    at: EpochSeconds | None = None
    total_steps: Annotated[int, Field(ge=1, le=_MAX_INT)] | None = None


@dataclass(frozen=True, slots=True, kw_only=True, config=_CONFIG)
class GpuUsage:
    """The means of one GPU since the frame before."""

    utilization: Annotated[float, Field(ge=0.0, le=1.0)]  # the share of the time in which a kernel ran
    memory_used: Bytes
    memory_total: Bytes
    power_w: Annotated[float, Field(ge=0.0, le=1e6)] = 0.0
    temperature_c: Annotated[float, Field(ge=-300.0, le=1e4)] = 0.0


@dataclass(frozen=True, slots=True, kw_only=True, config=_CONFIG)
class UsageFrame:
    """What a node's machine uses: the means of the last minute."""

    type: Literal["usage"]
    cpus: Annotated[float, Field(ge=0.0, le=1e5)]
    cpu_used: Annotated[float, Field(ge=0.0, le=1e6)]  # processors
    memory_used: Bytes
    memory_total: Bytes
    disk_used: Bytes
    disk_total: Bytes
    received_per_s: Bytes = 0.0
    sent_per_s: Bytes = 0.0
    gpus: Annotated[list[GpuUsage], Field(max_length=_MAX_GPUS)] = plain_field(default_factory=list)
    #: The program's own report, if there is a new one: its step, and numbers such as the loss.
    step: Count | None = None
    values: Annotated[dict[ValueName, Value], Field(max_length=_MAX_VALUES)] = plain_field(default_factory=dict)

    @property
    def busy_share(self) -> float:
        """The share of all processors that is used, or that of the busiest GPU if it is greater."""
        of_cpus = self.cpu_used / self.cpus if self.cpus else 1.0
        return max(of_cpus, *(gpu.utilization for gpu in self.gpus), 0.0)


@dataclass(frozen=True, slots=True, kw_only=True, config=_CONFIG)
class ReadinessFrame:
    """Whether the program of a service's replica is ready. `failing_s`: for how long it has not been, by its probes."""

    type: Literal["readiness"]
    ready: bool
    status: Annotated[int, Field(ge=0, le=999)] | None = None
    message: Message = ""
    failing_s: Annotated[float, Field(ge=0.0, le=1e9)] | None = None
    revision: Revision | None = None  # as in `hello`
    running_s: Annotated[float, Field(ge=0.0, le=1e9)] | None = None  # since the first probe of this revision
    has_ended: bool = False  # its program has ended before it was ready, and the machine waits for another revision


@dataclass(frozen=True, slots=True, kw_only=True, config=_CONFIG)
class HeartbeatFrame:
    type: Literal["heartbeat"]


@plain_dataclass(frozen=True, slots=True)
class UnknownFrame:
    """A frame of a type that this version does not know: of a newer agent. It is ignored."""


@plain_dataclass(frozen=True, slots=True)
class LogFrame:
    """Bytes of the node's log, from `offset`."""

    offset: int
    data: bytes


KnownFrame = HelloFrame | ReportFrame | NoticeFrame | CheckpointFrame | HeartbeatFrame | UsageFrame | ReadinessFrame
NodeFrame = KnownFrame | UnknownFrame

_KNOWN: TypeAdapter[NodeFrame] = TypeAdapter(
    Annotated[KnownFrame, Field(discriminator="type")], config=ConfigDict(defer_build=True)
)
_LOG_HEADER = re.compile(rb'\{"offset": ?([0-9]{1,19})\}')


def parse_text(text: str) -> NodeFrame:
    """The frame of a text message. Raises InvalidFrame."""
    try:
        frame = _KNOWN.validate_json(text)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        if problem["type"] == "union_tag_invalid":
            return UnknownFrame()
        raise InvalidFrame(_describe(problem)) from None
    except ValueError as error:  # a lone surrogate
        raise InvalidFrame(f"not UTF-8: {error}") from None
    if isinstance(frame, NoticeFrame) and frame.deadline is None and not frame.is_rebalance:
        raise InvalidFrame("notice.deadline: a number is required")
    return frame


def parse_log(message: bytes) -> LogFrame:
    """The frame of a binary message. Raises InvalidFrame."""
    end = message.find(b"\n", 0, _MAX_HEADER_BYTES)
    header = _LOG_HEADER.fullmatch(message, 0, end) if end >= 0 else None
    if header is None:
        raise InvalidFrame('log: it must begin with a line {"offset": n}')
    offset = int(header[1])
    if offset + len(message) > _MAX_INT:
        raise InvalidFrame("log.offset: too large")
    return LogFrame(offset, message[end + 1 :])


def _describe(problem: Any) -> str:
    where = ".".join(str(part) for part in problem["loc"])
    return f"{where}: {problem['msg']}" if where else str(problem["msg"])
