"""A job as the decision functions see it: frozen values, times in epoch seconds (UTC).

`JobView` holds tasks, a task its live attempts, an attempt its nodes. `step` takes a view and returns a new one.
"""

from __future__ import annotations

from dataclasses import field

from perdure.recovery.market import MarketView, Offer
from perdure.recovery.needs import Need
from perdure.recovery.reasons import Reason, terminal_status
from perdure.recovery.statuses import ENDED_PHASES, AttemptState, NodePhase, Status, TaskState
from perdure.recovery.values import cached, dataclass, replace


@dataclass(frozen=True)
class Limits:
    """How long to wait for what, in seconds. Set per cloud by the daemon."""

    boot_timeout_s: float = 900.0  # machines exist, but an agent has not called
    silent_s: float = 180.0  # the cloud says that the machine runs, but its agent is not connected
    drain_s: float = 60.0  # grace of a drain that no notice bounds: SIGTERM, save, flush
    recheck_s: float = 5.0  # how often, at the least, a disconnected node's machine is looked up
    backoff_first_s: float = 1.0  # the pause after one refusal, where every offer is refused; doubled by each further
    backoff_cap_s: float = 60.0
    helpless_s: float = 300.0  # a job that has run and fits nowhere any more: how often that is looked at


@dataclass(frozen=True)
class Recovery:
    """`job_recovery` of the task.

    `deadline_at`: epoch seconds by which the task shall have ended. `work_s`: seconds that it runs for when nothing is
    lost. `patience`: how much later than the fastest choice it may end for the sake of cost, 0.05 for 5 % later.
    `move_cost`: USD for carrying the task's data to another region.
    """

    strategy: str = "CHEAPEST"
    max_restarts_on_errors: int = 0
    recover_on_exit_codes: frozenset[int] = frozenset()
    deadline_at: float | None = None
    work_s: float | None = None
    patience: float = 0.05
    move_cost: float = 0.0


@dataclass(frozen=True)
class Cancel:
    """A user's wish to end the job. `grace_s`: time to save and flush after SIGTERM; 0 = at once."""

    at: float
    grace_s: float


@dataclass(frozen=True)
class NodeView:
    """One machine of an attempt, as last heard or seen.

    `exit_code` is that of the failed or finished stage; `failed_stage` names it ("mounts", "setup", "run", "flush") or
    is None. `interrupted`: the workload was told to stop before it ended. `gone`: why the machine is known to be gone.
    """

    rank: int
    phase: NodePhase = NodePhase.UNHEARD
    instance_id: str | None = None
    ip: str | None = None
    connected: bool = False
    silent_since: float | None = None
    exit_code: int | None = None
    failed_stage: str | None = None
    interrupted: bool = False
    mount_lost: bool = False
    message: str = ""
    notice_deadline: float | None = None
    gone: Reason | None = None

    @property
    def has_stopped(self) -> bool:
        """Nothing of the workload runs on this node, and nothing will."""
        return self.gone is not None or self.phase in ENDED_PHASES


# Tuples: to look a member of an enumeration up in them takes a fraction of what a set's hash would.
_ENDING = (AttemptState.DRAINING, AttemptState.STOPPED, AttemptState.GONE)
_RUNNING, _GONE, _ENDED = AttemptState.RUNNING, AttemptState.GONE, TaskState.ENDED
_HAS_NO_WORKLOAD = (AttemptState.REQUESTED, AttemptState.BOOTING, AttemptState.STOPPED, AttemptState.GONE)


@dataclass(frozen=True)
class AttemptView:
    """One try at a task on one placement.

    `drain_until`: when a drain is cut short. `terminating`: its machines were asked to end. `failing_since`: a rank
    said that it failed; before anybody is blamed, the others have to call again, and their machines are looked up.
    """

    generation: int
    state: AttemptState
    offer: Offer
    nodes: tuple[NodeView, ...]
    requested_at: float
    booted_at: float | None = None
    running_at: float | None = None
    drain_until: float | None = None
    reason: Reason | None = None
    terminating: bool = False
    failing_since: float | None = None
    checked_at: float | None = None
    check_asked_at: float | None = None

    @cached
    def is_well(self) -> bool:
        """Nothing was heard or seen that speaks against any of its nodes."""
        for n in self.nodes:
            seen_amiss = n.gone is not None or n.silent_since is not None or n.notice_deadline is not None
            if seen_amiss or n.interrupted or n.mount_lost:
                return False
        return True

    @cached
    def runs_undisturbed(self) -> bool:
        """It runs, nothing is amiss, and nobody is being asked about it: the machines' mere presence is awaited."""
        runs = self.state is _RUNNING and not self.terminating and self.failing_since is None
        return runs and self.is_well and not any(n.has_stopped or n.failed_stage is not None for n in self.nodes)

    @property
    def is_live(self) -> bool:
        return self.state is not _GONE

    @property
    def is_wanted(self) -> bool:
        """Meant to run or running: neither drained, nor stopped, nor being terminated."""
        return not self.terminating and self.state not in _ENDING

    @property
    def may_run_workload(self) -> bool:
        """Whether a process of the user's may be running, as far as is known."""
        if self.state in _HAS_NO_WORKLOAD:
            return False
        return not all(node.has_stopped for node in self.nodes)

    def with_node(self, node: NodeView) -> AttemptView:
        return replace(self, nodes=tuple(node if n.rank == node.rank else n for n in self.nodes))


@dataclass(frozen=True)
class TaskView:
    """One task of a job.

    `attempts`: those not yet GONE, oldest first. `last_offer`: where the newest attempt ran or runs.
    `refused_in_a_row`: launches refused since one worked. `run_seconds`: time in RUNNING up to `run_since`, which is
    None while not running. `storage_ready`: its buckets exist (True also when it has none).

    Work is counted in seconds of running: `resumed_s` is what had been done when the current or last run began,
    `saved_s` what is durable, as far as reported; None until something was. `late_since`: when it became clear that not
    even a machine that stays would end the task by its deadline.

    `first_step`: the first that was reported durable, after `first_step_s` of work; from it and later ones follows
    `estimated_s`: what all of the steps take.
    """

    index: int
    needs: tuple[Need, ...]
    num_nodes: int = 1
    recovery: Recovery = Recovery()
    state: TaskState = TaskState.WAITING
    reason: Reason = Reason.SUBMITTED
    outcome: Reason | None = None
    message: str = ""
    attempts: tuple[AttemptView, ...] = ()
    next_generation: int = 1
    last_offer: Offer | None = None
    preempted_from: Offer | None = None
    recovery_count: int = 0
    restarts_on_errors: int = 0
    refused_in_a_row: int = 0
    has_run: bool = False
    wake_at: float | None = None
    started_at: float | None = None
    run_since: float | None = None
    run_seconds: float = 0.0
    ended_at: float | None = None
    storage_ready: bool = True
    storage_asked: bool = False
    resumed_s: float = 0.0
    saved_s: float | None = None
    late_since: float | None = None
    first_step: int | None = None
    first_step_s: float = 0.0
    estimated_s: float | None = None

    @property
    def work_s(self) -> float | None:
        """Seconds that the task runs for in all when nothing is lost: as the user said, else as its steps tell."""
        return self.estimated_s if self.recovery.work_s is None else self.recovery.work_s

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
        return self.durable_s if self.run_since is None else self.resumed_s + now - self.run_since

    @property
    def durable_s(self) -> float:
        """Seconds of work that are known to survive a loss of the machine."""
        return self.resumed_s if self.saved_s is None else self.saved_s

    @property
    def status(self) -> Status:
        """What users see."""
        match self.state:
            case TaskState.ENDED:
                assert self.outcome is not None
                return terminal_status(self.outcome) or Status.FAILED_CONTROLLER
            case TaskState.STOPPING if self.outcome is Reason.USER_CANCELLED:
                return Status.CANCELLING
            case TaskState.STOPPING | TaskState.RUNNING:
                return Status.RUNNING
            case TaskState.PLACING:
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
    def is_settled(self) -> bool:
        """Ended, and no machine of it is left."""
        return self.has_ended and not any(a.is_live for t in self.tasks for a in t.attempts)

    def with_task(self, task: TaskView) -> JobView:
        if self.tasks[task.index] is task:
            return self
        tasks = (*self.tasks[: task.index], task, *self.tasks[task.index + 1 :]) if len(self.tasks) > 1 else (task,)
        return JobView(self.id, tasks, self.cancel)


@dataclass(frozen=True)
class View:
    """All that `step` may know.

    `taken_up_at`: since when this controller has the job in its hands. Agents could tell it nothing before.
    """

    job: JobView
    market: MarketView = field(default_factory=MarketView)
    limits: Limits = Limits()
    taken_up_at: float = 0.0

    def patience_from(self, at: float) -> float:
        """From when on a wait for an agent's word, begun at `at`, counts: no agent could call before."""
        return max(at, self.taken_up_at)
