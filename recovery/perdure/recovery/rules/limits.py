"""Rules for what a task says of itself: how long it may stand still, how long it may run, and what it may cost."""

from __future__ import annotations

from perdure.recovery.actions import TimelineEntry
from perdure.recovery.frozen import replace
from perdure.recovery.job import AttemptView, TaskView, View
from perdure.recovery.reasons import Reason, describe
from perdure.recovery.rules.context import Context, conclude, count_recovery, give_up_attempt

WARNING_SHARE = 0.8  # of `max_cost`
_HOUR_S = 3600.0


# --- standing still ---------------------------------------------------------------------------------------------------


def watch_progress(task: TaskView, ctx: Context) -> TaskView | None:
    """The task shows no progress for longer than it says: tell the user, and restart it if it wants that."""
    if task.outcome is not None or (task.stuck_since is None and not task.recovery.has_limits):
        return None
    attempt, show_s, restart_s = task.current, _show_after_s(task), task.recovery.restart_when_stuck_s
    since = None if show_s is None else still_since(task, ctx.view, show_s)
    if attempt is None or show_s is None or since is None or ctx.now < since + show_s:
        return replace(task, stuck_since=None, message="") if task.stuck_since is not None else None
    if task.stuck_since is None:
        message = _still_text(task, since, ctx)
        ctx.out.append(TimelineEntry("task.stuck", task.index, attempt.generation, None, Reason.STUCK, message))
        return replace(task, stuck_since=since, message=message)
    since = None if restart_s is None else still_since(task, ctx.view, restart_s)
    if restart_s is None or since is None or ctx.now < since + restart_s:
        return None
    message = f"{_still_text(task, since, ctx)}; restarting, as restart_when_stuck says"
    ctx.out.append(TimelineEntry("attempt.failed", task.index, attempt.generation, None, Reason.STUCK, message))
    until = ctx.now + ctx.view.timeouts.drain_timeout_s
    task = replace(task, stuck_since=None, message="")
    return count_recovery(give_up_attempt(task, attempt, Reason.STUCK, until, ctx.now), ctx)


def still_since(task: TaskView, view: View, after_s: float) -> float | None:
    """Since when a steadily running task has shown no progress: in its steps, or on its GPUs, whichever is longer.

    GPUs count once reports show that they idled for `after_s`: the time since the last report proves nothing. None if
    the task has shown neither a step nor such GPUs, so that nothing can be said. A new run counts from its beginning,
    and so does a controller that has just taken the job over: it may have missed reports.
    """
    attempt = task.current
    if task.run_since is None or attempt is None or task.outcome is not None or not attempt.is_steady:
        return None
    earliest = max(task.run_since, view.owned_since)
    seen = [] if task.step_at is None else [max(task.step_at, earliest)]
    if task.busy_at is not None and task.gpus_at is not None:
        idle_since = max(task.busy_at, earliest)
        if task.gpus_at - idle_since >= after_s:
            seen.append(idle_since)
    return min(seen, default=None)


def _show_after_s(task: TaskView) -> float | None:
    given = [s for s in (task.recovery.stuck_after_s, task.recovery.restart_when_stuck_s) if s is not None]
    return min(given, default=None)


def _still_text(task: TaskView, since: float, ctx: Context) -> str:
    minutes = (ctx.now - since) / 60
    steps_are_older = task.busy_at is None or (task.step_at is not None and task.step_at <= task.busy_at)
    what = f"no step was reported after step {task.last_step}" if steps_are_older else "its GPUs are idle"
    return f"no progress for {minutes:.0f} min: {what}"


# --- time and money ---------------------------------------------------------------------------------------------------


def end_overdue(task: TaskView, ctx: Context) -> TaskView | None:
    """The task has run for as long as it may: it saves its work and ends."""
    ends_at = overdue_at(task)
    if ends_at is None or ctx.now < ends_at:
        return None
    until = ctx.now + ctx.view.timeouts.drain_timeout_s
    return conclude(task, Reason.MAX_DURATION, ctx, until=until, message=describe(Reason.MAX_DURATION))


def overdue_at(task: TaskView) -> float | None:
    """When `max_duration`, which counts from the first start of `run`, will be over; None if never.

    In a cluster, only the time that `run` takes counts.
    """
    if task.outcome is not None:
        return None
    times = []
    if task.recovery.max_duration_s is not None and task.started_at is not None:
        times.append(task.started_at + task.recovery.max_duration_s)
    if task.recovery.max_run_s is not None and task.run_since is not None:
        times.append(task.run_since + max(0.0, task.recovery.max_run_s - task.run_seconds))
    return min(times, default=None)


def watch_budget(task: TaskView, ctx: Context) -> TaskView | None:
    """The task has spent most of `max_cost`: tell the user. It has spent all of it: it saves its work and ends."""
    spent_at, warned_at = budget_at(task, 1.0), budget_at(task, WARNING_SHARE)
    limit = task.recovery.max_cost
    if spent_at is not None and ctx.now >= spent_at:
        message = f"it has cost {_usd(limit)} USD, which is its max_cost"
        until = ctx.now + ctx.view.timeouts.drain_timeout_s
        return conclude(task, Reason.MAX_COST, ctx, until=until, message=message)
    if warned_at is None or task.budget_warned or ctx.now < warned_at:
        return None
    message = f"{WARNING_SHARE:.0%} of max_cost ({_usd(limit)} USD) are spent"
    if spent_at is not None:
        message += f"; at this rate, the task ends in {(spent_at - ctx.now) / _HOUR_S:.1f} h"
    ctx.out.append(TimelineEntry("task.budget_warning", task.index, message=message, data={"max_cost": limit}))
    return replace(task, budget_warned=True)


def budget_at(task: TaskView, share: float) -> float | None:
    """When the task will have spent this share of `max_cost` if its machines live on; None if it has no machine, or no
    limit. In the past if it has been spent, also by machines that never came to run anything."""
    limit = task.recovery.max_cost
    if limit is None or task.outcome is not None:
        return None
    rates = [(_dollars_per_s(a), a.booted_at) for a in task.attempts if a.booted_at is not None and a.is_live]
    rate = sum(dollars for dollars, _ in rates)
    left = share * limit - task.spent_usd
    if rate <= 0:
        return 0.0 if left <= 0 else None
    return (left + sum(dollars * booted_at for dollars, booted_at in rates)) / rate


def cost_of(attempt: AttemptView, now: float) -> float:
    """What the attempt's machines have cost, in USD: all of them, until the last is gone."""
    return 0.0 if attempt.booted_at is None else _dollars_per_s(attempt) * max(0.0, now - attempt.booted_at)


def _dollars_per_s(attempt: AttemptView) -> float:
    return attempt.offer.price_per_hour * len(attempt.nodes) / _HOUR_S


# --- when to look again -----------------------------------------------------------------------------------------------


def limit_times(task: TaskView, view: View) -> list[float]:
    """When one of the rules above may apply next, if nothing else happens."""
    if task.outcome is not None:
        return []
    show_s, restart_s = _show_after_s(task), task.recovery.restart_when_stuck_s
    after_s = show_s if task.stuck_since is None else restart_s
    since = None if after_s is None else still_since(task, view, after_s)
    times = [overdue_at(task), budget_at(task, 1.0), None if task.budget_warned else budget_at(task, WARNING_SHARE)]
    if since is not None and after_s is not None:
        times.append(since + after_s)
    return [at for at in times if at is not None]


def _usd(amount: float | None) -> str:
    """An amount without an exponent, and without zeros at its end."""
    return f"{amount or 0.0:.10f}".rstrip("0").rstrip(".")
