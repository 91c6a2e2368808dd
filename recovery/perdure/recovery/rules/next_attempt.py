"""Rules for a task's next attempt: its buckets, its deadline, and where the policy places it."""

from __future__ import annotations

from perdure.recovery.actions import PrepareStorage, TimelineEntry
from perdure.recovery.frozen import replace
from perdure.recovery.job import TaskView
from perdure.recovery.policies.decisions import Place, Unsatisfiable, Wait
from perdure.recovery.policies.registry import policy_or_default
from perdure.recovery.reasons import Reason
from perdure.recovery.rules.attempt_end import immediately
from perdure.recovery.rules.backoff import delay
from perdure.recovery.rules.context import MIN_WAKE_DELAY_S, Context, conclude, earliest_attempt_at, request_attempt
from perdure.recovery.statuses import TaskState

_WAITING = TaskState.WAITING


def prepare_storage(task: TaskView, ctx: Context) -> TaskView | None:
    if task.state is not _WAITING or task.storage_ready or task.storage_requested or task.outcome is not None:
        return None
    ctx.out.append(PrepareStorage(task.index))
    return replace(task, storage_requested=True)


def forecast_deadline(task: TaskView, ctx: Context) -> TaskView | None:
    """Tell the user once, as soon as even an uninterrupted machine would miss the deadline."""
    deadline_at, work_s = task.recovery.deadline_at, task.work_s
    if deadline_at is None or work_s is None or task.late_since is not None or task.outcome is not None:
        return None
    start_s = ctx.market.history.startup_times.mean_s if task.state is _WAITING else 0.0
    ends_at = ctx.now + start_s + max(0.0, work_s - task.progress_s(ctx.now))
    if ends_at <= deadline_at:
        return None
    late_s = ends_at - deadline_at
    message = (
        f"the task will end about {late_s / 60:.0f} min after its deadline, even if it runs on-demand from now on; "
        "it continues nevertheless"
    )
    data: dict[str, object] = {"late_s": round(late_s)}
    ctx.out.append(TimelineEntry("task.deadline_missed_forecast", task.index, message=message, data=data))
    return replace(task, late_since=ctx.now)


def place(task: TaskView, ctx: Context) -> TaskView | None:
    """Do what the task's policy chooses: request an attempt, wait, or give up."""
    waits = task.state is _WAITING and task.outcome is None and task.storage_ready
    if not waits or (task.wake_at is not None and ctx.now < task.wake_at):
        return None
    if (earliest_at := earliest_attempt_at(task, ctx)) > ctx.now:
        return replace(task, wake_at=earliest_at)
    market = ctx.market
    if task.recovery.avoided:
        market = replace(market, unavailable=(*market.unavailable, *task.recovery.avoided))
    match policy_or_default(task.recovery.strategy).choose(task, market, ctx.now):
        case Place(offer):
            return request_attempt(task, offer, ctx)
        case Unsatisfiable(why, request_at_fault):
            return _give_up(task, why, ctx, request_at_fault=request_at_fault)
        case Wait(until, why):
            # `until` comes last: `max` returns NaN only if NaN is its first argument.
            until = max(ctx.now + MIN_WAKE_DELAY_S, ctx.now + _backoff_s(task, ctx), until)
            if task.reason is not Reason.BACKING_OFF:
                reason, message = Reason.BACKING_OFF, "no offer that fits is available now; waiting for the first one"
                data: dict[str, object] = {"why": list(why), "until": until}
                ctx.out.append(TimelineEntry("task.waiting", task.index, reason=reason, message=message, data=data))
            return replace(task, reason=Reason.BACKING_OFF, wake_at=until)


def _backoff_s(task: TaskView, ctx: Context) -> float:
    """Grows with every failed launch, and differs between jobs, so that they do not all retry at once."""
    timeouts, seed = ctx.view.timeouts, f"{ctx.job.id}-{task.index}"
    return delay(task.consecutive_refusals, timeouts.backoff_initial_s, timeouts.backoff_max_s, seed)


def _give_up(task: TaskView, why: tuple[str, ...], ctx: Context, *, request_at_fault: bool) -> TaskView:
    reason = Reason.PRECHECKS_FAILED if request_at_fault else Reason.NO_OFFER_FITS
    message = "; ".join(why)
    if not task.has_run:
        return conclude(task, reason, ctx, until=immediately(ctx.now), message=message)
    # A job that has run does not fail because, say, a cloud was disabled meanwhile: it waits until somebody fixes that.
    if task.reason is not reason:
        ctx.out.append(TimelineEntry("task.waiting", task.index, reason=reason, message=message))
    return replace(task, reason=reason, wake_at=ctx.now + ctx.view.timeouts.unsatisfiable_retry_s)
