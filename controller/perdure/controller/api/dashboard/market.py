"""The route for the market: what each zone offers now, and which offers are avoided until when."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Query
from sqlalchemy import Connection, func, select

from perdure.controller.api.auth import Reader
from perdure.controller.api.dashboard import responses
from perdure.controller.api.schemas import error_responses, json_response
from perdure.controller.reconcile.market_state import Observations
from perdure.controller.store.queries.job_listing import iso
from perdure.recovery.market.offers import Market, Offer, OfferKey
from perdure.recovery.market.unavailable import UnavailableOffer
from perdure.recovery.market.view import MarketView

router = APIRouter(prefix="/api/v1", tags=["market"], responses=error_responses(400, 401, 503))

_MAX_ROWS = 500
_DAY_S = 86_400.0
_Words = Annotated[str, Query(max_length=200)]


@router.get("/market", responses=json_response(responses.MarketTable))
def market(
    caller: Reader, *, cloud: _Words = "", region: _Words = "", accelerator: _Words = "", instance_type: _Words = ""
) -> dict[str, Any]:
    """Offers by zone and instance type, the cheapest first: prices, whether the spot offer is avoided now and why, when
    it was last tried, and how many machines it lost within a day. At most 500 rows; `total` counts all that match."""
    context = caller.context
    now = context.clock.now()
    view = context.compiler.market.view()
    wanted = {"cloud": cloud, "region": region, "accelerator": accelerator, "instance_type": instance_type}
    rows = _rows([offer for offer in view.offers if _matches(offer, wanted)])
    shown = sorted(rows.values(), key=_price)[:_MAX_ROWS]
    with context.database.connect() as conn:
        losses = _losses(conn, now - _DAY_S)
    for row in shown:
        _annotate(row, view, losses, now)
    return {
        "now": iso(now),
        "offers": shown,
        "total": len(rows),
        "avoided": [_avoided(one) for one in _active(view.unavailable, now)],
        "disabled": view.disabled,
    }


def _matches(offer: Offer, wanted: dict[str, str]) -> bool:
    accelerator = offer.accelerators[0] if offer.accelerators else ""
    return (
        wanted["cloud"] in ("", offer.cloud)
        and offer.region.startswith(wanted["region"])
        and wanted["accelerator"].lower() in ("", accelerator.lower())
        and offer.instance_type.startswith(wanted["instance_type"])
    )


def _rows(offers: Sequence[Offer]) -> dict[tuple[str, str, str, str], dict[str, Any]]:
    """A row for each zone and instance type, with the prices of both markets."""
    rows: dict[tuple[str, str, str, str], dict[str, Any]] = {}
    for offer in offers:
        row = rows.setdefault(
            (offer.cloud, offer.region, offer.zone, offer.instance_type),
            {
                "cloud": offer.cloud,
                "region": offer.region,
                "zone": offer.zone,
                "instance_type": offer.instance_type,
                "accelerators": f"{offer.accelerators[0]}:{offer.accelerators[1]:g}" if offer.accelerators else None,
                "vcpus": offer.vcpus,
                "memory_gib": offer.memory_gib,
                "spot_per_hour": None,
                "on_demand_per_hour": None,
            },
        )
        name = "spot_per_hour" if offer.market is Market.SPOT else "on_demand_per_hour"
        row[name] = offer.price_per_hour
    return rows


def _price(row: dict[str, Any]) -> float:
    return float(row["spot_per_hour"] if row["spot_per_hour"] is not None else row["on_demand_per_hour"])


def _annotate(row: dict[str, Any], view: MarketView, losses: Counter[tuple[str, ...]], now: float) -> None:
    place = (row["cloud"], row["region"], row["zone"], row["instance_type"])
    kind = Market.SPOT if row["spot_per_hour"] is not None else Market.ON_DEMAND
    covering = [one for one in _active(view.unavailable, now) if _covers(one, place, kind)]
    avoided = max(covering, key=lambda one: one.until, default=None)
    track = view.history.tracks.get(OfferKey(*place, kind))
    row["avoided_until"] = None if avoided is None else iso(avoided.until)
    row["avoided_why"] = None if avoided is None else _why(avoided)
    row["last_tried"] = None if track is None else iso(track.seen_at)
    row["was_available"] = None if track is None else track.available
    row["lost_in_a_day"] = losses[place]


def _active(unavailable: Sequence[UnavailableOffer], now: float) -> list[UnavailableOffer]:
    return [one for one in unavailable if one.until > now]


def _covers(one: UnavailableOffer, place: tuple[str, str, str, str], kind: Market) -> bool:
    scope = (one.cloud, one.region, one.zone, one.instance_type, one.market)
    return all(wanted in (None, value) for wanted, value in zip(scope, (*place, kind), strict=True))


def _why(one: UnavailableOffer) -> str:
    return one.message or ("the cloud has just taken a machine back" if one.from_preemption else str(one.kind))


def _avoided(one: UnavailableOffer) -> dict[str, Any]:
    return {
        **{name: getattr(one, name) for name in ("cloud", "region", "zone", "instance_type", "code")},
        "market": None if one.market is None else one.market.value,
        "kind": one.kind.value,
        "since": iso(one.at),
        "until": iso(one.until),
        "why": _why(one),
        "from_preemption": one.from_preemption,
    }


def _losses(conn: Connection, since: float) -> Counter[tuple[str, ...]]:
    """The machines that were lost since then, by zone and instance type: observations that end a time of holding."""
    place = (Observations.c.cloud, Observations.c.region, Observations.c.zone, Observations.c.instance_type)
    query = (
        select(*place, func.count())
        .where(Observations.c.at > since, Observations.c.available.is_(False), Observations.c.held_since.is_not(None))
        .group_by(*place)
    )
    return Counter({tuple(row[:4]): row[4] for row in conn.execute(query)})
