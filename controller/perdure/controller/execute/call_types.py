"""Calls of a cloud on their way from the dispatcher to a worker, and the results on their way back. Plain values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from perdure.controller.execute.call_order import QueuedLaunch
from perdure.controller.execute.machine_ids import MachineIds
from perdure.controller.runtime.keys import AttemptKey
from perdure.controller.store.clusters.cluster_disks import DiskChange
from perdure.controller.store.records.intents import Intent, IntentKind
from perdure.recovery import events
from perdure.recovery.market.view import Offer

_STORAGE_POOL = "storage"

Lifetimes = dict[int, tuple[float | None, float | None]]
"""rank → (launched, ended), epoch seconds, as the cloud bills them"""


@dataclass(frozen=True)
class IntentOutcome:
    """How an intent ended."""

    result: str  # as recorded with the intent: launched, refused, gone …
    event: events.Event  # what it means for the job
    error: str | None = None
    lifetimes: Lifetimes = field(default_factory=dict)
    disks: DiskChange | None = None  # what has become of the disks of a cluster's machines
    is_throttled: bool = False  # the cloud asked for fewer calls


@dataclass(frozen=True)
class RetryLater:
    """The result is not final: perform the intent again in `after_s` seconds."""

    after_s: float
    error: str | None = None  # recorded and shown
    attempted: bool = True  # an outside call was made, as far as is known
    #: Machines that were unknown so far. They are recorded at once: the cloud may stop listing them once they end.
    discovered: events.Launched | None = None
    is_throttled: bool = False  # the cloud asked for fewer calls
    disks: DiskChange | None = None  # what is to be recorded of the disks of a cluster's machines, with `error`


@dataclass(frozen=True)
class PerformIntent:
    """Carry out an intent."""

    intent: Intent
    machines: MachineIds  # of the attempt, as far as they are known
    try_count: int  # earlier tries whose result was not final

    @property
    def pool(self) -> str:
        """The cloud whose workers make this call; intents about buckets have a pool of their own."""
        request = self.intent.request
        return str(request["offer"]["cloud"]) if "offer" in request else _STORAGE_POOL

    @property
    def attempt_key(self) -> AttemptKey:
        return self.intent.attempt_key

    @property
    def launch(self) -> QueuedLaunch | None:
        """Its place in the fair queue. None for intents that end something: those skip the queue."""
        intent = self.intent
        if intent.kind not in (IntentKind.LAUNCH, IntentKind.PREPARE_STORAGE):
            return None
        request = intent.request
        return QueuedLaunch(intent.attempt_key, **request.get("queue", {}), machines=request.get("num_nodes", 0))


@dataclass(frozen=True)
class DescribeAttempt:
    """Ask the cloud about an attempt's machines."""

    key: AttemptKey
    offer: Offer
    machines: MachineIds

    @property
    def pool(self) -> str:
        return self.offer.cloud

    @property
    def attempt_key(self) -> AttemptKey:
        return self.key

    @property
    def launch(self) -> None:
        return None


CloudCall = PerformIntent | DescribeAttempt


@dataclass(frozen=True)
class IntentResult:
    """The result of performing an intent."""

    intent: Intent
    result: IntentOutcome | RetryLater


@dataclass(frozen=True)
class DescribeResult:
    """The cloud's description of an attempt's machines."""

    job_id: int
    event: events.MachinesDescribed


@dataclass(frozen=True)
class CallFeedback:
    """What a finished call means for the queue of its cloud."""

    is_throttled: bool = False  # the cloud asked for fewer calls
    may_exist: bool = True  # the requested machines exist, or may exist


ResultSink = Callable[[IntentResult | DescribeResult], None]
"""Takes results, from any thread."""
