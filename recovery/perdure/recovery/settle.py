"""What follows from what is believed: ordered rules over one task, applied until none applies.

A rule looks at the task and either returns the task as it should be, appending what has to be done to `ctx.out`, or
returns None. The first rule that applies wins; then the table is read again from the top.
"""

from __future__ import annotations

from perdure.recovery.actions import Check, Note, PrepareStorage, Terminate
from perdure.recovery.attempts import (
    abruptly,
    drain_deadline,
    failed_node,
    has_succeeded,
    is_silent,
    loss,
    overdue_at,
    recheck_at,
    wind_down,
)
from perdure.recovery.backoff import delay
from perdure.recovery.job import AttemptView, NodeView, TaskView
from perdure.recovery.moves import lose_replacement, reconsider, take_over
from perdure.recovery.policies.choice import Never, Place, Wait
from perdure.recovery.policies.registry import policy
from perdure.recovery.reasons import MEANINGS, Reason, terminal_status, text
from perdure.recovery.statuses import AttemptState, NodePhase, TaskState
from perdure.recovery.turns import (
    COOLS_DOWN,
    FAILED_STAGE,
    SOONEST_S,
    Context,
    Rule,
    conclude,
    failure_text,
    learn_it_lasted,
    learn_of_loss,
    look_for_another,
    request,
)
from perdure.recovery.values import replace

# Far above any real chain of rules; reached only if two rules undo each other.
_MOST_ROUNDS = 100

# Losing a machine on which nothing of the user's had begun is no recovery.
_HAD_BEGUN = {AttemptState.SETTING_UP, AttemptState.READY, AttemptState.RUNNING}
_HAS_RUN = (AttemptState.RUNNING, AttemptState.DRAINING)
_DRAINING, _STOPPED = AttemptState.DRAINING, AttemptState.STOPPED
_WAITING, _ENDED = TaskState.WAITING, TaskState.ENDED


def settle(task: TaskView, ctx: Context, *, is_current: bool) -> TaskView:
    """`task` with every rule applied. A task that is not the job's current one only has its attempts cleared away."""
    rules = RULES if is_current else CLEARING_RULES
    for _ in range(_MOST_ROUNDS):
        for rule in QUIET_RULES if is_current and _is_quiet(task, ctx) else rules:
            after = rule(task, ctx)
            if after is not None:
                task = after
                break
        else:
            return task
        if rule in CHOOSING_RULES and task.outcome is None:
            return task  # now the world has to answer
    raise AssertionError(f"the rules do not settle: {task}")


def _is_quiet(task: TaskView, ctx: Context) -> bool:
    """Nothing is amiss and nothing is under way: the task runs undisturbed, or is nowhere. Only `QUIET_RULES` apply.

    That is how a task is found nearly always: looking no further makes a decision half as dear.
    """
    if task.outcome is not None or ctx.job.cancel is not None or len(task.attempts) > 1:
        return False
    if not task.attempts:
        return task.state is not _ENDED
    return task.attempts[0].runs_undisturbed


# --- ends -----------------------------------------------------------------------------------------


def cancel(task: TaskView, ctx: Context) -> TaskView | None:
    wish = ctx.job.cancel
    if wish is None or task.outcome not in (None, Reason.USER_CANCELLED):
        return None
    until = wish.at + wish.grace_s if wish.grace_s > 0 else abruptly(wish.at)
    if task.outcome is None:
        return conclude(task, Reason.USER_CANCELLED, ctx, until=until)
    hurried = tuple(wind_down(a, reason=Reason.USER_CANCELLED, until=until) for a in task.attempts)
    return replace(task, attempts=hurried) if hurried != task.attempts else None


def end(task: TaskView, ctx: Context) -> TaskView | None:
    """The outcome becomes final once nothing of the task can be running any more."""
    if task.outcome is None or task.state is _ENDED or any(a.may_run_workload for a in task.attempts):
        return None
    message = task.message or text(task.outcome)
    status = terminal_status(task.outcome)
    out = Note("task.ended", task.index, reason=task.outcome, message=message, data={"status": str(status)})
    ctx.out.append(out)
    return replace(task, state=TaskState.ENDED, reason=task.outcome, message=message, ended_at=ctx.now, wake_at=None)


def succeed(task: TaskView, ctx: Context) -> TaskView | None:
    """Also an attempt that is already being drained may turn out to have finished first."""
    if task.outcome is not None:
        return None
    if not any(a.state in _HAS_RUN and has_succeeded(a) for a in task.attempts):
        return None
    return conclude(task, Reason.COMPLETED, ctx, until=abruptly(ctx.now))


# --- attempts on their way out --------------------------------------------------------------------


def forget_gone(task: TaskView, ctx: Context) -> TaskView | None:
    left = tuple([a for a in task.attempts if a.is_live])
    if len(left) == len(task.attempts):
        return None
    newest_went = not task.attempts[-1].is_live
    if newest_went and task.state is TaskState.PLACING:
        return replace(task, attempts=left, state=TaskState.WAITING, wake_at=ctx.now)
    if newest_went and task.state is TaskState.RUNNING and task.wake_at is None:
        # A replacement that was not to be had: is there another? One that failed says itself when to ask.
        return replace(task, attempts=left, wake_at=ctx.now)
    return replace(task, attempts=left)


def drained(task: TaskView, ctx: Context) -> TaskView | None:
    for a in task.attempts:
        if a.state is _DRAINING and all(n.has_stopped for n in a.nodes):
            trouble = "; ".join(n.message for n in a.nodes if n.failed_stage is not None and n.message)
            ctx.out.append(Note("attempt.stopped", task.index, a.generation, reason=a.reason, message=trouble))
            return task.with_attempt(replace(a, state=AttemptState.STOPPED))
    return None


def terminate(task: TaskView, ctx: Context) -> TaskView | None:
    for a in task.attempts:
        stopped = a.state is _STOPPED
        overdue_from = overdue_at(a, ctx.view) if a.state is _DRAINING else None
        overdue = overdue_from is not None and overdue_from <= ctx.now
        if (stopped or overdue) and not a.terminating:
            ctx.out.append(Terminate(task.index, a.generation))
            return task.with_attempt(replace(a, terminating=True))
    return None


# --- the attempt that is meant to run -------------------------------------------------------------


def lose(task: TaskView, ctx: Context) -> TaskView | None:
    attempt = task.current
    if attempt is None or task.outcome is not None:
        return None
    reason = loss(attempt, ctx.view, ctx.now)
    if reason is None:
        return None
    saves = attempt.state is AttemptState.RUNNING
    until = drain_deadline(attempt, ctx.view.limits, ctx.now) if saves else abruptly(ctx.now)
    data: dict[str, object] = {"offer": attempt.offer.name, "was": attempt.state.value}
    ctx.out.append(Note("attempt.lost", task.index, attempt.generation, reason=reason, message=text(reason), data=data))
    learn_of_loss(attempt, reason, ctx)
    counts = MEANINGS[reason].is_recovery and attempt.state in _HAD_BEGUN
    return replace(
        look_for_another(task, attempt, reason, until, ctx.now),
        recovery_count=task.recovery_count + int(counts),
        preempted_from=attempt.offer if reason in COOLS_DOWN else task.preempted_from,
    )


def fail(task: TaskView, ctx: Context) -> TaskView | None:
    """A rank failed by itself. A rank whose peer was taken away often dies of it, and that is no fault of the user's:
    unless every peer has ended, too, they are called first, and their machines looked up."""
    attempt = task.current
    node = failed_node(attempt) if attempt else None
    if attempt is None or node is None or task.outcome is not None:
        return None
    if not _peers_are_alive(attempt):
        return _ask_about_peers(task, attempt, ctx)
    restart = _restart_reason(task, attempt)
    message = failure_text(node)
    if restart is None:
        outcome = FAILED_STAGE[node.failed_stage or "run"]
        return conclude(task, outcome, ctx, until=ctx.now + ctx.view.limits.drain_s, message=message)
    ctx.out.append(Note("attempt.failed", task.index, attempt.generation, node.rank, restart, message))
    counted = int(restart is Reason.RESTART_ON_ERROR)
    after = look_for_another(task, attempt, restart, ctx.now + ctx.view.limits.drain_s, ctx.now)
    return replace(after, restarts_on_errors=task.restarts_on_errors + counted)


def _peers_are_alive(attempt: AttemptView) -> bool:
    """As far as they have not ended, they have called since the failure, and their cloud knows of no end either."""
    if all(n.has_stopped for n in attempt.nodes):
        return True
    since = attempt.failing_since
    answered = since is not None and attempt.checked_at is not None and attempt.checked_at >= since
    return answered and not any(is_silent(n) for n in attempt.nodes)


def _ask_about_peers(task: TaskView, attempt: AttemptView, ctx: Context) -> TaskView | None:
    asked = attempt.failing_since is not None
    if asked and not _recheck_is_due(attempt, ctx):
        return None
    ctx.out.append(Check(task.index, attempt.generation))
    if not asked:
        # What was heard or seen before the failure proves nothing: a machine that died without a word still counts as
        # connected for some beats, and its cloud may list it for longer.
        nodes = tuple(_to_be_heard(n, ctx.now) for n in attempt.nodes)
        attempt = replace(attempt, nodes=nodes, failing_since=ctx.now, checked_at=None)
    return task.with_attempt(replace(attempt, check_asked_at=ctx.now))


def _to_be_heard(node: NodeView, now: float) -> NodeView:
    """Silent until it calls again, which its directive's roll call makes it do."""
    if node.has_stopped or node.phase is NodePhase.UNHEARD or node.silent_since is not None:
        return node
    return replace(node, connected=False, silent_since=now)


def _restart_reason(task: TaskView, attempt: AttemptView) -> Reason | None:
    codes = {n.exit_code for n in attempt.nodes if n.exit_code is not None and not n.interrupted}
    if codes & task.recovery.recover_on_exit_codes:
        return Reason.RESTART_ON_EXIT_CODE
    if task.restarts_on_errors < task.recovery.max_restarts_on_errors:
        return Reason.RESTART_ON_ERROR
    return None


def advance(task: TaskView, ctx: Context) -> TaskView | None:
    """Booted → setting up → ready → running; the last step only when no older attempt can be running."""
    attempt = task.replacement or task.current
    if attempt is None or task.outcome is not None:
        return None
    if attempt.state is AttemptState.RUNNING:
        return None
    phases = {n.phase for n in attempt.nodes}
    if attempt.state is AttemptState.BOOTING and NodePhase.UNHEARD not in phases:
        ctx.out.append(Note("attempt.setting_up", task.index, attempt.generation))
        return task.with_attempt(replace(attempt, state=AttemptState.SETTING_UP))
    not_ready = {NodePhase.UNHEARD, NodePhase.BOOTED, NodePhase.MOUNTING, NodePhase.SETUP}
    if attempt.state is AttemptState.SETTING_UP and not phases & not_ready:
        learn_it_lasted(attempt, ctx, started_s=ctx.now - attempt.requested_at)
        return task.with_attempt(replace(attempt, state=AttemptState.READY))
    older_runs = any(a.may_run_workload for a in task.attempts if a.generation != attempt.generation)
    if attempt.state is AttemptState.READY and not older_runs:
        return _give_leave_to_run(task, attempt, ctx)
    return None


def _give_leave_to_run(task: TaskView, attempt: AttemptView, ctx: Context) -> TaskView:
    where = attempt.offer.name
    ctx.out.append(Note("attempt.running", task.index, attempt.generation, data={"offer": where}))
    task = task.with_attempt(replace(attempt, state=AttemptState.RUNNING, running_at=ctx.now))
    started_at = task.started_at if task.started_at is not None else ctx.now
    return replace(
        task,
        state=TaskState.RUNNING,
        has_run=True,
        started_at=started_at,
        run_since=ctx.now,
        resumed_s=task.durable_s,
        wake_at=ctx.now,
    )


def look_up_silent(task: TaskView, ctx: Context) -> TaskView | None:
    """A broken connection is the first sign of death: the cloud is asked, at once and then again and again."""
    for a in task.attempts:
        if not a.is_well and any(is_silent(n) for n in a.nodes) and _recheck_is_due(a, ctx):
            ctx.out.append(Check(task.index, a.generation))
            return task.with_attempt(replace(a, check_asked_at=ctx.now))
    return None


def _recheck_is_due(attempt: AttemptView, ctx: Context) -> bool:
    due = recheck_at(attempt, ctx.view.limits)
    return due is not None and ctx.now >= due


# --- the next attempt -----------------------------------------------------------------------------


def prepare_storage(task: TaskView, ctx: Context) -> TaskView | None:
    if task.state is not _WAITING or task.storage_ready or task.storage_asked or task.outcome is not None:
        return None
    ctx.out.append(PrepareStorage(task.index))
    return replace(task, storage_asked=True)


def foresee_lateness(task: TaskView, ctx: Context) -> TaskView | None:
    """The user is told once, at the moment when not even a machine that stays would end the task in time."""
    deadline_at, work_s = task.recovery.deadline_at, task.work_s
    if deadline_at is None or work_s is None or task.late_since is not None or task.outcome is not None:
        return None
    start_s = ctx.market.history.start_ups.usual_s if task.state is _WAITING else 0.0
    ends_at = ctx.now + start_s + max(0.0, work_s - task.progress_s(ctx.now))
    if ends_at <= deadline_at:
        return None
    late_s = ends_at - deadline_at
    message = f"even on-demand would now end it about {late_s / 60:.0f} min after its deadline; it goes on all the same"
    ctx.out.append(Note("task.late", task.index, message=message, data={"late_s": round(late_s)}))
    return replace(task, late_since=ctx.now)


def place(task: TaskView, ctx: Context) -> TaskView | None:
    waits = task.state is _WAITING and task.outcome is None and task.storage_ready
    if not waits or (task.wake_at is not None and ctx.now < task.wake_at):
        return None
    match policy(task.recovery.strategy).choose(task, ctx.market, ctx.now):
        case Place(offer):
            return request(task, offer, ctx)
        case Never(why, is_request):
            return _nothing_fits(task, why, is_request, ctx)
        case Wait(until, why):
            until = max(until, ctx.now + SOONEST_S, ctx.now + _backoff_s(task, ctx))
            if task.reason is not Reason.BACKING_OFF:
                note = "every offer that fits is being avoided; the next try is when the first comes back"
                data: dict[str, object] = {"why": list(why), "until": until}
                ctx.out.append(Note("task.waiting", task.index, reason=Reason.BACKING_OFF, message=note, data=data))
            return replace(task, reason=Reason.BACKING_OFF, wake_at=until)


def _backoff_s(task: TaskView, ctx: Context) -> float:
    """Longer with every refusal, and different for each job: what was sold out is not asked for by all at once."""
    limits, seed = ctx.view.limits, f"{ctx.job.id}-{task.index}"
    return delay(task.refused_in_a_row, limits.backoff_first_s, limits.backoff_cap_s, seed)


def _nothing_fits(task: TaskView, why: tuple[str, ...], is_request: bool, ctx: Context) -> TaskView:
    reason = Reason.PRECHECKS_FAILED if is_request else Reason.NO_OFFER_FITS
    message = "; ".join(why)
    if not task.has_run:
        return conclude(task, reason, ctx, until=abruptly(ctx.now), message=message)
    # A job that has run is not thrown away because a cloud was switched off under it: it waits to be helped.
    if task.reason is not reason:
        ctx.out.append(Note("task.waiting", task.index, reason=reason, message=message))
    return replace(task, reason=reason, wake_at=ctx.now + ctx.view.limits.helpless_s)


CLEARING_RULES: tuple[Rule, ...] = (forget_gone, drained, terminate)
CHOOSING_RULES: tuple[Rule, ...] = (place, reconsider)
QUIET_RULES: tuple[Rule, ...] = (prepare_storage, foresee_lateness, *CHOOSING_RULES)
RULES: tuple[Rule, ...] = (
    succeed,
    cancel,
    end,
    *CLEARING_RULES,
    lose,
    lose_replacement,
    fail,
    take_over,
    advance,
    look_up_silent,
    *QUIET_RULES,
)
