"""Converts decision values to columns and back: plain JSON values, enums by name, offers as mappings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from functools import lru_cache
from typing import Any, TypeVar

from perdure.recovery.frozen import replace
from perdure.recovery.job import AttemptView, NodeView, Recovery, TaskView
from perdure.recovery.market.history import OfferObservation
from perdure.recovery.market.requirements import Amount, MachineRequirement
from perdure.recovery.market.unavailable import FaultKind, UnavailableOffer
from perdure.recovery.market.view import Market, Offer, OfferKey
from perdure.recovery.reasons import Reason
from perdure.recovery.statuses import AttemptState, NodePhase, TaskState

Value = TypeVar("Value")

_IN_MEMORY = {"gpus_at", "saved_step", "saved_in", "loaded", "undone_s"}
_TASK_ONLY = {"index", "requirements", "recovery", "attempts", "num_nodes", *_IN_MEMORY}
TASK_COLUMNS = tuple(f.name for f in fields(TaskView) if f.name not in _TASK_ONLY)
VIEW_COLUMNS = ("index", "num_nodes", "requirements", "recovery", *TASK_COLUMNS)
"""The columns of a task that `decode_task` reads."""
ATTEMPT_COLUMNS = tuple(f.name for f in fields(AttemptView) if f.name not in ("generation", "nodes"))
NODE_COLUMNS = tuple(f.name for f in fields(NodeView) if f.name != "rank")
_OFFER_FIELDS = tuple(f.name for f in fields(Offer))
_UNSET = asdict(Recovery())
_CHOICES = ("strategy", "patience")  # fields whose default is a choice, which another version may make otherwise
_ONE_JOB = 0  # any id of a job: what is decoded with it counts for one job
_ENUMS = (TaskState, AttemptState, NodePhase, Reason)


def encode_offer(offer: Offer) -> dict[str, Any]:
    return {name: getattr(offer, name) for name in _OFFER_FIELDS}  # all are plain values; `asdict` would copy each


def decode_offer(data: Mapping[str, Any]) -> Offer:
    accelerators = data["accelerators"]
    return Offer(
        **{
            **data,
            "market": Market(data["market"]),
            "accelerators": (accelerators[0], accelerators[1]) if accelerators else None,
        }
    )


def encode_requirement(requirement: MachineRequirement) -> dict[str, Any]:
    return asdict(requirement)


def decode_requirement(data: Mapping[str, Any]) -> MachineRequirement:
    def amount(value: Mapping[str, Any] | None) -> Amount | None:
        return Amount(**value) if value else None

    accelerators = data["accelerators"]
    return MachineRequirement(
        **{
            **data,
            "cpus": amount(data["cpus"]),
            "memory_gib": amount(data["memory_gib"]),
            "accelerators": (accelerators[0], accelerators[1]) if accelerators else None,
        }
    )


def encode_recovery(recovery: Recovery) -> dict[str, Any]:
    """Plain JSON. A field that is unset is left out: a controller of the version before may not know it."""
    values = {name: getattr(recovery, name) for name in _UNSET}
    data = {name: value for name, value in values.items() if name in _CHOICES or value != _UNSET[name]}
    if recovery.avoided:
        data["avoided"] = [unavailable_offer_columns(one) for one in recovery.avoided]
    return {**data, "recover_on_exit_codes": sorted(recovery.recover_on_exit_codes)}


def decode_recovery(data: Mapping[str, Any]) -> Recovery:
    codes, zones = frozenset(data["recover_on_exit_codes"]), tuple(data.get("taken_zones", ()))
    # Only the node of another replica may have reported them: they count for this job alone.
    avoided = tuple(decode_unavailable_offer({**one, "job_id": _ONE_JOB}) for one in data.get("avoided", ()))
    return Recovery(**{**data, "recover_on_exit_codes": codes, "taken_zones": zones, "avoided": avoided})


def _column(value: object) -> object:
    if isinstance(value, Offer):
        return encode_offer(value)
    if isinstance(value, _ENUMS):
        return value.value
    return value


def task_columns(task: TaskView) -> dict[str, object]:
    """The columns of a task that change while it runs, and the status that users filter by."""
    return {name: _column(getattr(task, name)) for name in TASK_COLUMNS} | {"status": task.status.value}


def attempt_columns(attempt: AttemptView) -> dict[str, object]:
    return {name: _column(getattr(attempt, name)) for name in ATTEMPT_COLUMNS}


def node_columns(node: NodeView) -> dict[str, object]:
    return {name: _column(getattr(node, name)) for name in NODE_COLUMNS}


def changed_task_columns(old: TaskView, new: TaskView) -> dict[str, object]:
    """The `task_columns` that differ between `old` and `new`."""
    changed = _changed(TASK_COLUMNS, old, new)
    return changed if old.status == new.status else changed | {"status": new.status.value}


def changed_attempt_columns(old: AttemptView, new: AttemptView) -> dict[str, object]:
    """The `attempt_columns` that differ between `old` and `new`."""
    return _changed(ATTEMPT_COLUMNS, old, new)


def changed_node_columns(old: NodeView, new: NodeView) -> dict[str, object]:
    """The `node_columns` that differ between `old` and `new`."""
    return _changed(NODE_COLUMNS, old, new)


def _changed(names: Sequence[str], old: object, new: object) -> dict[str, object]:
    return {name: _column(now) for name in names if (now := getattr(new, name)) != getattr(old, name)}


@lru_cache(maxsize=4096)
def _intern(value: Value) -> Value:
    """The first of all equal values: ten thousand jobs with the same requirements hold them in memory once."""
    return value


def interned(task: TaskView) -> TaskView:
    """`task` with the instances of its requirements and recovery that equal tasks share."""
    return replace(task, requirements=_intern(task.requirements), recovery=_intern(task.recovery))


def _reason(value: str | None) -> Reason | None:
    return Reason(value) if value else None


def decode_node(row: Mapping[str, Any]) -> NodeView:
    values = {name: row[name] for name in NODE_COLUMNS}
    return NodeView(
        **{**values, "rank": row["rank"], "phase": NodePhase(row["phase"]), "gone_reason": _reason(row["gone_reason"])}
    )


def decode_attempt(row: Mapping[str, Any], nodes: tuple[NodeView, ...]) -> AttemptView:
    values = {name: row[name] for name in ATTEMPT_COLUMNS}
    return AttemptView(
        **{
            **values,
            "generation": row["generation"],
            "nodes": nodes,
            "state": AttemptState(row["state"]),
            "offer": _intern(decode_offer(row["offer"])),
            "reason": _reason(row["reason"]),
        }
    )


def decode_task(row: Mapping[str, Any], attempts: tuple[AttemptView, ...]) -> TaskView:
    values = {name: row[name] for name in TASK_COLUMNS}
    return TaskView(
        **{
            **values,
            "index": row["index"],
            "num_nodes": row["num_nodes"],
            "requirements": _intern(tuple(decode_requirement(r) for r in row["requirements"])),
            "recovery": _intern(decode_recovery(row["recovery"])),
            "attempts": attempts,
            "state": TaskState(row["state"]),
            "reason": Reason(row["reason"]),
            "outcome": _reason(row["outcome"]),
            "last_offer": decode_offer(row["last_offer"]) if row["last_offer"] else None,
            "preempted_from": decode_offer(row["preempted_from"]) if row["preempted_from"] else None,
        }
    )


def observation_columns(observation: OfferObservation) -> dict[str, object]:
    values = {f.name: getattr(observation, f.name) for f in fields(observation) if f.name != "key"}
    return {**observation.key._asdict(), **values, "market": observation.key.market.value}


OBSERVATION_COLUMNS = (*OfferKey._fields, "at", "available", "held_since", "started_s")


def decode_observations(rows: Iterable[Sequence[Any]]) -> list[OfferObservation]:
    """`rows` have the OBSERVATION_COLUMNS in this order. The observations of an offer share its key, because a daemon
    that starts reads those of three weeks."""
    keys: dict[tuple[str, ...], OfferKey] = {}
    observations = []
    for cloud, region, zone, instance_type, market, at, available, held_since, started_s in rows:
        words = (cloud, region, zone, instance_type, market)
        key = keys.get(words)
        if key is None:
            keys[words] = key = OfferKey(cloud, region, zone, instance_type, Market(market))
        observations.append(OfferObservation(key, at, available, held_since, started_s))
    return observations


def unavailable_offer_columns(offer: UnavailableOffer) -> dict[str, object]:
    """The columns of an unavailable offer. `unconfirmed` follows from `job_id`, which the caller adds."""
    columns = {**asdict(offer), "kind": offer.kind.value, "market": offer.market.value if offer.market else None}
    del columns["unconfirmed"]
    return columns


def decode_unavailable_offer(row: Mapping[str, Any]) -> UnavailableOffer:
    values = {f.name: row[f.name] for f in fields(UnavailableOffer) if f.name != "unconfirmed"}
    kind, market = FaultKind(row["kind"]), Market(row["market"]) if row["market"] else None
    unconfirmed = row["job_id"] is not None and kind is not FaultKind.GIVE_UP
    return UnavailableOffer(**{**values, "kind": kind, "market": market, "unconfirmed": unconfirmed})
