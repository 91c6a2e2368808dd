"""What a launch would try, in order, and what it would cost. Changes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from perdure.controller.compiling import Compiler
from perdure.controller.forecasting import BUDGET_S, forecast
from perdure.controller.refusing import Refused
from perdure.controller.store import codec
from perdure.controller.store.jobs import NewTask
from perdure.recovery.job import TaskView
from perdure.recovery.market import FaultKind, MarketView, Offer, Refusal
from perdure.recovery.matching import fitting
from perdure.recovery.policies.choice import Never, Place
from perdure.recovery.policies.registry import policy

_MOST_OFFERS_SHOWN = 20


def plan(
    compiler: Compiler, name: str | None, configs: Sequence[Mapping[str, Any]], now: float, *, foresees: bool = False
) -> dict[str, Any]:
    """What would be tried, per task, in order. Raises Refused when nothing could ever run a task.

    `foresees`: with cost and time, as if each task began now.
    """
    compiled = compiler.compile(name, configs, now)
    view = compiler.market.view()
    budget_s = BUDGET_S / len(compiled.tasks)
    return {
        "tasks": [
            _plan(task, view, now)
            | {"forecast": forecast(task.view, view, now, budget_s=budget_s) if foresees else None}
            for task in compiled.tasks
        ],
        "warnings": list(compiled.warnings),
    }


def _plan(task: NewTask, view: MarketView, now: float) -> dict[str, Any]:
    offers = _in_order(task.view, view, now)
    saving = None
    if offers and offers[0].on_demand_price_per_hour > 0:
        saving = 1 - offers[0].price_per_hour / offers[0].on_demand_price_per_hour
    fits = [offer for _, offer in fitting(task.view.needs, view.offers)]
    return {
        "name": task.name,
        "num_nodes": task.view.num_nodes,
        "offers": [_offer_json(offer) for offer in offers],
        "total_offers": len(fits),
        "saving": saving,
        "refused": _refused_now(fits, view, now),
        "strategy": task.view.recovery.strategy,
        "why_strategy": task.spec["why_strategy"],
    }


def _in_order(task: TaskView, view: MarketView, now: float) -> list[Offer]:
    """The offers that the task's policy would try, if each in turn said no. Raises Refused when none ever fits."""
    choose = policy(task.recovery.strategy).choose
    refusals = list(view.refusals)
    found: list[Offer] = []
    while len(found) < _MOST_OFFERS_SHOWN:
        match choose(task, replace(view, refusals=tuple(refusals)), now):
            case Place(offer):
                found.append(offer)
                key = offer.key
                refusals.append(
                    Refusal(
                        cloud=key.cloud,
                        region=key.region,
                        zone=key.zone,
                        instance_type=key.instance_type,
                        market=key.market,
                        kind=FaultKind.AVOID_ZONE,
                        at=now,
                        until=float("inf"),
                    )
                )
            case Never(why) if not found:
                raise Refused(
                    "no offer fits: " + "; ".join(why),
                    where="resources",
                    fix="see `perdure check` for what is enabled",
                )
            case _:
                break
    return found


def _refused_now(fits: Sequence[Offer], view: MarketView, now: float) -> list[str]:
    """A line for each offer that fits and is avoided now, with what was said last."""
    lines = []
    for offer in fits:
        standing = [r for r in view.refusals if r.until > now and r.covers(offer)]
        if standing:
            newest = max(standing, key=lambda r: r.at)
            lines.append(f"{offer.key}: {newest.message or newest.code}")
    return lines[:_MOST_OFFERS_SHOWN]


def _offer_json(offer: Offer) -> dict[str, Any]:
    data = codec.offer_json(offer)
    if offer.accelerators:
        data["accelerators"] = f"{offer.accelerators[0]}:{offer.accelerators[1]:g}"
    return data
