"""What the rules of `settle` and `moves` share: what they look at, and turns that several of them take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from functools import lru_cache

from perdure.recovery.actions import Action, Launch, Learn, Note, Refuse
from perdure.recovery.attempts import wind_down
from perdure.recovery.history import Sighting
from perdure.recovery.job import AttemptView, JobView, NodeView, TaskView, View
from perdure.recovery.market import FaultKind, MarketView, Offer
from perdure.recovery.policies.cooldown import launch_refusal, preemption_refusal
from perdure.recovery.reasons import Reason
from perdure.recovery.statuses import AttemptState, TaskState
from perdure.recovery.values import dataclass, replace

# A task that never says what is durable is taken to lose so much of each run: one that saves less often says so.
_ASSUMED_LOSS_S = 3600.0

# A wake time that has passed would have the job looked at without end.
SOONEST_S = 1.0

# The cloud took the machine or it went away: its offer cools down.
COOLS_DOWN = {
    Reason.PREEMPTED,
    Reason.PREEMPTION_NOTICE,
    Reason.MACHINE_CRASHED,
    Reason.UNREACHABLE,
    Reason.BOOT_TIMEOUT,
}

# Of these, the cloud's own doing.
_TAKEN = {Reason.PREEMPTED, Reason.PREEMPTION_NOTICE}


@dataclass(frozen=True)
class Context:
    """What rules may look at besides the task, and where they leave what is to be done. `job`: after the event."""

    job: JobView
    view: View
    now: float
    out: list[Action]
    _learned: list[tuple[int, MarketView]] = field(default_factory=list)

    @property
    def market(self) -> MarketView:
        """The market, with what this very step has learned of it."""
        read, market = self._learned[-1] if self._learned else (0, self.view.market)
        if read == len(self.out):
            return market
        refused, history = [], market.history
        for action in self.out[read:]:
            if isinstance(action, Refuse):
                refused.append(action.refusal)
            elif isinstance(action, Learn):
                history = action.added_to(history)
        if refused or history is not market.history:
            market = replace(market, refusals=(*market.refusals, *refused), history=history)
        self._learned.append((len(self.out), market))
        return market


Rule = Callable[[TaskView, Context], "TaskView | None"]


def conclude(task: TaskView, outcome: Reason, ctx: Context, *, until: float, message: str = "") -> TaskView:
    """`task` with its outcome known: every attempt is wound down by `until`."""
    for attempt in task.attempts:
        if attempt.is_wanted:
            learn_it_lasted(attempt, ctx)
    winding = tuple(wind_down(a, reason=outcome, until=until) for a in task.attempts)
    task = stop_running(task, ctx.now)
    return replace(task, state=TaskState.STOPPING, outcome=outcome, message=message, attempts=winding, wake_at=None)


def stop_running(task: TaskView, now: float) -> TaskView:
    if task.run_since is None:
        return task
    ran = now - task.run_since
    kept = task.resumed_s + max(0.0, ran - _ASSUMED_LOSS_S) if task.saved_s is None else task.resumed_s
    return replace(task, run_seconds=task.run_seconds + ran, run_since=None, resumed_s=kept)


def learn_of_loss(attempt: AttemptView, reason: Reason, ctx: Context) -> None:
    offer = attempt.offer
    if reason is Reason.NO_CAPACITY:  # a launch that was refused late: nothing was ever held
        late = launch_refusal(offer, ctx.now, kind=FaultKind.AVOID_ZONE, earlier=ctx.market.refusals)
        ctx.out.extend([Refuse(late), Learn(Sighting(offer.key, ctx.now, available=False))])
    if reason not in COOLS_DOWN:
        return
    ctx.out.append(Refuse(preemption_refusal(offer, ctx.now)))
    if reason in _TAKEN:
        ctx.out.append(Learn(Sighting(offer.key, ctx.now, available=False, held_since=attempt.booted_at)))


def learn_it_lasted(attempt: AttemptView, ctx: Context, *, started_s: float | None = None) -> None:
    """The machines are there still: what was bought has lived until now."""
    if attempt.booted_at is not None and all(n.gone is None and n.notice_deadline is None for n in attempt.nodes):
        seen = Sighting(attempt.offer.key, ctx.now, available=True, held_since=attempt.booted_at, started_s=started_s)
        ctx.out.append(Learn(seen))


def look_for_another(task: TaskView, attempt: AttemptView, reason: Reason, until: float, now: float) -> TaskView:
    """`task` without `attempt`: a replacement that is on its way already is what the task goes on with."""
    task = stop_running(task.with_attempt(wind_down(attempt, reason=reason, until=until)), now)
    if task.current is not None:
        return replace(task, state=TaskState.PLACING, reason=reason, wake_at=None)
    return replace(task, state=TaskState.WAITING, reason=reason, wake_at=now)


def request(
    task: TaskView, offer: Offer, ctx: Context, *, state: TaskState = TaskState.PLACING, why: str = ""
) -> TaskView:
    """`task`, in `state`, with an attempt more: machines of `offer` are asked for."""
    generation = task.next_generation
    attempt = AttemptView(
        generation=generation,
        state=AttemptState.REQUESTED,
        offer=offer,
        nodes=_unheard(task.num_nodes),
        requested_at=ctx.now,
    )
    ctx.out.append(Launch(task.index, generation, offer, task.num_nodes))
    ctx.out.append(Note("attempt.requested", task.index, generation, None, task.reason, why, {"offer": offer.name}))
    return replace(
        task,
        state=state,
        attempts=(*task.attempts, attempt),
        next_generation=generation + 1,
        last_offer=offer,
        wake_at=None,
    )


@lru_cache(maxsize=64)
def _unheard(num_nodes: int) -> tuple[NodeView, ...]:
    return tuple(NodeView(rank) for rank in range(num_nodes))


FAILED_STAGE = {
    "mounts": Reason.STORAGE_FAILED,
    "setup": Reason.SETUP_FAILED,
    "run": Reason.RUN_FAILED,
    "flush": Reason.FLUSH_FAILED,
}


def failure_text(node: NodeView) -> str:
    where = f" on node {node.rank}" if node.rank else ""
    code = f" with code {node.exit_code}" if node.exit_code is not None else ""
    detail = f": {node.message}" if node.message else ""
    stage = node.failed_stage or "run"
    if stage in ("run", "setup") and code:
        return f"`{stage}` exited{code}{where}"
    return f"{stage} failed{where}{detail}"
