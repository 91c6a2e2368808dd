"""What can happen to a job. Each event is an observation or a user's request.

`task` is the task's index, `generation` the attempt's. Events may arrive late, twice, or for attempts that are long
gone: `step` handles each event in every state.
"""

from __future__ import annotations

from dataclasses import field

from perdure.recovery.frozen import dataclass
from perdure.recovery.market.unavailable import UnavailableOffer
from perdure.recovery.reasons import Reason
from perdure.recovery.statuses import NodePhase


@dataclass(frozen=True)
class Tick:
    """The job's wake time has come, or the controller wants its rules evaluated again."""


@dataclass(frozen=True)
class CancelRequested:
    grace_s: float  # time to save and flush; 0 stops at once


@dataclass(frozen=True)
class SlotGranted:
    """The queue of the job's cluster has a slot for the task: `MarketView.offers` has it."""

    task: int


@dataclass(frozen=True)
class StorageReady:
    """All buckets of the task exist."""

    task: int


@dataclass(frozen=True)
class StorageFailed:
    """A bucket cannot be used, and retrying will not help."""

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
    """The launch failed for good. `unavailable.kind` says what to do next."""

    task: int
    generation: int
    unavailable: UnavailableOffer
    may_exist: bool = False  # a call whose response was lost may have launched machines
    is_final: bool = False  # what the task needs is lost: no other attempt can run it


@dataclass(frozen=True)
class LaunchCancelled:
    """The attempt was given up while its launch was queued: the cloud was never called, and will not be."""

    task: int
    generation: int


@dataclass(frozen=True)
class NodeReported:
    """The state of a connected node's agent: a whole snapshot, not a difference."""

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
class NodeDisconnected:
    """A node's connection broke, or its heartbeats stopped."""

    task: int
    generation: int
    rank: int


@dataclass(frozen=True)
class PreemptionNotice:
    """The cloud announced that it will take the machine at `deadline` (epoch seconds).

    A node may have several notices: the earliest deadline counts, and shortens a drain that has begun.
    """

    task: int
    generation: int
    rank: int
    deadline: float
    confirmed: bool = False  # received from the cloud itself; otherwise the node alone reports it


@dataclass(frozen=True)
class MachinesDescribed:
    """The cloud's description of an attempt's machines."""

    task: int
    generation: int
    #: By rank: why the machine is gone, or None while it exists. RUN_FAILED and PRECHECKS_FAILED: by the task's own
    #: doing, such as more memory than it asked for, or an image that does not exist.
    gone_reasons: dict[int, Reason | None]
    messages: dict[int, str] = field(default_factory=dict)  # by rank: the cloud's own words, for people
    #: The ranks whose machines have not started: they wait in a queue of the cloud, and cannot connect yet.
    waiting: frozenset[int] = frozenset()


@dataclass(frozen=True)
class AttemptGone:
    """The cloud confirms that no machine of the attempt exists any more."""

    task: int
    generation: int
    preempted: bool = False  # the cloud reports that it took one of them back


@dataclass(frozen=True)
class CheckpointDurable:
    """All work that the attempt had done by `at` (epoch seconds) is durable."""

    task: int
    generation: int
    at: float
    step: int | None = None  # the training step that was saved, and how many there are, if the workload reports them
    total_steps: int | None = None


@dataclass(frozen=True)
class StepSaved:
    """The workload has saved a training step, or reports that it has reached one."""

    task: int
    generation: int
    step: int


@dataclass(frozen=True)
class CheckpointLoaded:
    """The workload has loaded a training step, perhaps to continue from it."""

    task: int
    generation: int
    step: int


@dataclass(frozen=True)
class GpusReported:
    """A node has looked at its GPUs: whether one of them is at work."""

    task: int
    generation: int
    busy: bool


Event = (
    Tick
    | CancelRequested
    | SlotGranted
    | StorageReady
    | StorageFailed
    | Launched
    | LaunchRefused
    | LaunchCancelled
    | NodeReported
    | NodeDisconnected
    | PreemptionNotice
    | MachinesDescribed
    | AttemptGone
    | CheckpointDurable
    | StepSaved
    | CheckpointLoaded
    | GpusReported
)
