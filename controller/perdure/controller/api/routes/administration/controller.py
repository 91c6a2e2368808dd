"""Routes for the controller itself and what it can buy: health, status, stop, clouds, GPUs."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import asdict
from importlib.metadata import version
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query

from perdure.controller.api.access.audit_log import record
from perdure.controller.api.access.permissions import anybody
from perdure.controller.api.auth import Admin, Context, Operator, Reader
from perdure.controller.api.gpu_rows import annotate_price_age, gpu_rows
from perdure.controller.api.schemas import error_responses, json_response
from perdure.controller.clouds.base.account_checks import Checkable
from perdure.controller.clouds.base.launch_rehearsal import RehearsesLaunches
from perdure.controller.clouds.base.protocol import Cloud
from perdure.controller.clouds.pricing.price_list import HasPriceList
from perdure.controller.maintenance.backup_schedule import BackupSchedule
from perdure.controller.maintenance.offer_probes import Prober
from perdure.controller.store.engine.database import UNAVAILABLE
from perdure.controller.store.queries import job_listing
from perdure.controller.submit.errors import RequestRejected
from perdure.recovery.market.view import Offer
from perdure.sdk.connection import api_types

router = APIRouter(tags=["controller"])

_ERRORS = error_responses(401, 503)

CATALOG_WAIT_S = 10.0
"""How long a request waits for the first price list of a cloud."""


@router.get("/healthz", responses=error_responses(503), dependencies=[Depends(anybody)])
async def healthz(context: Context) -> dict[str, str]:
    """Whether this controller can serve calls and keeps up with its jobs. Needs no token.

    503 while it has lost its lease (or its database), or is more than a minute behind with a timer or an event.
    """
    if not context.has_lease():
        raise RequestRejected(
            "this controller has lost its lease", fix="call another controller, or wait until it recovers", status=503
        )
    if (problem := context.watchdog.problem()) is not None:
        raise RequestRejected(
            f"this controller does not keep up: {problem}",
            fix="see `perdure controller logs`; restart it if it does not recover: jobs go on",
            status=503,
        )
    return {"status": "ok"}


@router.get("/api/v1/controller", responses=json_response(api_types.ControllerInfo) | _ERRORS)
def controller(caller: Reader) -> dict[str, Any]:
    """The controller's version and address, and the number of tasks by status, of those that the caller may see."""
    context = caller.context
    with context.database.connect() as conn:
        counts = context.counts.by_status(conn, context.clock.now(), caller.sees)
    return {
        "version": version("perdure"),
        "id": context.controller_id,
        "pid": os.getpid(),
        "started_at": job_listing.iso(context.started_at),
        "home": str(context.settings.home),
        "endpoint": context.endpoint,
        "jobs": counts,
        "probes": _probes(context.prober),
        "overdue": context.watchdog.problem(),
        "rejected_frames": context.sessions.rejected_frames.total,
        "set_aside": context.count_set_aside(),
        "backup": _backups(context.backups),
        "unknown_machines": context.unknown_machines.listed(),
        "config_changed": context.settings.has_outdated_config,
    }


def _backups(schedule: BackupSchedule | None) -> dict[str, Any] | None:
    if schedule is None:
        return None
    status = schedule.status()
    return {**status, "last": job_listing.iso(status["last"])}


def _probes(prober: Prober | None) -> dict[str, Any] | None:
    if prober is None:
        return None
    spent = prober.spent()
    return {"count": spent.count, "cost_usd": spent.cost, "budget_usd": prober.config.budget_per_day}


@router.post("/api/v1/controller/stop", responses=_ERRORS)
def stop(caller: Admin) -> dict[str, str]:
    """End the daemon. Running jobs go on."""
    with suppress(*UNAVAILABLE):  # a controller whose database is away can still be stopped
        record(caller, "controller.stop")
    caller.context.request_stop()
    return {"status": "stopping"}


@router.get("/api/v1/clouds", responses=json_response(list[api_types.Cloud]) | _ERRORS)
def list_clouds(caller: Reader) -> list[dict[str, Any]]:
    """Every cloud, and whether it can be used."""
    context, clouds = caller.context, []
    for name, cloud in sorted(context.clouds.items()):
        reason, regions = context.compiler.market.unusable(cloud), set[str]()
        if reason is None:
            _ensure_fetched(cloud)
            try:
                regions = {offer.region for offer in cloud.offers()}
            except Exception as error:  # noqa: BLE001 - the error becomes the reason why the cloud is not usable
                reason = cloud.classify(error).message
        clouds.append(
            {
                "name": name,
                "usable": reason is None,
                "why": reason,
                "regions": sorted(regions),
                "notes": list(cloud.notes()),
            }
        )
    return clouds


def _ensure_fetched(cloud: Cloud) -> None:
    """Wait for the first price list of a cloud that has none yet."""
    if isinstance(cloud, HasPriceList) and not cloud.prices.fetched():
        cloud.prices.refresh(CATALOG_WAIT_S)


@router.get(
    "/api/v1/clouds/{name}/findings", responses=json_response(list[api_types.Finding]) | error_responses(401, 404, 503)
)
def findings(caller: Operator, name: str, *, deep: bool = False) -> list[dict[str, Any]]:
    """The results of checking a cloud account. That calls the cloud, which takes seconds. Empty if the cloud has no
    account to check, or cannot be used. `deep`: it also rehearses launches, which buys nothing."""
    clouds = caller.context.clouds
    if (cloud := clouds.get(name)) is None:
        raise RequestRejected(f"there is no cloud {name!r}", fix=f"clouds: {', '.join(sorted(clouds))}", status=404)
    if not isinstance(cloud, Checkable) or cloud.unusable() is not None:
        return []
    results = list(cloud.check())
    if deep and isinstance(cloud, RehearsesLaunches):
        _ensure_fetched(cloud)
        results += cloud.rehearse()
    return [asdict(finding) for finding in results]


@router.get("/api/v1/gpus", responses=json_response(list[api_types.Gpu]) | _ERRORS)
def gpus(
    caller: Reader,
    *,
    name: Annotated[str, Query(max_length=200, description="the name of one accelerator")] = "",
    count: Annotated[float | None, Query(gt=0, description="accelerators per machine")] = None,
    cloud: Annotated[str, Query(max_length=200)] = "",
    region: Annotated[str, Query(max_length=200)] = "",
) -> list[dict[str, Any]]:
    """Machines with accelerators in the clouds that can be used: where, and for how much per hour.

    `priced_at`: when the cloud published the price. `catalog_month`: the month of the built-in price table that is used
    until then.
    """
    context = caller.context
    offers: list[Offer] = []
    for candidate in context.clouds.values():
        if cloud in ("", candidate.name) and candidate.unusable() is None:
            _ensure_fetched(candidate)
            try:
                offers += (offer for offer in candidate.offers() if region in ("", offer.region))
            except Exception as error:
                if not cloud:
                    continue  # list the offers of the other clouds
                reason = f"the offers of {cloud} cannot be listed: {candidate.classify(error).message}"
                raise RequestRejected(reason, fix="see `perdure check`", status=503) from error
    rows = gpu_rows(offers, name=name, count=count)
    annotate_price_age(rows, context.clouds)
    return rows
