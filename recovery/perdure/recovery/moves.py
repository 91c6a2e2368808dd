"""Rules for a task that runs and may run better elsewhere: the replacement first, then the drain.

The attempt that runs is `task.current`; the one that shall take over, `task.replacement`. Until that is READY, nothing
that happens to it touches the one that runs.
"""

from __future__ import annotations

from perdure.recovery.actions import Note
from perdure.recovery.attempts import abruptly, failed_node, loss, wind_down
from perdure.recovery.job import TaskView
from perdure.recovery.policies.choice import Move, Stay
from perdure.recovery.policies.registry import policy
from perdure.recovery.reasons import Reason, text
from perdure.recovery.statuses import AttemptState, TaskState
from perdure.recovery.turns import (
    FAILED_STAGE,
    SOONEST_S,
    Context,
    failure_text,
    learn_it_lasted,
    learn_of_loss,
    look_for_another,
    request,
)
from perdure.recovery.values import replace

# What failed on a replacement may fail on the next as well; the task runs, so there is time.
_FAILED_REPLACEMENT_S = 3600.0

_RUNNING = TaskState.RUNNING


def reconsider(task: TaskView, ctx: Context) -> TaskView | None:
    """Whether a better place is worth moving to: asked when the policy said that it wants to be."""
    runs = task.state is _RUNNING and task.outcome is None and task.replacement is None
    if not runs or task.wake_at is None or ctx.now < task.wake_at:
        return None
    match policy(task.recovery.strategy).reconsider(task, ctx.market, ctx.now):
        case Stay(until):
            return replace(task, wake_at=until if until is None else max(until, ctx.now + SOONEST_S))
        case Move(offer, why):
            return request(task, offer, ctx, state=_RUNNING, why=why)


def take_over(task: TaskView, ctx: Context) -> TaskView | None:
    """The replacement is READY: the attempt that runs saves its work and makes room."""
    running, ready = task.current, task.replacement
    if running is None or ready is None or ready.state is not AttemptState.READY or task.outcome is not None:
        return None
    data: dict[str, object] = {"from": running.offer.name, "to": ready.offer.name}
    ctx.out.append(Note("attempt.moving", task.index, running.generation, reason=Reason.MOVED, data=data))
    learn_it_lasted(running, ctx)
    return look_for_another(task, running, Reason.MOVED, ctx.now + ctx.view.limits.drain_s, ctx.now)


def lose_replacement(task: TaskView, ctx: Context) -> TaskView | None:
    """A replacement that is taken away, or fails before it took over, leaves the attempt that runs alone."""
    attempt = task.replacement
    if attempt is None or task.outcome is not None:
        return None
    failed = failed_node(attempt)
    reason = FAILED_STAGE[failed.failed_stage or "run"] if failed else loss(attempt, ctx.view, ctx.now)
    if reason is None:
        return None
    message = failure_text(failed) if failed else text(reason)
    data: dict[str, object] = {"offer": attempt.offer.name, "was": attempt.state.value}
    ctx.out.append(Note("replacement.lost", task.index, attempt.generation, reason=reason, message=message, data=data))
    learn_of_loss(attempt, reason, ctx)
    task = task.with_attempt(wind_down(attempt, reason=reason, until=abruptly(ctx.now)))
    return replace(task, wake_at=ctx.now + (_FAILED_REPLACEMENT_S if failed else 0.0))
