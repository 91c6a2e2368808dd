"""Routes about the controller itself and what it can buy: health, status, stop, clouds, GPUs."""

from __future__ import annotations

import os
from dataclasses import asdict
from importlib.metadata import version
from typing import Annotated, Any

from fastapi import APIRouter, Query

from perdure.controller.api.auth import Parts, User
from perdure.controller.api.schemas import answer, refusals
from perdure.controller.clouds.base import Cloud
from perdure.controller.clouds.checks import Checkable
from perdure.controller.clouds.pricelist import Listing
from perdure.controller.gpus import date, gpu_rows
from perdure.controller.probing import Prober
from perdure.controller.refusing import Refused
from perdure.controller.store import queries
from perdure.recovery.market import Offer
from perdure.sdk import records

router = APIRouter(tags=["controller"])

_REFUSALS = refusals(401, 503)

ASK_S = 10.0
"""Whoever wants to know what a cloud sells waits so long for its first answer."""


@router.get("/healthz", responses=refusals(503))
async def healthz(daemon: Parts) -> dict[str, str]:
    """Whether calls should come here: 503 while it has lost its lease, and with it perhaps its database. Needs no
    token, and tells nothing more."""
    if not daemon.has_lease():
        raise Refused("this controller has no lease now", fix="call another, or wait: it goes on by itself", status=503)
    return {"status": "ok"}


@router.get("/api/v1/controller", responses=answer(records.ControllerInfo) | _REFUSALS)
def controller(daemon: User) -> dict[str, Any]:
    """What this controller is, and how many tasks it has by status."""
    with daemon.database.connect() as conn:
        counts = daemon.counts.of(conn, daemon.clock.now())
    return {
        "version": version("perdure"),
        "id": daemon.controller_id,
        "pid": os.getpid(),
        "started_at": queries.iso(daemon.started_at),
        "home": str(daemon.settings.home),
        "endpoint": daemon.endpoint,
        "jobs": counts,
        "probes": _probes(daemon.prober),
    }


def _probes(prober: Prober | None) -> dict[str, Any] | None:
    if prober is None:
        return None
    spent = prober.spent()
    return {"count": spent.count, "cost_usd": spent.cost, "budget_usd": prober.probing.budget_per_day}


@router.post("/api/v1/controller/stop", responses=_REFUSALS)
def stop(daemon: User) -> dict[str, str]:
    """End the daemon. Running jobs go on."""
    daemon.request_stop()
    return {"status": "stopping"}


@router.get("/api/v1/clouds", responses=answer(list[records.Cloud]) | _REFUSALS)
def clouds(daemon: User) -> list[dict[str, Any]]:
    """Every cloud, and whether it can be used."""
    found = []
    for name, cloud in sorted(daemon.clouds.items()):
        why, regions = cloud.unusable(), set[str]()
        if why is None:
            _have_asked(cloud)
            try:
                regions = {offer.region for offer in cloud.offers()}
            except Exception as error:  # noqa: BLE001 - nothing is known of what it sells, and this is why
                why = cloud.classify(error).message
        found.append(
            {
                "name": name,
                "usable": why is None,
                "why": why,
                "regions": sorted(regions),
                "notes": list(cloud.notes()),
            }
        )
    return found


def _have_asked(cloud: Cloud) -> None:
    """Give a cloud that has told nothing yet a moment to do so."""
    if isinstance(cloud, Listing) and not cloud.prices.fetched():
        cloud.prices.refresh(ASK_S)


@router.get("/api/v1/clouds/{name}/findings", responses=answer(list[records.Finding]) | refusals(401, 404, 503))
def findings(daemon: User, name: str) -> list[dict[str, Any]]:
    """What a look through a cloud's set-up finds: it asks the cloud, which takes seconds. Empty where there is nothing
    to look at."""
    if (cloud := daemon.clouds.get(name)) is None:
        raise Refused(f"there is no cloud {name!r}", fix=f"there are: {', '.join(sorted(daemon.clouds))}", status=404)
    if not isinstance(cloud, Checkable) or cloud.unusable() is not None:
        return []
    return [asdict(finding) for finding in cloud.check()]


@router.get("/api/v1/gpus", responses=answer(list[records.Gpu]) | _REFUSALS)
def gpus(
    daemon: User,
    *,
    name: Annotated[str, Query(max_length=200, description="of one accelerator")] = "",
    count: Annotated[float | None, Query(gt=0, description="that many on a machine")] = None,
    cloud: Annotated[str, Query(max_length=200)] = "",
    region: Annotated[str, Query(max_length=200)] = "",
) -> list[dict[str, Any]]:
    """What can be had with accelerators, where, and for how much an hour, in the clouds that can be used; and how old
    that is: `priced_at`, when the cloud told it, or `table_of`, when the table was typed that stands in until then."""
    offers: list[Offer] = []
    for one in daemon.clouds.values():
        if cloud in ("", one.name) and one.unusable() is None:
            _have_asked(one)
            try:
                offers += (offer for offer in one.offers() if region in ("", offer.region))
            except Exception as error:
                if not cloud:
                    continue  # the others have offers
                why = f"{cloud} does not say what it sells: {one.classify(error).message}"
                raise Refused(why, fix="see perdure check", status=503) from error
    rows = gpu_rows(offers, name=name, count=count)
    date(rows, daemon.clouds)
    return rows
