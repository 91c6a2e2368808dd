"""The rules that `step` applies to a task, in order, until none applies.

A rule takes the task and returns the task as it should be, or None if it does not apply. It appends the actions to
perform to `ctx.out`. The first rule that applies wins; then the table is read again from the top.
"""

from __future__ import annotations

from perdure.recovery.job import TaskView
from perdure.recovery.rules.cleanup import drop_gone_attempts, stop_drained_attempts, terminate_stopped_attempts
from perdure.recovery.rules.context import Context, Rule
from perdure.recovery.rules.failure import handle_failure
from perdure.recovery.rules.limits import end_overdue, watch_budget, watch_progress
from perdure.recovery.rules.machine_loss.response import describe_disconnected, handle_loss
from perdure.recovery.rules.migrate import drop_lost_replacement, maybe_move, switch_over
from perdure.recovery.rules.next_attempt import forecast_deadline, place, prepare_storage
from perdure.recovery.rules.progress import advance
from perdure.recovery.rules.succeed_or_cancel import cancel, finalize, succeed
from perdure.recovery.statuses import TaskState

# The only rules for a task that is not the job's current one.
CLEANUP_RULES: tuple[Rule, ...] = (
    drop_gone_attempts,  # an attempt's machines are gone: forget the attempt
    stop_drained_attempts,  # every node of a draining attempt has stopped: the attempt is STOPPED
    terminate_stopped_attempts,  # an attempt has stopped, or its drain is overdue: terminate its machines
)
# These ask for machines. What follows depends on the cloud, so no rule is applied after one of them.
PLACEMENT_RULES: tuple[Rule, ...] = (
    place,  # the task waits and its wake time has come: request an attempt, wait, or give up
    maybe_move,  # the task runs and the policy wants to look again: stay, or request a replacement
)
# The only rules that can apply to a task without news: it runs steadily, or has no attempt.
STEADY_RULES: tuple[Rule, ...] = (
    end_overdue,  # the task has run for `max_duration`: drain all attempts, outcome MAX_DURATION
    watch_budget,  # the task has spent most of `max_cost`: tell the user; all of it: outcome MAX_COST
    prepare_storage,  # the task waits and its buckets do not exist: create them
    forecast_deadline,  # the task can no longer meet its deadline: tell the user once
    watch_progress,  # the task stands still: tell the user, and restart it if it says so
    *PLACEMENT_RULES,
)
RULES: tuple[Rule, ...] = (
    # The task is over.
    succeed,  # every rank of an attempt exited with 0: stop the other attempts, outcome COMPLETED
    cancel,  # the user cancelled the job: drain all attempts, outcome USER_CANCELLED
    end_overdue,
    watch_budget,
    finalize,  # the outcome is known and no workload can be running: the task is ENDED
    *CLEANUP_RULES,
    # The current attempt and its replacement. None of these applies once the outcome is known.
    handle_loss,  # the current attempt lost a machine: drain the rest, recover
    drop_lost_replacement,  # the replacement was lost or failed: drop it, the current attempt runs on
    handle_failure,  # a rank failed by itself: restart if the user allows it, else fail the task
    switch_over,  # the replacement is READY: drain the current attempt
    advance,  # nodes have progressed: BOOTING → SETTING_UP → READY → RUNNING
    describe_disconnected,  # a node is disconnected: ask the cloud about its machine
    prepare_storage,
    forecast_deadline,
    watch_progress,
    *PLACEMENT_RULES,
)

# Far more than any real chain of rules; reached only if two rules undo each other.
_MAX_ROUNDS, _ROUNDS_PER_ATTEMPT = 100, 4

_ENDED = TaskState.ENDED


def apply_rules(task: TaskView, ctx: Context, *, is_current: bool) -> TaskView:
    """`task` after all rules. `is_current`: it is the job's current task; otherwise only cleanup is left to do."""
    rules = RULES if is_current else CLEANUP_RULES
    for _ in range(_MAX_ROUNDS + _ROUNDS_PER_ATTEMPT * len(task.attempts)):
        for rule in STEADY_RULES if is_current and _has_no_news(task, ctx) else rules:
            after = rule(task, ctx)
            if after is not None:
                task = after
                break
        else:
            return task
        if rule in PLACEMENT_RULES and task.outcome is None:
            return task
    raise AssertionError(f"the rules do not terminate: {task}")


def _has_no_news(task: TaskView, ctx: Context) -> bool:
    """The task runs steadily, or has no attempt, so only `STEADY_RULES` can apply.

    Nearly all tasks are in this state, and skipping the other rules halves the cost of a decision.
    """
    if task.outcome is not None or ctx.job.cancel is not None or len(task.attempts) > 1:
        return False
    if not task.attempts:
        return task.state is not _ENDED
    return task.attempts[0].is_steady
