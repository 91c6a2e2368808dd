"""What can happen to a job. Each is an observation or a wish; none is an order.

`task` is the task's index, `generation` the attempt's. Events may come late, twice, or about attempts long gone: `step`
has an answer to each in every state.
"""

from __future__ import annotations

from perdure.recovery.market import Refusal
from perdure.recovery.reasons import Reason
from perdure.recovery.statuses import NodePhase
from perdure.recovery.values import dataclass


@dataclass(frozen=True)
class Tick:
    """A wake time has come, or somebody thinks that the job deserves a look."""


@dataclass(frozen=True)
class CancelRequested:
    grace_s: float


@dataclass(frozen=True)
class StorageReady:
    task: int


@dataclass(frozen=True)
class StorageFailed:
    """A bucket can not be had, and no retry will help."""

    task: int
    message: str


@dataclass(frozen=True)
class Machine:
    rank: int
    instance_id: str
    ip: str | None = None


@dataclass(frozen=True)
class Launched:
    """Every machine of the attempt exists (booting or later)."""

    task: int
    generation: int
    machines: tuple[Machine, ...]


@dataclass(frozen=True)
class LaunchRefused:
    """The launch failed for good. `refusal.kind` says what to do next. `may_exist`: machines may have been bought by a
    try whose answer never came."""

    task: int
    generation: int
    refusal: Refusal
    may_exist: bool = False


@dataclass(frozen=True)
class LaunchWithdrawn:
    """The attempt was given up before its launch had its turn: it was never asked for, and is not going to be."""

    task: int
    generation: int


@dataclass(frozen=True)
class NodeReported:
    """A node's agent is connected and says where it stands (a whole snapshot, not a difference)."""

    task: int
    generation: int
    rank: int
    phase: NodePhase
    ip: str | None = None
    exit_code: int | None = None
    failed_stage: str | None = None
    interrupted: bool = False
    mount_lost: bool = False
    message: str = ""


@dataclass(frozen=True)
class NodeSilent:
    """A node's connection broke, or its beats stopped."""

    task: int
    generation: int
    rank: int


@dataclass(frozen=True)
class NoticeGiven:
    """The cloud says that it will take the machine at `deadline` (epoch seconds)."""

    task: int
    generation: int
    rank: int
    deadline: float


@dataclass(frozen=True)
class MachinesSeen:
    """The cloud's word on an attempt's machines: rank → why it is gone, or None while it exists."""

    task: int
    generation: int
    fates: dict[int, Reason | None]


@dataclass(frozen=True)
class AttemptGone:
    """The cloud confirms that no machine of the attempt exists any more."""

    task: int
    generation: int


@dataclass(frozen=True)
class Saved:
    """All work that the attempt had done by `at` (epoch seconds) is durable: `step` of `total_steps`, if it tells."""

    task: int
    generation: int
    at: float
    step: int | None = None
    total_steps: int | None = None


Event = (
    Tick
    | CancelRequested
    | StorageReady
    | StorageFailed
    | Launched
    | LaunchRefused
    | LaunchWithdrawn
    | NodeReported
    | NodeSilent
    | NoticeGiven
    | MachinesSeen
    | AttemptGone
    | Saved
)
