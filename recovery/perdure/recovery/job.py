"""A job as the decision functions see it: frozen values, times in epoch seconds (UTC).

A `JobView` holds tasks, a task its live attempts, an attempt its nodes. `step` takes a `View` and returns a new
`JobView`. The store keeps these fields in columns of the same names.
"""

from __future__ import annotations

from dataclasses import field

from perdure.recovery.frozen import cached, dataclass, replace
from perdure.recovery.market.requirements import MachineRequirement
from perdure.recovery.market.unavailable import UnavailableOffer
from perdure.recovery.market.view import MarketView, Offer
from perdure.recovery.reasons import Reason, terminal_status
from perdure.recovery.statuses import ENDED_PHASES, AttemptState, NodePhase, Status, TaskState

# So many recoveries of a task in an hour happen to no honest job for long, and cost little.
DEFAULT_RECOVERIES_PER_HOUR = 20


@dataclass(frozen=True)
class Timeouts:
    """How long to wait in each situation, in seconds."""

    boot_timeout_s: float = 900.0  # until the agents of new machines must have connected
    node_timeout_s: float = 180.0  # until a disconnected node is given up though its machine runs
    drain_timeout_s: float = 60.0  # for a drain without a notice: SIGTERM, save, flush
    describe_interval_s: float = 5.0  # at most this long between two queries for a disconnected node's machine
    backoff_initial_s: float = 1.0  # the pause after a failed launch if no offer is left; doubles with each failure
    backoff_max_s: float = 60.0
    unsatisfiable_retry_s: float = 300.0  # between two searches for a job that has run and that no offer fits any more


@dataclass(frozen=True)
class Recovery:
    """`job_recovery` of the task."""

    strategy: str = "CHEAPEST"
    max_restarts_on_errors: int = 0
    recover_on_exit_codes: frozenset[int] = frozenset()
    deadline_at: float | None = None  # epoch seconds by which the task shall have ended
    work_s: float | None = None  # how long the task runs if nothing is lost
    on_time: float = 1.0  # the share of such tasks that must meet the deadline; 1: all, whatever it costs
    patience: float = 0.05  # how much later than with the fastest choice it may end to save cost: 0.05 is 5 %
    move_cost: float = 0.0  # USD for transferring the task's data to another region
    recovers: bool = True  # False: the task ends when it loses a machine, as a cluster does
    keep_on_failure_s: float = 0.0  # how long the machines of a task that has failed are kept for a look
    stuck_after_s: float | None = None  # how long it may show no progress before the user is told
    restart_when_stuck_s: float | None = None  # the same, before it is restarted
    max_duration_s: float | None = None  # how long after the first start of `run` it ends
    max_run_s: float | None = None  # the same, but only the time that `run` takes counts: a job of a cluster waits
    max_cost: float | None = None  # USD that its machines may cost
    taken_zones: tuple[str, ...] = ()  # of others of its service, once for each: SPREAD tries them last
    avoided: tuple[UnavailableOffer, ...] = ()  # where the service's other replicas lost machines before it started

    @cached
    def has_limits(self) -> bool:
        """Whether the task limits how long it stands still or runs, or what it costs."""
        durations = (self.stuck_after_s, self.restart_when_stuck_s, self.max_duration_s, self.max_run_s)
        return any(limit is not None for limit in (*durations, self.max_cost))


@dataclass(frozen=True)
class Cancel:
    """A user's request to end the job."""

    at: float
    grace_s: float  # time to save and flush after SIGTERM; 0 stops at once


@dataclass(frozen=True)
class NodeView:
    """One machine of an attempt, as its agent last reported and its cloud last described it."""

    rank: int
    phase: NodePhase = NodePhase.NOT_CONNECTED
    instance_id: str | None = None
    ip: str | None = None
    connected: bool = False
    disconnected_since: float | None = None
    exit_code: int | None = None  # of the stage that failed or finished
    failed_stage: str | None = None  # "mounts", "setup", "run" or "flush"
    interrupted: bool = False  # the workload was asked to stop before it ended
    mount_lost: bool = False
    message: str = ""
    notice_deadline: float | None = None  # when the cloud will take the machine, by its earliest notice
    gone_reason: Reason | None = None  # set once the machine is known to be gone

    @property
    def has_stopped(self) -> bool:
        """Nothing of the workload runs on this node, and nothing will."""
        return self.gone_reason is not None or self.phase in ENDED_PHASES


# Tuples: `in` compares a few members by identity, which is much cheaper than hashing an enum member for a set.
_ENDING = (AttemptState.DRAINING, AttemptState.STOPPED, AttemptState.GONE)
_RUNNING, _GONE, _ENDED = AttemptState.RUNNING, AttemptState.GONE, TaskState.ENDED
_HAS_NO_WORKLOAD = (AttemptState.REQUESTED, AttemptState.BOOTING, AttemptState.STOPPED, AttemptState.GONE)


@dataclass(frozen=True)
class AttemptView:
    """One try at a task on one placement."""

    generation: int
    state: AttemptState
    offer: Offer
    nodes: tuple[NodeView, ...]
    requested_at: float
    booted_at: float | None = None
    running_at: float | None = None
    drain_until: float | None = None  # when a drain is cut short
    reason: Reason | None = None  # why it is being drained or has stopped
    terminating: bool = False  # termination of its machines has been requested
    # When a rank reported a failure. Before the task fails, the other ranks have to reconnect and their machines are
    # described, since a rank often fails because another machine was lost.
    failing_since: float | None = None
    described_at: float | None = None  # when the cloud last described its machines
    describe_requested_at: float | None = None
    loss_confirmed: bool = False  # the cloud itself reports that it takes, or that it lost, a machine of the attempt

    @cached
    def healthy(self) -> bool:
        """No node is gone, disconnected, interrupted, about to be preempted, or without its mount."""
        for n in self.nodes:
            in_doubt = n.gone_reason is not None or n.disconnected_since is not None or n.notice_deadline is not None
            if in_doubt or n.interrupted or n.mount_lost:
                return False
        return True

    @cached
    def is_steady(self) -> bool:
        """It runs, it is healthy, no rank has ended, and no query about its machines is open."""
        runs = self.state is _RUNNING and not self.terminating and self.failing_since is None
        return runs and self.healthy and not any(n.has_stopped or n.failed_stage is not None for n in self.nodes)

    @property
    def is_live(self) -> bool:
        return self.state is not _GONE

    @property
    def is_wanted(self) -> bool:
        """Meant to run or running: neither drained, nor stopped, nor being terminated."""
        return not self.terminating and self.state not in _ENDING

    @property
    def may_run_workload(self) -> bool:
        """Whether a process of the user may be running, as far as is known."""
        if self.state in _HAS_NO_WORKLOAD:
            return False
        return not all(node.has_stopped for node in self.nodes)

    def with_node(self, node: NodeView) -> AttemptView:
        return replace(self, nodes=tuple(node if n.rank == node.rank else n for n in self.nodes))


# Durable work, measured in steps, after which these are believed: an hour of it, or this share of the stated work.
_BELIEVED_AFTER_S = 3600.0
_BELIEVED_SHARE = 0.1
# Stated work that is this much too small still agrees with the steps: no work is known better.
_AGREEMENT = 1.005

# Remaining steps may be slower than those seen, by this share at first and less the more have been seen: it halves with
# an hour of them. Overestimating work keeps deadlines safe.
_STEP_TIME_MARGIN = 0.1
_MARGIN_HALVES_S = 3600.0


def step_time_margin(seen_s: float) -> float:
    """The factor for the time of the remaining steps, after `seen_s` seconds of steps have been seen."""
    return 1 + _STEP_TIME_MARGIN / (1 + max(0.0, seen_s) / _MARGIN_HALVES_S)


@dataclass(frozen=True)
class TaskView:
    """One task of a job. Work is counted in seconds of running."""

    index: int
    requirements: tuple[MachineRequirement, ...]
    num_nodes: int = 1
    recovery: Recovery = Recovery()
    state: TaskState = TaskState.WAITING
    reason: Reason = Reason.SUBMITTED
    outcome: Reason | None = None
    message: str = ""
    attempts: tuple[AttemptView, ...] = ()  # those not yet GONE, oldest first
    next_generation: int = 1
    last_offer: Offer | None = None  # of the newest attempt
    preempted_from: Offer | None = None
    recovery_count: int = 0
    restarts_on_errors: int = 0
    consecutive_refusals: int = 0  # failed launches since the last one that succeeded
    has_run: bool = False
    wake_at: float | None = None
    started_at: float | None = None
    run_since: float | None = None  # None while it does not run
    run_seconds: float = 0.0  # in RUNNING, up to `run_since`
    ended_at: float | None = None
    storage_ready: bool = True  # its buckets exist, or it has none
    storage_requested: bool = False
    resumed_s: float = 0.0  # work that was done when the current or last run began
    saved_s: float | None = None  # work that is reported durable; None until the first report
    late_since: float | None = None  # when even an uninterrupted machine could no longer meet the deadline
    first_step: int | None = None  # the first step that was reported durable
    first_step_s: float = 0.0  # the work that had been done by then
    estimated_s: float | None = None  # work of all steps, extrapolated from `first_step` and later ones
    recovery_debt_until: float = 0.0  # when its recoveries so far no longer count: see `rules.backoff`
    last_step: int | None = None  # the step that was saved last
    step_at: float | None = None  # when another step than before was reported
    busy_at: float | None = None  # when a GPU was last seen at work, or first seen at all
    gpus_at: float | None = None  # when its GPUs were last reported; only in memory
    saved_step: int | None = None  # the step of `saved_s`, and the generation that reported it; both only in memory
    saved_in: int = 0
    loaded: tuple[int, int] | None = None  # generation, and newest step that it loaded before a save; only in memory
    undone_s: float = 0.0  # lost by loading an older step: `saved_s` and `resumed_s` are without it; only in memory
    stuck_since: float | None = None  # since when it has made no progress, once the user has been told
    spent_usd: float = 0.0  # the cost of the attempts that are gone
    budget_warned: bool = False

    @property
    def work_s(self) -> float | None:
        """Seconds of running in all if nothing is lost: as its steps indicate once they are believed, else as stated.

        Stated work that agrees with the steps is kept. While the user states nothing, any estimate is better.
        """
        if self.recovery.work_s is None or (self.believes_steps and not self._agrees_with_steps):
            return self.estimated_s
        return self.recovery.work_s

    @property
    def cautious_work_s(self) -> float | None:
        """The most that `work_s` may turn out to be: while its steps are not believed, the larger of the two."""
        stated_s, estimated_s = self.recovery.work_s, self.estimated_s
        if stated_s is None or estimated_s is None or self.believes_steps or self._agrees_with_steps:
            return self.work_s
        return max(stated_s, estimated_s)

    @property
    def believes_steps(self) -> bool:
        """Whether enough durable work has been measured in steps to believe them rather than the user's `work`."""
        if self.estimated_s is None or self.saved_s is None:
            return False
        return self.saved_s - self.first_step_s >= self._trial_s

    @property
    def work_is_unproven(self) -> bool:
        """Whether the stated work has yet to be confirmed: by the first hour, or by the steps that it reports."""
        if self.recovery.work_s is None or self.estimated_s is not None:
            return False
        return self.first_step is not None or self.durable_s < self._trial_s

    @property
    def _trial_s(self) -> float:
        return min(_BELIEVED_AFTER_S, _BELIEVED_SHARE * (self.recovery.work_s or 0.0))

    @property
    def _agrees_with_steps(self) -> bool:
        """Whether the stated work lies between the estimate without its margin and with it."""
        stated_s, estimated_s, saved_s = self.recovery.work_s, self.estimated_s, self.saved_s
        if stated_s is None or estimated_s is None or saved_s is None:
            return False
        measured_s = saved_s + (estimated_s - saved_s) / step_time_margin(saved_s - self.first_step_s)
        return measured_s <= stated_s * _AGREEMENT and stated_s <= estimated_s

    @property
    def home(self) -> tuple[str, str] | None:
        """The cloud and region that hold the task's data: where it runs, or last ran. None before it has run."""
        current = self.current
        if current is not None and current.state is _RUNNING:
            return current.offer.cloud, current.offer.region
        if not self.has_run:
            return None
        # While launches are being refused, `last_offer` is one that was tried, not the one on which the task ran.
        last = self.preempted_from if self.consecutive_refusals and self.preempted_from else self.last_offer
        return (last.cloud, last.region) if last else None

    @property
    def current(self) -> AttemptView | None:
        """The attempt that runs, else the newest that is meant to run; None while there is none."""
        newest = None
        for attempt in reversed(self.attempts):
            if attempt.is_wanted:
                if attempt.state is _RUNNING:
                    return attempt
                newest = newest or attempt
        return newest

    @property
    def replacement(self) -> AttemptView | None:
        """The newer attempt that shall take over from `current`, which runs on until then; None while there is none."""
        if len(self.attempts) < 2:
            return None
        wanted = [a for a in self.attempts if a.is_wanted]
        return wanted[-1] if len(wanted) > 1 else None

    def progress_s(self, now: float) -> float:
        """Seconds of work done: what a run would have taken so far had nothing been lost."""
        if self.run_since is None:
            return self.durable_s
        return self.resumed_s + now - self.run_since

    @property
    def durable_s(self) -> float:
        """Seconds of work that are known to survive a loss of the machine."""
        return self.resumed_s if self.saved_s is None else self.saved_s

    def continued_from(self, step: int) -> TaskView:
        """The task without the durable work after `step`, from which its run continues.

        The newest checkpoint may be damaged, or removed. Each step is assumed to take as long as the steps so far did.
        """
        if self.saved_step is None or self.saved_s is None or self.first_step is None:
            return self
        before_s = kept_s = self.saved_s + self.undone_s
        if step < min(self.first_step, self.saved_step):
            kept_s = 0.0
        elif step < self.saved_step:
            share = (step - self.first_step) / (self.saved_step - self.first_step)
            kept_s = self.first_step_s + share * (before_s - self.first_step_s)
        return replace(self, saved_s=kept_s, resumed_s=kept_s, undone_s=before_s - kept_s)

    @property
    def status(self) -> Status:
        """What users see."""
        match self.state:
            case TaskState.ENDED:
                assert self.outcome is not None
                return terminal_status(self.outcome) or Status.FAILED_CONTROLLER
            case TaskState.STOPPING if self.outcome is Reason.USER_CANCELLED:
                return Status.CANCELLING
            case TaskState.STOPPING if not self.has_run:
                return Status.STARTING  # it failed before `run`, and its machines are being stopped
            case TaskState.STOPPING | TaskState.RUNNING:
                return Status.RUNNING
            case TaskState.PROVISIONING:
                return Status.RECOVERING if self.has_run else Status.STARTING
            case TaskState.WAITING:
                return Status.RECOVERING if self.has_run else Status.PENDING

    def with_attempt(self, attempt: AttemptView) -> TaskView:
        return replace(
            self, attempts=tuple([attempt if a.generation == attempt.generation else a for a in self.attempts])
        )

    def attempt(self, generation: int) -> AttemptView | None:
        for attempt in self.attempts:
            if attempt.generation == generation:
                return attempt
        return None


@dataclass(frozen=True)
class JobView:
    """What the user launched: tasks run in order, each after the one before it SUCCEEDED."""

    id: int
    tasks: tuple[TaskView, ...]
    cancel: Cancel | None = None

    @property
    def current_task(self) -> TaskView | None:
        """The first task that has not ended; None when all have."""
        for task in self.tasks:
            if task.state is not _ENDED:
                return task
        return None

    @property
    def has_ended(self) -> bool:
        return self.current_task is None

    @property
    def is_finalized(self) -> bool:
        """Ended, and none of its machines is left."""
        return self.has_ended and not any(a.is_live for t in self.tasks for a in t.attempts)

    def with_task(self, task: TaskView) -> JobView:
        if self.tasks[task.index] is task:
            return self
        tasks = (*self.tasks[: task.index], task, *self.tasks[task.index + 1 :]) if len(self.tasks) > 1 else (task,)
        return JobView(self.id, tasks, self.cancel)


@dataclass(frozen=True)
class View:
    """All that a decision may depend on besides the event and the time."""

    job: JobView
    market: MarketView = field(default_factory=MarketView)
    timeouts: Timeouts = Timeouts()
    owned_since: float = 0.0  # since when this controller has owned the job; agents could not reach it before
    recoveries_per_hour: int | None = DEFAULT_RECOVERIES_PER_HOUR  # of a task, at least 2; None: no limit

    def wait_starts_at(self, at: float) -> float:
        """When a wait for an agent that began at `at` starts to count: not before this controller owned the job."""
        return max(at, self.owned_since)
