"""What the rules share: the context that they read, and changes to a task that several of them make."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from functools import lru_cache

from perdure.recovery.actions import Action, AvoidOffer, Launch, RecordObservation, TimelineEntry
from perdure.recovery.frozen import dataclass, replace
from perdure.recovery.job import AttemptView, JobView, NodeView, TaskView, View
from perdure.recovery.market.cooldown import unavailable_after_launch
from perdure.recovery.market.history import OfferObservation
from perdure.recovery.market.unavailable import FaultKind
from perdure.recovery.market.view import MarketView, Offer
from perdure.recovery.reasons import STAGE_FAILURES, Reason
from perdure.recovery.rules.attempt_end import wind_down
from perdure.recovery.rules.backoff import recovery_allowed_at, recovery_debt
from perdure.recovery.rules.machine_loss.evidence import evidence_of_loss
from perdure.recovery.statuses import AttemptState, TaskState

# Assumed loss of a run whose workload never reports what is durable. A workload that saves less often
# should report its saves.
_ASSUMED_LOSS_S = 3600.0

# A wake time must lie in the future: one in the past would have the job evaluated in an endless loop.
MIN_WAKE_DELAY_S = 1.0


@dataclass(frozen=True)
class Context:
    """What rules may depend on besides the task."""

    job: JobView  # after the event
    view: View
    now: float
    out: list[Action]  # rules append their actions
    # The markets that `market` has returned, each with the number of actions of `out` that it includes.
    _markets: list[tuple[int, MarketView]] = field(default_factory=list)

    @property
    def market(self) -> MarketView:
        """The market, including what the actions so far add to it."""
        applied, market = self._markets[-1] if self._markets else (0, self.view.market)
        if applied == len(self.out):
            return market
        avoided, history = [], market.history
        for action in self.out[applied:]:
            if isinstance(action, AvoidOffer):
                avoided.append(action.unavailable)
            elif isinstance(action, RecordObservation):
                history = action.apply_to(history)
        if avoided or history is not market.history:
            market = replace(market, unavailable=(*market.unavailable, *avoided), history=history)
        self._markets.append((len(self.out), market))
        return market


Rule = Callable[[TaskView, Context], "TaskView | None"]


# --- the task ---------------------------------------------------------------------------------------------------------


def request_attempt(
    task: TaskView, offer: Offer, ctx: Context, *, state: TaskState = TaskState.PROVISIONING, why: str = ""
) -> TaskView:
    """`task`, in `state`, with a new attempt on machines of `offer`."""
    generation = task.next_generation
    attempt = AttemptView(
        generation=generation,
        state=AttemptState.REQUESTED,
        offer=offer,
        nodes=_new_nodes(task.num_nodes),
        requested_at=ctx.now,
    )
    ctx.out.append(Launch(task.index, generation, offer, task.num_nodes))
    data: dict[str, object] = {"offer": offer.name}
    ctx.out.append(TimelineEntry("attempt.requested", task.index, generation, None, task.reason, why, data))
    return replace(
        task,
        state=state,
        attempts=(*task.attempts, attempt),
        next_generation=generation + 1,
        last_offer=offer,
        wake_at=None,
    )


@lru_cache(maxsize=64)
def _new_nodes(num_nodes: int) -> tuple[NodeView, ...]:
    return tuple(NodeView(rank) for rank in range(num_nodes))


def give_up_attempt(task: TaskView, attempt: AttemptView, reason: Reason, until: float, now: float) -> TaskView:
    """Wind `attempt` down by `until`. The task goes on with its replacement if it has one; otherwise it waits."""
    task = _pause_work(task.with_attempt(wind_down(attempt, reason=reason, until=until)), now)
    if task.current is not None:
        return replace(task, state=TaskState.PROVISIONING, reason=reason, wake_at=None)
    return replace(task, state=TaskState.WAITING, reason=reason, wake_at=now)


def count_recovery(task: TaskView, ctx: Context) -> TaskView:
    """`task`, which recovers now, with the recovery counted. If the limit is reached, the next attempt waits."""
    per_hour = ctx.view.recoveries_per_hour
    if per_hour is None:
        return task
    task = replace(task, recovery_debt_until=recovery_debt(task.recovery_debt_until, ctx.now, per_hour))
    allowed_at = recovery_allowed_at(task.recovery_debt_until, per_hour)
    if task.state is not TaskState.WAITING or allowed_at <= ctx.now:
        return task
    message = (
        f"the next attempt begins in {allowed_at - ctx.now:.0f} s, because the task has recovered often: at most "
        f"{per_hour} times per hour are allowed (limits.recoveries_per_hour)"
    )
    data: dict[str, object] = {"until": allowed_at}
    ctx.out.append(TimelineEntry("task.waiting", task.index, None, None, Reason.BACKING_OFF, message, data))
    return replace(task, wake_at=allowed_at)


def earliest_attempt_at(task: TaskView, ctx: Context) -> float:
    """From when on `task` may request another attempt; in the past unless it has recovered too often."""
    per_hour = ctx.view.recoveries_per_hour
    return 0.0 if per_hour is None else recovery_allowed_at(task.recovery_debt_until, per_hour)


def conclude(task: TaskView, outcome: Reason, ctx: Context, *, until: float, message: str = "") -> TaskView:
    """`task` with its outcome known: every attempt is wound down by `until`."""
    for attempt in task.attempts:
        if attempt.is_wanted:
            record_survival(attempt, ctx)
    attempts = tuple(wind_down(a, reason=outcome, until=until) for a in task.attempts)
    task = _pause_work(task, ctx.now)
    return replace(task, state=TaskState.STOPPING, outcome=outcome, message=message, attempts=attempts, wake_at=None)


def _pause_work(task: TaskView, now: float) -> TaskView:
    """`task` with the run that ends now added to its work."""
    if task.run_since is None:
        return task
    ran = now - task.run_since
    kept = task.resumed_s + max(0.0, ran - _ASSUMED_LOSS_S) if task.saved_s is None else task.resumed_s
    return replace(task, run_seconds=task.run_seconds + ran, run_since=None, resumed_s=kept)


def failure_reason(node: NodeView) -> Reason:
    """Why the task fails if `node` failed by itself. A stage that is not known counts as `run`."""
    return STAGE_FAILURES.get(node.failed_stage or "run", Reason.RUN_FAILED)


def describe_failure(node: NodeView) -> str:
    where = f" on node {node.rank}" if node.rank else ""
    code = f" with code {node.exit_code}" if node.exit_code is not None else ""
    detail = f": {node.message}" if node.message else ""
    stage = node.failed_stage or "run"
    if stage in ("run", "setup") and code:
        more = node.message.partition("; ")[2]  # the agent's first words say the same as these
        return f"`{stage}` exited{code}{where}" + (f": {more}" if more else "")
    return f"{stage} failed{where}{detail}"


# --- what a loss or a survival says of the offer ----------------------------------------------------------------------


def record_loss(attempt: AttemptView, reason: Reason, ctx: Context) -> None:
    offer = attempt.offer
    if reason is Reason.NO_CAPACITY:  # the launch was accepted and then failed: no machine ever ran
        unavailable = unavailable_after_launch(
            offer, ctx.now, kind=FaultKind.AVOID_ZONE, earlier=ctx.market.unavailable
        )
        observation = OfferObservation(offer.key, ctx.now, available=False)
        ctx.out.extend([AvoidOffer(unavailable), RecordObservation(observation)])
    ctx.out.extend(evidence_of_loss(attempt, reason, ctx.now))


def record_survival(attempt: AttemptView, ctx: Context, *, started_s: float | None = None) -> None:
    """Record that the attempt's machines have lived until now, unless one of them is gone or about to be."""
    if attempt.booted_at is None:
        return
    if all(n.gone_reason is None and n.notice_deadline is None for n in attempt.nodes):
        observation = OfferObservation(
            attempt.offer.key, ctx.now, available=True, held_since=attempt.booted_at, started_s=started_s
        )
        ctx.out.append(RecordObservation(observation))
