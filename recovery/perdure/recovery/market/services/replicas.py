"""The replicas of a service: their statuses, which are SkyPilot's, and that of the service."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from perdure.recovery.frozen import dataclass
from perdure.recovery.market.services.spec import ServiceSpec
from perdure.recovery.reasons import Reason, meaning_of
from perdure.recovery.statuses import AttemptState, Status


class ReplicaStatus(StrEnum):
    """What users see of a replica."""

    PENDING = "PENDING"
    PROVISIONING = "PROVISIONING"
    STARTING = "STARTING"
    READY = "READY"
    NOT_READY = "NOT_READY"
    SHUTTING_DOWN = "SHUTTING_DOWN"
    FAILED = "FAILED"
    FAILED_INITIAL_DELAY = "FAILED_INITIAL_DELAY"
    FAILED_PROBING = "FAILED_PROBING"
    FAILED_PROVISION = "FAILED_PROVISION"
    PREEMPTED = "PREEMPTED"
    TERMINATED = "TERMINATED"


class ServiceStatus(StrEnum):
    """What users see of a service."""

    REPLICA_INIT = "REPLICA_INIT"
    READY = "READY"
    NO_REPLICA = "NO_REPLICA"
    FAILED = "FAILED"
    SHUTTING_DOWN = "SHUTTING_DOWN"
    DOWN = "DOWN"


FAILURES = frozenset(
    {
        ReplicaStatus.FAILED,
        ReplicaStatus.FAILED_INITIAL_DELAY,
        ReplicaStatus.FAILED_PROBING,
        ReplicaStatus.FAILED_PROVISION,
    }
)
"""Ends of a replica that are the fault of its program or of its task."""
FINAL = FAILURES | {ReplicaStatus.PREEMPTED, ReplicaStatus.TERMINATED}

_BEFORE_SETUP = (AttemptState.REQUESTED, AttemptState.BOOTING)
_STOPPED = (AttemptState.DRAINING, AttemptState.STOPPED, AttemptState.GONE)
_NOT_PROVISIONED = (Status.FAILED_NO_RESOURCE, Status.FAILED_PRECHECKS)


@dataclass(frozen=True)
class Probe:
    """The newest report of a replica's agent. `failing_since`: when the first of the failures in a row was."""

    ready: bool
    failing_since: float | None = None
    message: str = ""
    #: Of the task that the node runs: it grows with each version that the replica gets in place. None: an older agent.
    revision: int | None = 0
    running_since: float | None = None  # when `run` of this revision was first probed
    has_ended: bool = False  # its program has ended, or could not be started, before it was ever ready


@dataclass(frozen=True)
class Replica:
    """One replica, as its job and its agent report it. Times are epoch seconds."""

    number: int
    version: int
    is_spot: bool
    created_at: float
    job_status: Status | None = None  # None: the job is not submitted yet
    outcome: Reason | None = None  # of the job's task, once it is known
    message: str = ""  # of the job's task
    attempt_state: AttemptState | None = None  # of its newest attempt
    running_at: float | None = None  # when `run` of that attempt started
    probe: Probe | None = None  # None: it has not reported yet, or its node is not connected
    was_ready: bool = False
    #: It gets this version on its machine once it has answered its requests. None: it keeps the one that it has.
    changes_to: int | None = None
    was_changed: bool = False  # it has got its version on the machine of an earlier one
    is_briefly_silent: bool = (
        False  # its node has not been connected for a moment, or not since this controller has started
    )
    #: Why it is being ended, and how that ends: one of `FINAL`. None: it is wanted.
    retired_as: ReplicaStatus | None = None
    in_flight: int = 0  # requests that it answers now
    accelerator: str | None = None  # such as A100:8
    zone: str | None = None

    @property
    def is_ending(self) -> bool:
        """It ends, whoever began that: it takes no more requests, and needs a replacement."""
        return (
            self.retired_as is not None
            or self.outcome is not None
            or (self.was_ready and self.attempt_state in _STOPPED)
        )

    @property
    def is_ready(self) -> bool:
        """It may get requests."""
        return self.changes_to is None and self.would_be_ready

    @property
    def would_be_ready(self) -> bool:
        """It is ready, but for a change of its version that has been decided."""
        return not self.is_ending and self.probe is not None and self.probe.ready

    @property
    def is_silent(self) -> bool:
        """It was ready, and its node is not connected: it may be ready still."""
        return self.was_ready and self.probe is None

    @property
    def is_held(self) -> bool:
        """It is ready, or will be in a moment: no other machine needs to stand in for it.

        A controller that has just started has not heard from the nodes yet. A replica whose version is changed in place
        has its machine.
        """
        if self.is_ending or self.attempt_state is not AttemptState.RUNNING:
            return False
        is_in_change = self.changes_to is not None or (self.was_changed and not self.was_ready)
        return self.would_be_ready or (self.is_silent and self.is_briefly_silent) or is_in_change

    @property
    def status(self) -> ReplicaStatus:
        """The status as long as its job is not over; `final_status` afterwards."""
        if self.is_ending:
            return ReplicaStatus.SHUTTING_DOWN
        if self.is_ready:
            return ReplicaStatus.READY
        if self.was_ready:
            return ReplicaStatus.NOT_READY
        if self.attempt_state is None or self.job_status in (None, Status.PENDING):
            return ReplicaStatus.PENDING
        return ReplicaStatus.PROVISIONING if self.attempt_state in _BEFORE_SETUP else ReplicaStatus.STARTING

    @property
    def final_status(self) -> ReplicaStatus:
        """The status once its job is over."""
        if self.retired_as is not None:
            return self.retired_as
        if self.outcome is Reason.NOT_RECOVERED:
            return ReplicaStatus.PREEMPTED
        if self.outcome is Reason.USER_CANCELLED:
            return ReplicaStatus.TERMINATED
        status = meaning_of(self.outcome).status if self.outcome is not None else None
        return ReplicaStatus.FAILED_PROVISION if status in _NOT_PROVISIONED else ReplicaStatus.FAILED

    @property
    def has_failed(self) -> bool:
        """It ends by its own fault."""
        return (
            self.is_ending
            and (self.retired_as is not None or self.outcome is not None)
            and (self.final_status in FAILURES)
        )


def failure_of(replica: Replica, spec: ServiceSpec, now: float) -> tuple[ReplicaStatus, str] | None:
    """Why a replica that runs must be given up: its status then, and a sentence for users. None: it need not."""
    if replica.is_ending or replica.is_ready or replica.attempt_state is not AttemptState.RUNNING:
        return None
    probe = replica.probe
    if probe is not None and probe.has_ended:
        return ReplicaStatus.FAILED, probe.message
    if replica.running_at is None or replica.changes_to is not None:
        return None
    why = f": {probe.message}" if probe is not None and probe.message else ""
    if not replica.was_ready:
        if now - replica.running_at < spec.initial_delay_s:
            return None
        text = f"not ready {spec.initial_delay_s:g} s after `run` had started (initial_delay_seconds){why}"
        return ReplicaStatus.FAILED_INITIAL_DELAY, text
    if probe is None or probe.failing_since is None:
        return None  # a node that is not connected is the business of its job
    if now - probe.failing_since < spec.failure_threshold_s:
        return None
    text = f"its readiness probe has failed for {spec.failure_threshold_s:g} s{why}"
    return ReplicaStatus.FAILED_PROBING, text


def decision_at(replica: Replica, spec: ServiceSpec) -> float | None:
    """When `failure_of` may give another answer if nothing else happens."""
    if replica.is_ending or replica.is_ready or replica.running_at is None or replica.changes_to is not None:
        return None
    if not replica.was_ready:
        return replica.running_at + spec.initial_delay_s
    since = replica.probe.failing_since if replica.probe is not None else None
    return None if since is None else since + spec.failure_threshold_s


def service_status(replicas: Sequence[Replica], *, is_wanted: bool, has_failed: bool) -> ServiceStatus:
    """The status of a service whose replicas that are not over are `replicas`.

    `has_failed`: a replica of the newest version has failed, and none of that version was ever ready.
    """
    if not is_wanted:
        return ServiceStatus.SHUTTING_DOWN if replicas else ServiceStatus.DOWN
    if any(replica.is_ready for replica in replicas):
        return ServiceStatus.READY
    if has_failed:
        return ServiceStatus.FAILED
    return (
        ServiceStatus.REPLICA_INIT if any(not replica.is_ending for replica in replicas) else ServiceStatus.NO_REPLICA
    )
