"""Google's list prices from the Cloud Billing Catalog API: USD per hour, without a customer's discounts.

cloud.google.com/billing/docs/reference/rest/v1/services.skus/list. Any credentials may read it if the API is enabled
for the project. It lists tens of thousands of items, of which a few thousand numbers are kept.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Any, NamedTuple

import structlog

from perdure.controller.clouds.gcp import faults
from perdure.controller.clouds.gcp.pricing.machine_families import FAMILIES, GPUS
from perdure.controller.clouds.gcp.sdk.connections import GcpConnections
from perdure.controller.runtime.clock import Clock
from perdure.recovery.market.view import Market

log = structlog.get_logger(__name__)

URL = "https://cloudbilling.googleapis.com"
PATH = "/v1/services/6F81-5844-456A/skus"  # Compute Engine's
FIELDS = (
    "skus(description,category/usageType,serviceRegions,"
    "pricingInfo/pricingExpression(usageUnit,tieredRates/unitPrice)),nextPageToken"
)
PAGE_SIZE = 2000  # of at most 5000: a page is in memory at once
MAX_PAGES = 200
FIX = "enable its API: gcloud services enable cloudbilling.googleapis.com"
HOURS_PER_MONTH = 730.0
MAX_AGE_S = 6 * 3600.0  # Google's own data is up to 12 hours old
RETRY_AFTER_FAILURE_S = 600.0


class Part(StrEnum):
    """A part of a machine that is billed."""

    CORE = "core"
    RAM = "ram"
    GPU = "gpu"
    SSD = "ssd"


class Item(NamedTuple):
    """An item of the price list."""

    part: Part
    of: str  # a family's prefix, Google's name of a GPU, or empty
    market: Market


# Item → USD per hour and unit: a vCPU, a GiB of memory, a GPU, a GiB of local SSD.
Rates = Mapping[Item, float]

_NAMES: dict[str, tuple[Part, str]] = {
    **{f"{words} Core": (Part.CORE, family.prefix) for family in FAMILIES for words in family.words},
    **{f"{words} Ram": (Part.RAM, family.prefix) for family in FAMILIES for words in family.words},
    **{words: (Part.GPU, google_name) for google_name, gpu in GPUS.items() for words in gpu.words},
    "SSD backed Local Storage": (Part.SSD, ""),
}
_DESCRIPTION = re.compile(
    r"(?P<spot>(?:Spot )?Preemptible )?(?P<what>.+?)(?P<attached> attached to Spot Preemptible VMs)?"
    r"(?: (?:running )?in (?!.* (?:in|for) )[^()]+)?"
)
_MARKETS = {"OnDemand": Market.ON_DEMAND, "Preemptible": Market.SPOT}
_UNITS = {Part.CORE: {"h": 1.0}, Part.GPU: {"h": 1.0}, Part.RAM: {"GiBy.h": 1.0}}
_UNITS[Part.SSD] = {"GiBy.mo": 1.0 / HOURS_PER_MONTH, "GiBy.h": 1.0}


class GooglePriceList:
    """A cache of the price list. Thread-safe: one thread fetches it, the others wait. Never raises."""

    def __init__(self, connections: GcpConnections, clock: Clock) -> None:
        self._connections = connections
        self._clock = clock
        self._lock = threading.Lock()
        self._rates: dict[str, dict[Item, float]] = {}
        self._next_at = float("-inf")
        self.problem: str | None = None
        """Why the last fetch failed, and what to do; None if it succeeded."""

    def rates(self, region: str) -> Rates:
        """The region's rates; empty before the first successful fetch."""
        with self._lock:
            now = self._clock.now()
            if now >= self._next_at:
                self._fetch(now)
            return self._rates.get(region, {})

    def _fetch(self, now: float) -> None:
        try:
            self._rates, self.problem = parse_items(_items(self._connections)), None
            self._next_at = now + MAX_AGE_S
        except Exception as error:  # noqa: BLE001 - launches continue without a price list
            self.problem = f"Google's price list is unavailable ({faults.code_of(error)}): {FIX}"
            self._next_at = now + RETRY_AFTER_FAILURE_S
            log.warning("gcp.prices_unavailable", code=faults.code_of(error), error=str(error))


def parse_items(items: Iterable[Mapping[str, Any]]) -> dict[str, dict[Item, float]]:
    """Region → its rates, from listed items.

    Skips parts of unknown families and other terms of sale: commitments, reservations, custom sizes, sole tenants. Of
    two prices for the same item, the higher counts.
    """
    result: dict[str, dict[Item, float]] = {}
    for one in items:
        item = item_of(str(one.get("description", "")), str(one.get("category", {}).get("usageType", "")))
        if item is None or (usd := _usd_per_hour(item.part, one)) is None:
            continue
        for region in one.get("serviceRegions", ()):
            rates = result.setdefault(region, {})
            rates[item] = max(usd, rates.get(item, 0.0))
    return result


def item_of(description: str, usage_type: str) -> Item | None:
    """The item of a description such as `Spot Preemptible A2 Instance Core running in Americas`; None if unknown."""
    market = _MARKETS.get(usage_type)
    parts = _DESCRIPTION.fullmatch(description)
    if market is None or parts is None or (name := _NAMES.get(parts["what"])) is None:
        return None
    # Some spot items are listed with the usage type of on-demand ones.
    return Item(*name, Market.SPOT if parts["spot"] or parts["attached"] else market)


def check_access(connections: GcpConnections) -> None:
    """Fetch one item. Raises what `GcpConnections.call` does."""
    connections.call("GET", URL, PATH, query={"pageSize": "1", "fields": "nextPageToken"})


def _items(connections: GcpConnections) -> Iterator[Mapping[str, Any]]:
    query = {"pageSize": str(PAGE_SIZE), "fields": FIELDS}
    for _ in range(MAX_PAGES):
        response = connections.call("GET", URL, PATH, query=query)
        yield from response.get("skus", ())
        if not response.get("nextPageToken"):
            return
        query["pageToken"] = response["nextPageToken"]


def _usd_per_hour(part: Part, one: Mapping[str, Any]) -> float | None:
    """None if it is free, or has an unexpected unit or currency."""
    pricing = one.get("pricingInfo") or [{}]
    expression = pricing[-1].get("pricingExpression", {})
    rates = expression.get("tieredRates") or [{}]
    price, per_hour = rates[-1].get("unitPrice", {}), _UNITS[part].get(expression.get("usageUnit", ""))
    if per_hour is None or price.get("currencyCode", "USD") != "USD":
        return None
    usd = int(price.get("units", 0)) + int(price.get("nanos", 0)) / 1e9
    return usd * per_hour if usd > 0 else None
