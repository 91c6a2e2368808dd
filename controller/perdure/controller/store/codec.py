"""Decision values to columns and back: plain JSON values, enums by name, offers and needs as mappings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from functools import lru_cache
from typing import Any, TypeVar

from perdure.recovery.history import Sighting
from perdure.recovery.job import AttemptView, NodeView, Recovery, TaskView
from perdure.recovery.market import FaultKind, Market, Offer, OfferKey, Refusal
from perdure.recovery.needs import Amount, Need
from perdure.recovery.reasons import Reason
from perdure.recovery.statuses import AttemptState, NodePhase, TaskState
from perdure.recovery.values import replace

Value = TypeVar("Value")

_TASK_ONLY = {"index", "needs", "recovery", "attempts", "num_nodes"}
TASK_COLUMNS = tuple(f.name for f in fields(TaskView) if f.name not in _TASK_ONLY)
ATTEMPT_COLUMNS = tuple(f.name for f in fields(AttemptView) if f.name not in ("generation", "nodes"))
NODE_COLUMNS = tuple(f.name for f in fields(NodeView) if f.name != "rank")


def offer_json(offer: Offer) -> dict[str, Any]:
    return asdict(offer)


def offer(data: Mapping[str, Any]) -> Offer:
    accelerators = data["accelerators"]
    return Offer(
        **{
            **data,
            "market": Market(data["market"]),
            "accelerators": (accelerators[0], accelerators[1]) if accelerators else None,
        }
    )


def need_json(need: Need) -> dict[str, Any]:
    return asdict(need)


def need(data: Mapping[str, Any]) -> Need:
    def amount(value: Mapping[str, Any] | None) -> Amount | None:
        return Amount(**value) if value else None

    accelerators = data["accelerators"]
    return Need(
        **{
            **data,
            "cpus": amount(data["cpus"]),
            "memory_gib": amount(data["memory_gib"]),
            "accelerators": (accelerators[0], accelerators[1]) if accelerators else None,
        }
    )


def recovery_json(recovery: Recovery) -> dict[str, Any]:
    return {**asdict(recovery), "recover_on_exit_codes": sorted(recovery.recover_on_exit_codes)}


def recovery(data: Mapping[str, Any]) -> Recovery:
    return Recovery(**{**data, "recover_on_exit_codes": frozenset(data["recover_on_exit_codes"])})


def _column(value: object) -> object:
    if isinstance(value, Offer):
        return offer_json(value)
    if isinstance(value, TaskState | AttemptState | NodePhase | Reason):
        return value.value
    return value


def task_columns(task: TaskView) -> dict[str, object]:
    """The columns of `task` that change, and the status that users filter by."""
    return {name: _column(getattr(task, name)) for name in TASK_COLUMNS} | {"status": task.status.value}


def attempt_columns(attempt: AttemptView) -> dict[str, object]:
    return {name: _column(getattr(attempt, name)) for name in ATTEMPT_COLUMNS}


def node_columns(node: NodeView) -> dict[str, object]:
    return {name: _column(getattr(node, name)) for name in NODE_COLUMNS}


def changed_task_columns(old: TaskView, new: TaskView) -> dict[str, object]:
    """Those of `task_columns` that differ."""
    changed = _changed(TASK_COLUMNS, old, new)
    return changed if old.status == new.status else changed | {"status": new.status.value}


def changed_attempt_columns(old: AttemptView, new: AttemptView) -> dict[str, object]:
    """Those of `attempt_columns` that differ."""
    return _changed(ATTEMPT_COLUMNS, old, new)


def changed_node_columns(old: NodeView, new: NodeView) -> dict[str, object]:
    """Those of `node_columns` that differ."""
    return _changed(NODE_COLUMNS, old, new)


def _changed(names: Sequence[str], old: object, new: object) -> dict[str, object]:
    return {name: _column(now) for name in names if (now := getattr(new, name)) != getattr(old, name)}


@lru_cache(maxsize=4096)
def _shared(value: Value) -> Value:
    """The one that was read first of values that are equal: ten thousand jobs ask for the same, and hold it once."""
    return value


def shared(task: TaskView) -> TaskView:
    """`task` with what it has in common with others."""
    return replace(task, needs=_shared(task.needs), recovery=_shared(task.recovery))


def _reason(value: str | None) -> Reason | None:
    return Reason(value) if value else None


def node(row: Mapping[str, Any]) -> NodeView:
    values = {name: row[name] for name in NODE_COLUMNS}
    return NodeView(**{**values, "rank": row["rank"], "phase": NodePhase(row["phase"]), "gone": _reason(row["gone"])})


def attempt(row: Mapping[str, Any], nodes: tuple[NodeView, ...]) -> AttemptView:
    values = {name: row[name] for name in ATTEMPT_COLUMNS}
    return AttemptView(
        **{
            **values,
            "generation": row["generation"],
            "nodes": nodes,
            "state": AttemptState(row["state"]),
            "offer": _shared(offer(row["offer"])),
            "reason": _reason(row["reason"]),
        }
    )


def task(row: Mapping[str, Any], attempts: tuple[AttemptView, ...]) -> TaskView:
    values = {name: row[name] for name in TASK_COLUMNS}
    return TaskView(
        **{
            **values,
            "index": row["index"],
            "num_nodes": row["num_nodes"],
            "needs": _shared(tuple(need(n) for n in row["needs"])),
            "recovery": _shared(recovery(row["recovery"])),
            "attempts": attempts,
            "state": TaskState(row["state"]),
            "reason": Reason(row["reason"]),
            "outcome": _reason(row["outcome"]),
            "last_offer": offer(row["last_offer"]) if row["last_offer"] else None,
            "preempted_from": offer(row["preempted_from"]) if row["preempted_from"] else None,
        }
    )


def sighting_columns(sighting: Sighting) -> dict[str, object]:
    values = asdict(sighting)
    return {**values.pop("key")._asdict(), **values, "market": sighting.key.market.value}


def sighting(row: Mapping[str, Any]) -> Sighting:
    key = OfferKey(**{**{name: row[name] for name in OfferKey._fields}, "market": Market(row["market"])})
    return Sighting(key, row["at"], row["available"], row["held_since"], row["started_s"])


def refusal_columns(refusal: Refusal) -> dict[str, object]:
    return {**asdict(refusal), "kind": refusal.kind.value, "market": refusal.market.value if refusal.market else None}


def refusal(row: Mapping[str, Any]) -> Refusal:
    values = {f.name: row[f.name] for f in fields(Refusal)}
    return Refusal(
        **{**values, "kind": FaultKind(row["kind"]), "market": Market(row["market"]) if row["market"] else None}
    )
