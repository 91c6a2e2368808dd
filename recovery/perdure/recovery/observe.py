"""Folds one event into the job. Facts only: what follows from them is decided by `rules.table`.

Late, repeated and outdated events are ignored: the job is returned unchanged. So are events that cannot be true: about
a task or a rank that does not exist, or with a time that is not a finite number.
"""

from __future__ import annotations

from math import isfinite
from typing import assert_never

from perdure.recovery import events
from perdure.recovery.actions import Action, AvoidOffer, RecordObservation, TimelineEntry
from perdure.recovery.frozen import replace
from perdure.recovery.job import AttemptView, Cancel, JobView, NodeView, TaskView, step_time_margin
from perdure.recovery.market.cooldown import cooldown_s
from perdure.recovery.market.history import OfferObservation
from perdure.recovery.market.unavailable import FaultKind, UnavailableOffer
from perdure.recovery.reasons import STAGE_FAILURES, Reason, meaning_of
from perdure.recovery.rules.machine_loss.evidence import confirm_loss
from perdure.recovery.statuses import AttemptState, NodePhase, TaskState

# Larger numbers count no training steps, and a float does not hold them exactly.
_MAX_STEP = 2**53

_STAGES = tuple(STAGE_FAILURES)
# Why a cloud ended a machine, if it was the task's own doing → the stage that failed.
_OWN_FAILURES = {Reason.RUN_FAILED: "run", Reason.PRECHECKS_FAILED: "start"}
_PHASE_ORDER = {phase: order for order, phase in enumerate(NodePhase)}
_REQUESTED, _GONE, _AVOID_ZONE = AttemptState.REQUESTED, AttemptState.GONE, FaultKind.AVOID_ZONE


def observe(job: JobView, event: events.Event, now: float, out: list[Action]) -> JobView:
    """The job after `event`. Timeline entries and observations of offers that it carries are appended to `out`."""
    if isinstance(event, events.Tick) or not _is_possible(job, event):
        return job
    match event:
        case events.CancelRequested():
            return _cancel_requested(job, event, now, out)
        case events.SlotGranted():
            return _slot_granted(job, event, now)
        case events.StorageReady() | events.StorageFailed():
            return _storage_event(job, event, now)
        case events.Launched():
            return _launched(job, event, now, out)
        case events.LaunchRefused():
            return _launch_refused(job, event, now, out)
        case events.LaunchCancelled():
            return _launch_cancelled(job, event, out)
        case events.NodeReported() | events.NodeDisconnected() | events.PreemptionNotice():
            return _node_event(job, event, now, out)
        case events.CheckpointDurable() | events.StepSaved() | events.CheckpointLoaded() | events.GpusReported():
            return _progressed(job, event, now, out)
        case events.MachinesDescribed() | events.AttemptGone():
            return _machine_event(job, event, now, out)
        case _:
            assert_never(event)


def _is_possible(job: JobView, event: events.Event) -> bool:
    """Its task exists, and its time is a finite number."""
    match event:
        case events.Tick():
            return True
        case events.CancelRequested():
            return isfinite(event.grace_s)
        case events.PreemptionNotice() if not isfinite(event.deadline):
            return False
        case events.CheckpointDurable() if not isfinite(event.at):
            return False
    return 0 <= event.task < len(job.tasks)


def _cancel_requested(job: JobView, event: events.CancelRequested, now: float, out: list[Action]) -> JobView:
    if job.has_ended and not any(a.is_live and not a.terminating for task in job.tasks for a in task.attempts):
        return job  # no machine is kept either
    if job.cancel is None:
        out.append(TimelineEntry("job.cancel", reason=Reason.USER_CANCELLED, data={"grace_s": event.grace_s}))
        return replace(job, cancel=Cancel(at=now, grace_s=event.grace_s))
    # A second cancel can only shorten the grace period of the first.
    until = min(job.cancel.at + job.cancel.grace_s, now + event.grace_s)
    return replace(job, cancel=replace(job.cancel, grace_s=until - job.cancel.at))


def _slot_granted(job: JobView, event: events.SlotGranted, now: float) -> JobView:
    task = job.tasks[event.task]
    return job.with_task(replace(task, wake_at=now)) if task.state is TaskState.WAITING else job


def _storage_event(job: JobView, event: events.StorageReady | events.StorageFailed, now: float) -> JobView:
    task = job.tasks[event.task]
    if not _awaits_storage(task):
        return job
    if isinstance(event, events.StorageReady):
        return job.with_task(replace(task, storage_ready=True, wake_at=now))
    return job.with_task(replace(task, state=TaskState.STOPPING, outcome=Reason.STORAGE_FAILED, message=event.message))


def _awaits_storage(task: TaskView) -> bool:
    """Its buckets were requested, and no answer has come. A second answer is ignored, whatever it is."""
    return task.storage_requested and not task.storage_ready and task.outcome is None


# --- launches ---------------------------------------------------------------------------------------------------------


def _launched(job: JobView, event: events.Launched, now: float, out: list[Action]) -> JobView:
    task = job.tasks[event.task]
    attempt = task.attempt(event.generation)
    if attempt is None:
        return job
    out.append(RecordObservation(OfferObservation(attempt.offer.key, now, available=True)))
    machines = {machine.rank: machine for machine in event.machines}
    nodes = tuple(
        replace(n, instance_id=machines[n.rank].instance_id, ip=n.ip or machines[n.rank].ip)
        if n.rank in machines
        else n
        for n in attempt.nodes
    )
    attempt = replace(attempt, nodes=nodes, booted_at=now if attempt.booted_at is None else attempt.booted_at)
    if attempt.state is _REQUESTED:
        attempt = replace(attempt, state=AttemptState.BOOTING)
        ids = [n.instance_id for n in nodes]
        out.append(TimelineEntry("attempt.launched", task.index, attempt.generation, data={"instances": ids}))
    return job.with_task(replace(task.with_attempt(attempt), consecutive_refusals=0))


def _launch_refused(job: JobView, event: events.LaunchRefused, now: float, out: list[Action]) -> JobView:
    task = job.tasks[event.task]
    attempt = task.attempt(event.generation)
    if attempt is None or attempt.booted_at is not None:
        return job  # its machines exist: what becomes of them is observed
    unavailable = _with_finite_times(event.unavailable, now)
    out.append(AvoidOffer(unavailable))
    if unavailable.kind is _AVOID_ZONE:
        out.append(RecordObservation(OfferObservation(attempt.offer.key, now, available=False)))
    data: dict[str, object] = {
        "code": unavailable.code,
        "kind": unavailable.kind.value,
        "until": unavailable.until,
        "offer": attempt.offer.name,
    }
    out.append(TimelineEntry("attempt.refused", task.index, attempt.generation, message=unavailable.message, data=data))
    if attempt is not task.replacement:  # a task that runs is not searching
        task = replace(task, consecutive_refusals=task.consecutive_refusals + 1)
    if event.is_final and task.outcome is None and attempt is task.current:
        task = replace(task, state=TaskState.STOPPING, outcome=Reason.PRECHECKS_FAILED, message=unavailable.message)
    if not event.may_exist:
        return job.with_task(task.with_attempt(replace(attempt, state=_GONE)))
    # Machines may exist, so the attempt ends with a termination, which looks for them.
    stopped = replace(attempt, state=AttemptState.STOPPED)
    if attempt is task.current and task.state is TaskState.PROVISIONING:
        task = replace(task, state=TaskState.WAITING, wake_at=now)
    return job.with_task(task.with_attempt(stopped))


def _with_finite_times(unavailable: UnavailableOffer, now: float) -> UnavailableOffer:
    """The refusal itself is certain, so it counts even if its times are unusable."""
    if isfinite(unavailable.at) and isfinite(unavailable.until):
        return unavailable
    return replace(unavailable, at=now, until=now + cooldown_s(unavailable.kind, 0))


def _launch_cancelled(job: JobView, event: events.LaunchCancelled, out: list[Action]) -> JobView:
    task = job.tasks[event.task]
    attempt = task.attempt(event.generation)
    if attempt is None or attempt.booted_at is not None:
        return job
    message = "the attempt was given up before its launch was sent to the cloud"
    out.append(TimelineEntry("attempt.withdrawn", task.index, attempt.generation, message=message))
    return job.with_task(task.with_attempt(replace(attempt, state=AttemptState.GONE)))


# --- progress ---------------------------------------------------------------------------------------------------------


def _checkpoint_durable(job: JobView, event: events.CheckpointDurable, now: float, out: list[Action]) -> JobView:
    task = job.tasks[event.task]
    started = [a for a in task.attempts if a.running_at is not None]
    if task.status.is_terminal or not started or started[-1].generation != event.generation:
        return job  # an earlier run's progress has been counted; a task that has ended needs no estimate
    if task.saved_s is None:
        # The workload does report, so runs that ended without a report saved nothing, whatever was assumed of them.
        task = replace(task, resumed_s=0.0)
    if task.saved_s is not None and task.saved_s < task.first_step_s:
        # All that was measured is lost, with unmeasured work before it: what a step takes is measured anew.
        task = replace(task, first_step=None, first_step_s=0.0)
    saved_s = task.resumed_s + max(0.0, min(event.at, now) - (started[-1].running_at or now))
    before = task
    saved = replace(task, saved_s=max(saved_s, task.saved_s or 0.0), saved_in=event.generation, loaded=None,
                    undone_s=0.0)  # fmt: skip
    if saved.saved_s != task.saved_s or task.undone_s:
        saved = replace(saved, saved_step=event.step if abs(event.step or 0) <= _MAX_STEP else None)
    task = with_work_estimate(saved, event, saved_s)
    if _counts_steps(task) and not _counts_steps(before):
        out.append(_estimate_entry(task))
        task = replace(task, wake_at=now)  # the policy can now decide with the estimate
    return job.with_task(task)


def _progressed(
    job: JobView,
    event: events.CheckpointDurable | events.StepSaved | events.CheckpointLoaded | events.GpusReported,
    now: float,
    out: list[Action],
) -> JobView:
    if isinstance(event, events.CheckpointDurable):
        return _checkpoint_durable(job, event, now, out)
    if isinstance(event, events.CheckpointLoaded):
        return _checkpoint_loaded(job, event, now, out)
    task = job.tasks[event.task]
    attempt = task.attempt(event.generation)
    if attempt is None or attempt.state is not AttemptState.RUNNING:
        return job
    if isinstance(event, events.GpusReported):
        # GPUs that have never been at work count as idle from when they were first seen.
        busy_at = now if event.busy or task.busy_at is None else task.busy_at
        return job.with_task(replace(task, busy_at=busy_at, gpus_at=now))
    if abs(event.step) > _MAX_STEP or event.step == task.last_step:
        return job
    return job.with_task(replace(task, last_step=event.step, step_at=now))


def _checkpoint_loaded(job: JobView, event: events.CheckpointLoaded, now: float, out: list[Action]) -> JobView:
    """What a program loads before its first save is what it continues from; the newest, if it loads several steps."""
    task = job.tasks[event.task]
    attempt = task.attempt(event.generation)
    runs = attempt is not None and attempt.state is AttemptState.RUNNING and task.saved_in != event.generation
    if not runs or abs(event.step) > _MAX_STEP:
        return job
    is_first = task.loaded is None or task.loaded[0] != event.generation
    step = event.step if is_first or task.loaded is None else max(event.step, task.loaded[1])
    before, task = task, replace(task, loaded=(event.generation, step)).continued_from(step)
    # Later steps that the same run loads bring work back: they are neither told nor urgent, however many they are.
    if task.undone_s == before.undone_s or not is_first:
        return job.with_task(task)
    if task.undone_s:
        message = (
            f"the program continues from step {step}, although step {task.saved_step} was durable: "
            f"{task.undone_s / 60:.0f} min of work count as lost"
        )
        data: dict[str, object] = {"step": step, "durable_step": task.saved_step, "lost_s": round(task.undone_s)}
        out.append(TimelineEntry("task.work_lost", task.index, event.generation, message=message, data=data))
    return job.with_task(replace(task, wake_at=now))  # there is less slack, or more, than the policy knew


def _counts_steps(task: TaskView) -> bool:
    """Whether the task's work is what its steps indicate."""
    return task.estimated_s is not None and (task.recovery.work_s is None or task.believes_steps)


def _estimate_entry(task: TaskView) -> TimelineEntry:
    work_s, stated_s = task.work_s, task.recovery.work_s
    assert work_s is not None
    message = f"estimated from its training steps, the task runs for {work_s / 3600:.1f} h in all"
    data: dict[str, object] = {"work_s": round(work_s)}
    if stated_s is not None:
        differs = abs(work_s - stated_s) > 0.02 * stated_s
        message += f", not for {stated_s / 3600:.1f} h as `work` states" if differs else ", as `work` states"
        message += "; from now on, the steps count"
        data["stated_s"] = round(stated_s)
    return TimelineEntry("task.work_estimated", task.index, message=message, data=data)


def with_work_estimate(task: TaskView, event: events.CheckpointDurable, saved_s: float) -> TaskView:
    """`task` with its work estimated from the steps that have been saved, the newest after `saved_s` of work.

    The time per step is that from the first saved step to the newest, so neither a start from another job's checkpoint
    nor the time before the first step counts. A single step gives no estimate.
    """
    if event.step is None or event.total_steps is None or max(abs(event.step), abs(event.total_steps)) > _MAX_STEP:
        return task
    if task.first_step is None:
        return replace(task, first_step=event.step, first_step_s=saved_s)
    steps, seconds = event.step - task.first_step, saved_s - task.first_step_s
    if steps <= 0 or seconds <= 0:
        return task
    left = max(0, event.total_steps - event.step)
    return replace(task, estimated_s=saved_s + step_time_margin(seconds) * left * seconds / steps)


# --- nodes and machines -----------------------------------------------------------------------------------------------


def _node_event(
    job: JobView,
    event: events.NodeReported | events.NodeDisconnected | events.PreemptionNotice,
    now: float,
    out: list[Action],
) -> JobView:
    task = job.tasks[event.task]
    attempt = task.attempt(event.generation)
    if attempt is None or not attempt.is_live or not 0 <= event.rank < len(attempt.nodes):
        return job
    node = attempt.nodes[event.rank]
    if node.gone_reason is not None:
        return job
    match event:
        case events.NodeReported():
            node = _reported(node, event)
        case events.NodeDisconnected():
            has_connected = node.phase is not NodePhase.NOT_CONNECTED
            if node.connected or (node.disconnected_since is None and has_connected):
                node = replace(node, connected=False, disconnected_since=now)
        case events.PreemptionNotice():
            if node.notice_deadline is None:
                out.append(_notice_entry(task, attempt, event, now))
                deadline = event.deadline
            else:
                deadline = min(node.notice_deadline, event.deadline)
            node = replace(node, notice_deadline=deadline)
            if attempt.drain_until is not None and attempt.state is AttemptState.DRAINING:
                attempt = replace(attempt, drain_until=min(attempt.drain_until, deadline))
            if event.confirmed:
                attempt = confirm_loss(attempt, now, out, preempted=True)
    return job.with_task(task.with_attempt(attempt.with_node(node)))


def _reported(node: NodeView, event: events.NodeReported) -> NodeView:
    node = replace(node, connected=True, disconnected_since=None, ip=event.ip or node.ip)
    if _PHASE_ORDER[event.phase] < _PHASE_ORDER[node.phase] or node.phase is NodePhase.ENDED:
        return node  # an older report that arrived late, or a repeated one: an end is final
    return replace(
        node,
        phase=event.phase,
        exit_code=event.exit_code,
        failed_stage="run" if event.failed_stage not in (None, *_STAGES) else event.failed_stage,
        interrupted=event.interrupted,
        mount_lost=node.mount_lost or event.mount_lost,
        message=event.message,
    )


def _notice_entry(task: TaskView, attempt: AttemptView, event: events.PreemptionNotice, now: float) -> TimelineEntry:
    message = f"the cloud will take the machine in {max(0.0, event.deadline - now):.0f} s"
    data: dict[str, object] = {"deadline": event.deadline, "confirmed": event.confirmed}
    reason = Reason.PREEMPTION_NOTICE
    return TimelineEntry("node.notice", task.index, attempt.generation, event.rank, reason, message, data)


def _machine_event(
    job: JobView, event: events.MachinesDescribed | events.AttemptGone, now: float, out: list[Action]
) -> JobView:
    task = job.tasks[event.task]
    attempt = task.attempt(event.generation)
    if attempt is None or not attempt.is_live:
        return job
    match event:
        case events.MachinesDescribed():
            nodes = tuple(_described(n, event, out) for n in attempt.nodes)
            if event.waiting and attempt.state is AttemptState.BOOTING:
                attempt = replace(attempt, booted_at=now)  # the time to connect begins when they start
            attempt = _confirmed(replace(attempt, nodes=nodes, described_at=now), event, now, out)
        case events.AttemptGone():
            reason = attempt.reason or Reason.MACHINE_STOPPED
            nodes = tuple(replace(n, gone_reason=n.gone_reason or reason, connected=False) for n in attempt.nodes)
            attempt = replace(attempt, nodes=nodes)
            # An attempt that nobody terminated is a loss: the rules handle it first, and terminate it afterwards.
            if attempt.terminating:
                if event.preempted:
                    attempt = confirm_loss(attempt, now, out, preempted=True)
                attempt = replace(attempt, state=_GONE)
                out.append(TimelineEntry("attempt.gone", task.index, attempt.generation))
    return job.with_task(task.with_attempt(attempt))


def _confirmed(attempt: AttemptView, event: events.MachinesDescribed, now: float, out: list[Action]) -> AttemptView:
    """`attempt` with its loss confirmed, if the cloud reports one. A machine that is being terminated looks crashed."""
    reasons = set(event.gone_reasons.values())
    preempted = Reason.PREEMPTED in reasons
    if preempted or (Reason.MACHINE_CRASHED in reasons and not attempt.terminating):
        return confirm_loss(attempt, now, out, preempted=preempted)
    return attempt


def _failed_by_itself(node: NodeView, stage: str, message: str) -> NodeView:
    """The cloud ended the machine for what the task did on it: it failed, as if its agent had reported that."""
    if node.phase is NodePhase.ENDED:
        return node
    if stage == "run" and node.phase is NodePhase.SETUP:
        stage = "setup"
    ended = replace(node, phase=NodePhase.ENDED, failed_stage=stage, message=message)
    return replace(ended, connected=False, disconnected_since=None)


def _described(node: NodeView, event: events.MachinesDescribed, out: list[Action]) -> NodeView:
    gone_reason = event.gone_reasons.get(node.rank)
    if gone_reason is None or node.gone_reason is not None:
        return node
    message = event.messages.get(node.rank, "")
    if gone_reason in _OWN_FAILURES:
        return _failed_by_itself(node, _OWN_FAILURES[gone_reason], message)
    # A machine that is gone has been lost, for whatever reason.
    gone_reason = gone_reason if meaning_of(gone_reason).recovers else Reason.MACHINE_CRASHED
    out.append(TimelineEntry("node.gone", event.task, event.generation, node.rank, gone_reason, message))
    return replace(node, gone_reason=gone_reason, connected=False, disconnected_since=None)
