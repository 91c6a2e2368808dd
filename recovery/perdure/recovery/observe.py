"""Folds one event into what is believed of a job. Facts only: what follows from them is `settle`'s business.

Late, repeated and out-of-date events fall through to "ignored": the job is returned as it was.
"""

from __future__ import annotations

from typing import assert_never

from perdure.recovery import events
from perdure.recovery.actions import Action, Learn, Note, Refuse
from perdure.recovery.estimates import estimated
from perdure.recovery.history import Sighting
from perdure.recovery.job import AttemptView, Cancel, JobView, NodeView, TaskView
from perdure.recovery.market import FaultKind
from perdure.recovery.reasons import Reason
from perdure.recovery.statuses import AttemptState, NodePhase, TaskState
from perdure.recovery.values import replace

_PHASE_ORDER = {phase: order for order, phase in enumerate(NodePhase)}
_REQUESTED, _GONE, _AVOID_ZONE = AttemptState.REQUESTED, AttemptState.GONE, FaultKind.AVOID_ZONE


def observe(job: JobView, event: events.Event, now: float, out: list[Action]) -> JobView:
    """The job after `event`; timeline notes and refusals that the event itself carries are appended to `out`."""
    match event:
        case events.Tick():
            return job
        case events.CancelRequested():
            return _cancel(job, event, now, out)
        case events.StorageReady():
            task = job.tasks[event.task]
            return job.with_task(replace(task, storage_ready=True, wake_at=now))
        case events.StorageFailed():
            return _storage_failed(job, event)
        case events.Launched() | events.LaunchRefused():
            return _launch_answered(job, event, now, out)
        case events.LaunchWithdrawn():
            return _launch_withdrawn(job, event, out)
        case events.NodeReported() | events.NodeSilent() | events.NoticeGiven():
            return _node_event(job, event, now, out)
        case events.Saved():
            return _saved(job, event, now, out)
        case events.MachinesSeen() | events.AttemptGone():
            return _cloud_said(job, event, now, out)
        case _:
            assert_never(event)


def _cancel(job: JobView, event: events.CancelRequested, now: float, out: list[Action]) -> JobView:
    if job.has_ended:
        return job
    if job.cancel is None:
        out.append(Note("job.cancel", reason=Reason.USER_CANCELLED, data={"grace_s": event.grace_s}))
        return replace(job, cancel=Cancel(at=now, grace_s=event.grace_s))
    # A second, more impatient cancel shortens the grace of the first.
    until = min(job.cancel.at + job.cancel.grace_s, now + event.grace_s)
    return replace(job, cancel=replace(job.cancel, grace_s=until - job.cancel.at))


def _storage_failed(job: JobView, event: events.StorageFailed) -> JobView:
    task = job.tasks[event.task]
    if task.state is TaskState.ENDED or task.outcome is not None or task.storage_ready:
        return job  # too late: the buckets were there before
    return job.with_task(replace(task, state=TaskState.STOPPING, outcome=Reason.STORAGE_FAILED, message=event.message))


def _launch_answered(
    job: JobView, event: events.Launched | events.LaunchRefused, now: float, out: list[Action]
) -> JobView:
    task = job.tasks[event.task]
    attempt = task.attempt(event.generation)
    if attempt is None:
        return job
    if isinstance(event, events.Launched):
        out.append(Learn(Sighting(attempt.offer.key, now, available=True)))
        known = {machine.rank: machine for machine in event.machines}
        nodes = tuple(
            replace(n, instance_id=known[n.rank].instance_id, ip=n.ip or known[n.rank].ip) if n.rank in known else n
            for n in attempt.nodes
        )
        attempt = replace(attempt, nodes=nodes, booted_at=now if attempt.booted_at is None else attempt.booted_at)
        if attempt.state is _REQUESTED:
            attempt = replace(attempt, state=AttemptState.BOOTING)
            ids = [n.instance_id for n in nodes]
            out.append(Note("attempt.launched", task.index, attempt.generation, data={"instances": ids}))
        return job.with_task(replace(task.with_attempt(attempt), refused_in_a_row=0))
    refusal = event.refusal
    out.append(Refuse(refusal))
    if refusal.kind is _AVOID_ZONE:
        out.append(Learn(Sighting(attempt.offer.key, now, available=False)))
    out.append(
        Note(
            "attempt.refused",
            task.index,
            attempt.generation,
            message=refusal.message,
            data={
                "code": refusal.code,
                "kind": refusal.kind.value,
                "until": refusal.until,
                "offer": attempt.offer.name,
            },
        )
    )
    if attempt is not task.replacement:  # who has a place is not searching
        task = replace(task, refused_in_a_row=task.refused_in_a_row + 1)
    if not event.may_exist:
        return job.with_task(task.with_attempt(replace(attempt, state=_GONE)))
    # The attempt ends as one with machines does, by a termination that looks for them.
    unknown = replace(attempt, state=AttemptState.STOPPED)
    if attempt is task.current and task.state is TaskState.PLACING:
        task = replace(task, state=TaskState.WAITING, wake_at=now)
    return job.with_task(task.with_attempt(unknown))


def _launch_withdrawn(job: JobView, event: events.LaunchWithdrawn, out: list[Action]) -> JobView:
    task = job.tasks[event.task]
    attempt = task.attempt(event.generation)
    if attempt is None or attempt.booted_at is not None:
        return job
    out.append(Note("attempt.withdrawn", task.index, attempt.generation, message="given up before it was asked for"))
    return job.with_task(task.with_attempt(replace(attempt, state=AttemptState.GONE)))


def _saved(job: JobView, event: events.Saved, now: float, out: list[Action]) -> JobView:
    task = job.tasks[event.task]
    ran = [a for a in task.attempts if a.running_at is not None]
    if task.status.is_terminal or not ran or ran[-1].generation != event.generation:
        return job  # of a run before the last, what it left has been counted; what has ended needs no more work
    if task.saved_s is None:
        # It does report, so runs that ended without a report kept nothing, whatever was assumed of them.
        task = replace(task, resumed_s=0.0)
    saved_s = task.resumed_s + max(0.0, min(event.at, now) - (ran[-1].running_at or now))
    knew = task.work_s is not None
    task = estimated(replace(task, saved_s=max(saved_s, task.saved_s or 0.0)), event, saved_s)
    if not knew and task.work_s is not None:
        message = f"by its steps, it will run for {task.work_s / 3600:.1f} h in all; nobody had said how long"
        out.append(Note("task.work", task.index, message=message, data={"work_s": round(task.work_s)}))
        task = replace(task, wake_at=now)  # the policy has more to go by than when it last looked
    return job.with_task(task)


def _node_event(
    job: JobView, event: events.NodeReported | events.NodeSilent | events.NoticeGiven, now: float, out: list[Action]
) -> JobView:
    task = job.tasks[event.task]
    attempt = task.attempt(event.generation)
    if attempt is None or not attempt.is_live or event.rank >= len(attempt.nodes):
        return job
    node = attempt.nodes[event.rank]
    if node.gone is not None:
        return job
    match event:
        case events.NodeReported():
            node = _reported(node, event)
        case events.NodeSilent():
            if node.connected or (node.silent_since is None and node.phase is not NodePhase.UNHEARD):
                node = replace(node, connected=False, silent_since=now)
        case events.NoticeGiven():
            if node.notice_deadline is None:
                message = f"the machine will be taken in {max(0.0, event.deadline - now):.0f} s"
                data: dict[str, object] = {"deadline": event.deadline}
                out.append(
                    Note(
                        "node.notice",
                        task.index,
                        attempt.generation,
                        node.rank,
                        Reason.PREEMPTION_NOTICE,
                        message,
                        data,
                    )
                )
            node = replace(node, notice_deadline=event.deadline)
    return job.with_task(task.with_attempt(attempt.with_node(node)))


def _reported(node: NodeView, event: events.NodeReported) -> NodeView:
    node = replace(node, connected=True, silent_since=None, ip=event.ip or node.ip)
    if _PHASE_ORDER[event.phase] < _PHASE_ORDER[node.phase]:
        return node  # an older report, overtaken on the way
    return replace(
        node,
        phase=event.phase,
        exit_code=event.exit_code,
        failed_stage=event.failed_stage,
        interrupted=event.interrupted,
        mount_lost=node.mount_lost or event.mount_lost,
        message=event.message,
    )


def _cloud_said(
    job: JobView, event: events.MachinesSeen | events.AttemptGone, now: float, out: list[Action]
) -> JobView:
    task = job.tasks[event.task]
    attempt = task.attempt(event.generation)
    if attempt is None or not attempt.is_live:
        return job
    if isinstance(event, events.AttemptGone):
        cause = attempt.reason or Reason.MACHINE_STOPPED
        nodes = tuple(replace(n, gone=n.gone or cause, connected=False) for n in attempt.nodes)
        attempt = replace(attempt, nodes=nodes)
        # One that nobody asked to end still has to be seen as a loss; `settle` closes it afterwards.
        if attempt.terminating:
            attempt = replace(attempt, state=_GONE)
            out.append(Note("attempt.gone", task.index, attempt.generation))
        return job.with_task(task.with_attempt(attempt))
    nodes = tuple(_with_fate(n, event.fates, out, task, attempt) for n in attempt.nodes)
    return job.with_task(task.with_attempt(replace(attempt, nodes=nodes, checked_at=now)))


def _with_fate(
    node: NodeView, fates: dict[int, Reason | None], out: list[Action], task: TaskView, attempt: AttemptView
) -> NodeView:
    fate = fates.get(node.rank)
    if fate is None or node.gone is not None:
        return node
    out.append(Note("node.gone", task.index, attempt.generation, node.rank, fate))
    return replace(node, gone=fate, connected=False, silent_since=None)
