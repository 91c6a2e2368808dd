"""What a launch would try, in order, and what it would cost. Changes nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from perdure.controller.store import codec
from perdure.controller.store.records.jobs import NewTask
from perdure.controller.submit.compiler import Compiler
from perdure.controller.submit.errors import RequestRejected
from perdure.controller.submit.forecast import BUDGET_S, forecast
from perdure.controller.submit.job_count import job_count
from perdure.recovery.job import TaskView
from perdure.recovery.market.fit import fitting_offers
from perdure.recovery.market.unavailable import FaultKind, UnavailableOffer
from perdure.recovery.market.view import MarketView, Offer
from perdure.recovery.policies.decisions import Place, Unsatisfiable
from perdure.recovery.policies.registry import get_policy

_MAX_OFFERS_SHOWN = 20
_NO_OFFER_FITS = "no offer fits"
_ENABLED_FIX = "see `perdure check` for what is enabled"
_LOCAL = "local"


def plan(
    compiler: Compiler,
    name: str | None,
    configs: Sequence[Mapping[str, Any]],
    now: float,
    *,
    num_jobs: int = 1,
    with_forecast: bool = False,
) -> dict[str, Any]:
    """The `api_types.Plan` of a job. Raises RequestRejected if no offer could ever run a task, or if a launch would
    refuse its sweep.

    `with_forecast`: include the expected cost and time of each task, as if it began now.
    """
    compiled = compiler.compile(name, configs, now)
    count = job_count(compiled, num_jobs)
    view = compiler.market.view()
    budget_s = BUDGET_S / len(compiled.tasks)
    return {
        "tasks": [
            _plan(task, view, now)
            | {"forecast": forecast(task.view, view, now, budget_s=budget_s) if with_forecast else None}
            for task in compiled.tasks
        ],
        "warnings": list(compiled.warnings),
        "num_jobs": count,
    }


def _plan(task: NewTask, view: MarketView, now: float) -> dict[str, Any]:
    offers = _offers_in_order(task.view, view, now)
    saving = None
    if offers and offers[0].on_demand_price_per_hour > 0:
        saving = 1 - offers[0].price_per_hour / offers[0].on_demand_price_per_hour
    fits = [offer for _, offer in fitting_offers(task.view.requirements, view.offers)]
    return {
        "name": task.name,
        "num_nodes": task.view.num_nodes,
        "offers": [_offer_json(offer) for offer in offers],
        "total_offers": len(fits),
        "saving": saving,
        "unavailable": _unavailable_offers(fits, view, now),
        "strategy": task.view.recovery.strategy,
        "strategy_reason": task.spec["strategy_reason"],
    }


def _offers_in_order(task: TaskView, view: MarketView, now: float) -> list[Offer]:
    """The offers that the task's policy would try, if each in turn were unavailable.

    Raises RequestRejected if none fits.
    """
    choose = get_policy(task.recovery.strategy).choose
    unavailable = list(view.unavailable)
    offers: list[Offer] = []
    while len(offers) < _MAX_OFFERS_SHOWN:
        match choose(task, replace(view, unavailable=tuple(unavailable)), now):
            case Place(offer):
                offers.append(offer)
                key = offer.key
                unavailable.append(
                    UnavailableOffer(
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
            case Unsatisfiable(why) if not offers:
                raise _no_offer_fits(task, view, why)
            case _:
                break
    return offers


def _no_offer_fits(task: TaskView, view: MarketView, why: Sequence[str]) -> RequestRejected:
    text = "; ".join(why)
    return RequestRejected(
        text if _NO_OFFER_FITS in text else f"{_NO_OFFER_FITS}: {text}",
        where="resources",
        fix=_simulation_fix(task, view) or _ENABLED_FIX + _local_fix(task, view),
    )


def _simulation_fix(task: TaskView, view: MarketView) -> str | None:
    """How the local cloud offers the accelerators of a task that no other cloud could run; None if that is no cure."""
    clouds = {offer.cloud for offer in view.offers}
    for requirement in task.requirements:
        if requirement.accelerators and (requirement.cloud == _LOCAL or clouds == {_LOCAL}):
            name, count = requirement.accelerators
            if any(_has(offer, name, count) for offer in view.offers):
                continue  # it simulates them: something else does not fit
            setting = f"local: {{accelerators: {{{name}: {math.ceil(count)}}}}}"
            there = "" if requirement.cloud in (None, _LOCAL) else "; then launch it with --infra local"
            return (
                f"to have the local cloud simulate them, set `{setting}` in config.yaml, "
                f"then run: perdure controller stop{there}"
            )
    return None


def _has(offer: Offer, accelerator: str, count: float) -> bool:
    name, available = offer.accelerators or ("", 0.0)
    return name.casefold() == accelerator.casefold() and available >= count


def _local_fix(task: TaskView, view: MarketView) -> str:
    """The end of a fix, for a task that names only clouds that sell nothing: this computer could run it."""
    clouds = {offer.cloud for offer in view.offers}
    named = {requirement.cloud.casefold() if requirement.cloud else None for requirement in task.requirements}
    return (
        "; to try the task on this computer, add: --infra local"
        if _LOCAL in clouds and not clouds & named and None not in named
        else ""
    )


def _unavailable_offers(fits: Sequence[Offer], view: MarketView, now: float) -> list[str]:
    """A line for each offer that fits but is avoided now, with the newest reason."""
    lines = []
    for offer in fits:
        current = [r for r in view.unavailable if r.until > now and r.covers(offer)]
        if current:
            newest = max(current, key=lambda r: r.at)
            lines.append(f"{offer.key}: {newest.message or newest.code}")
    return lines[:_MAX_OFFERS_SHOWN]


def _offer_json(offer: Offer) -> dict[str, Any]:
    data = codec.encode_offer(offer)
    if offer.accelerators:
        data["accelerators"] = f"{offer.accelerators[0]}:{offer.accelerators[1]:g}"
    return data
