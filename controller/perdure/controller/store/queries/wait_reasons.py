"""Why a task waits, in one sentence. Pure: from what the API returns of the job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from perdure.recovery.reasons import MEANINGS, Reason
from perdure.recovery.statuses import TERMINAL, AttemptState, NodePhase, Status

_ENDED = (AttemptState.STOPPED, AttemptState.GONE)
Row = Mapping[str, Any]


def sentence(
    tasks: Sequence[Row], attempts: Sequence[Row], timeline: Sequence[Row], *, index: int, blocked: str | None = None
) -> str:
    """What the task with this `index` waits for: "" if it runs or has ended.

    `tasks`, `attempts`, `timeline`: of its job, as the API returns them. `blocked`: what holds its launch back.
    """
    task = tasks[index]
    status = task["status"]
    if status == Status.RUNNING or status in TERMINAL:
        return ""
    earlier = next((one for one in tasks[:index] if one["status"] not in TERMINAL), None)
    if earlier is not None:
        return f"it follows task {earlier['task_index']} ({earlier['task_name'] or '-'}), which is {earlier['status']}"
    if status == Status.CANCELLING:
        return "it was cancelled, and may save its work before its machines end"
    if blocked is not None:
        return blocked
    own = [one for one in attempts if one["task_index"] == index]
    live = own[-1] if own and own[-1]["state"] not in _ENDED else None
    what = _of_attempt(live) if live is not None else _of_next_attempt(task, timeline)
    return f"{_loss(own)}{what}" if status == Status.RECOVERING else what


def since(task: Row, attempts: Sequence[Row]) -> str:
    """Since when it waits, as ISO 8601 in UTC: its submission, the request of its machines, or their loss."""
    own = [one for one in attempts if one["task_index"] == task["task_index"]]
    moments = [task["submitted_at"], *(one[name] for one in own for name in ("requested_at", "stopped_at", "gone_at"))]
    return str(max(moment for moment in moments if moment is not None))


def _of_attempt(attempt: Row) -> str:
    """What an attempt that has not ended waits for."""
    nodes, place = attempt["nodes"], f"{attempt['cloud']}/{attempt['zone']}"
    machines = f"{len(nodes)} machine{'' if len(nodes) == 1 else 's'}"
    match attempt["state"]:
        case AttemptState.REQUESTED:
            return f"{place} has been asked for {machines} ({attempt['instance_type']})"
        case AttemptState.BOOTING:
            missing = [node["rank"] for node in nodes if not node["connected"]]
            return f"{machines} in {place} boot{'s' if len(nodes) == 1 else ''}, and {_ranks(missing)} must connect"
        case AttemptState.SETTING_UP:
            return _of_setup(nodes, place)
        case AttemptState.DRAINING:
            return f"its machines in {place} save their work before they are left"
    return f"its machines in {place} are ready, and an earlier attempt must be known to have stopped"


def _of_setup(nodes: Sequence[Row], place: str) -> str:
    phases = {
        NodePhase.SETUP: "`setup` runs on {} in {}",
        NodePhase.MOUNTING: "files and buckets are brought to {} in {}",
        NodePhase.BOOTED: "the addresses of its peers are sent to {} in {}",
    }
    for phase, text in phases.items():
        if ranks := [node["rank"] for node in nodes if node["phase"] == phase]:
            return text.format(_ranks(ranks), place)
    return f"its machines in {place} report that they are ready"


def _ranks(ranks: Sequence[int]) -> str:
    names = ", ".join(map(str, ranks)) or "none"
    return f"node {names}" if len(ranks) == 1 else f"nodes {names}"


def _of_next_attempt(task: Row, timeline: Sequence[Row]) -> str:
    """Why there is no attempt now."""
    if task["reason"] != Reason.BACKING_OFF:
        return task["message"] or "the controller has not chosen a place for it yet"
    entries = [one for one in timeline if one["kind"] == "task.waiting" and one["task_index"] == task["task_index"]]
    why = entries[-1]["data"].get("why") if entries else None
    return f"{'; '.join(map(str, why))}: {task['message']}" if why else str(task["message"])


def _loss(attempts: Sequence[Row]) -> str:
    """Why it needs other machines, as the beginning of a sentence."""
    lost = next((one for one in reversed(attempts) if one["state"] in _ENDED and one["reason"]), None)
    if lost is None:
        return ""
    known = lost["reason"] in Reason.__members__
    text = MEANINGS[Reason(lost["reason"])].text if known and Reason(lost["reason"]) in MEANINGS else lost["reason"]
    return f"attempt {lost['generation']} ended ({text}); "
