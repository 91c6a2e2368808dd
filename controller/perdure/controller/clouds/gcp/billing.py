"""Google's price list, from the Cloud Billing Catalog API: USD an hour, without what a customer has agreed upon.

cloud.google.com/billing/docs/reference/rest/v1/services.skus/list. Whoever has credentials may read it, where the API
is enabled for their project. It lists tens of thousands of items; what is kept is a few thousand numbers.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Any, NamedTuple

import structlog

from perdure.controller.clock import Clock
from perdure.controller.clouds.gcp import faults
from perdure.controller.clouds.gcp.connections import Connections
from perdure.controller.clouds.gcp.families import FAMILIES, GPUS
from perdure.recovery.market import Market

log = structlog.get_logger(__name__)

URL = "https://cloudbilling.googleapis.com"
PATH = "/v1/services/6F81-5844-456A/skus"  # Compute Engine's
FIELDS = (
    "skus(description,category/usageType,serviceRegions,"
    "pricingInfo/pricingExpression(usageUnit,tieredRates/unitPrice)),nextPageToken"
)
PAGE = 2000  # of up to 5000: what is read at once is in memory at once
MOST_PAGES = 200
FIX = "enable what tells it: gcloud services enable cloudbilling.googleapis.com"
HOURS_PER_MONTH = 730.0
AGE_S = 6 * 3600.0  # Google's own answer is up to 12 hours old
AGE_AFTER_TROUBLE_S = 600.0


class Part(StrEnum):
    """Of what a machine is billed for."""

    CORE = "core"
    RAM = "ram"
    GPU = "gpu"
    SSD = "ssd"


class Item(NamedTuple):
    """`of`: a family's prefix, Google's name for a GPU, or nothing."""

    part: Part
    of: str
    market: Market


# Item → USD per hour: of a vCPU, a GiB of memory, a GPU, a GiB of local SSD.
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


class PriceBook:
    """The price list as it was last read. Shared by threads: one reads it, the others wait. Never fails."""

    def __init__(self, connections: Connections, clock: Clock) -> None:
        self._connections = connections
        self._clock = clock
        self._lock = threading.Lock()
        self._rates: dict[str, dict[Item, float]] = {}
        self._next_at = float("-inf")
        self.trouble: str | None = None
        """Why it could not be read the last time, and what to do."""

    def rates(self, region: str) -> Rates:
        """Nothing where nothing was ever told."""
        with self._lock:
            now = self._clock.now()
            if now >= self._next_at:
                self._read(now)
            return self._rates.get(region, {})

    def _read(self, now: float) -> None:
        try:
            self._rates, self.trouble = read(_items(self._connections)), None
            self._next_at = now + AGE_S
        except Exception as error:  # noqa: BLE001 - a price list that is away is no reason to buy nothing
            self.trouble = f"Google's price list is not told ({faults.code_of(error)}): {FIX}"
            self._next_at = now + AGE_AFTER_TROUBLE_S
            log.warning("gcp.prices_not_told", code=faults.code_of(error), error=str(error))


def read(items: Iterable[Mapping[str, Any]]) -> dict[str, dict[Item, float]]:
    """Region → its rates, of items as they are listed. Left out is all that is no part of a machine which is known, or
    is sold otherwise: by commitment or reservation, for custom sizes, sole tenants. Of two prices for the same, the
    higher counts."""
    found: dict[str, dict[Item, float]] = {}
    for one in items:
        item = item_of(str(one.get("description", "")), str(one.get("category", {}).get("usageType", "")))
        if item is None or (usd := _usd_per_hour(item.part, one)) is None:
            continue
        for region in one.get("serviceRegions", ()):
            rates = found.setdefault(region, {})
            rates[item] = max(usd, rates.get(item, 0.0))
    return found


def item_of(description: str, usage_type: str) -> Item | None:
    """What `Spot Preemptible A2 Instance Core running in Americas` stands for; None if nothing that is known."""
    market = _MARKETS.get(usage_type)
    parts = _DESCRIPTION.fullmatch(description)
    if market is None or parts is None or (name := _NAMES.get(parts["what"])) is None:
        return None
    # Some that say so are listed as if they were on demand.
    return Item(*name, Market.SPOT if parts["spot"] or parts["attached"] else market)


def look(connections: Connections) -> None:
    """Whether it may be read. Raises what `Connections.call` does."""
    connections.call("GET", URL, PATH, query={"pageSize": "1", "fields": "nextPageToken"})


def _items(connections: Connections) -> Iterator[Mapping[str, Any]]:
    query = {"pageSize": str(PAGE), "fields": FIELDS}
    for _ in range(MOST_PAGES):
        told = connections.call("GET", URL, PATH, query=query)
        yield from told.get("skus", ())
        if not told.get("nextPageToken"):
            return
        query["pageToken"] = told["nextPageToken"]


def _usd_per_hour(part: Part, one: Mapping[str, Any]) -> float | None:
    """None if it is free, or told in a unit or currency that is not expected."""
    told = one.get("pricingInfo") or [{}]
    expression = told[-1].get("pricingExpression", {})
    rates = expression.get("tieredRates") or [{}]
    price, per_hour = rates[-1].get("unitPrice", {}), _UNITS[part].get(expression.get("usageUnit", ""))
    if per_hour is None or price.get("currencyCode", "USD") != "USD":
        return None
    usd = int(price.get("units", 0)) + int(price.get("nanos", 0)) / 1e9
    return usd * per_hour if usd > 0 else None
