"""Google's price list: the prices of machine parts, among other items.

Every request and response is checked against the discovery document of cloudbilling v1. Descriptions are Google's own
(cloud.google.com/skus); prices are close to Google's, and the fleet is billed by the same sums.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from perdure.recovery.market.view import Market
from support.fakes.gce.faults import Faults
from support.fakes.gce.machine_catalog import MACHINES
from support.fakes.google_discovery import Call, Discovery, Invalid

_BILLING = Discovery("cloudbilling", "v1")
read, check_answer = _BILLING.read, _BILLING.check_answer

SERVICE = "services/6F81-5844-456A"
SPOT, ON_DEMAND = Market.SPOT, Market.ON_DEMAND
# Place → (Google's name, all regions with this price, its price ÷ the price in the first place).
PLACES = {
    "us-central1": ("Americas", ["us-central1", "us-east1", "us-west1"], 1.0),
    "us-east4": ("Northern Virginia", ["us-east4"], 1.125),
    "europe-west4": ("Netherlands", ["europe-west4"], 1.1),
}
# Family → (words, USD per vCPU, USD per GiB, share of both that spot costs).
FAMILIES = {
    "a2": ("A2 Instance", 0.031611, 0.004237, 0.4),
    "a3": ("A3 Instance", 0.029917, 0.002606, 0.4),
    "a3-megagpu": ("A3Plus Instance", 0.026924, 0.002344, 0.4),
    "c2": ("Compute optimized", 0.03398, 0.00455, 0.22),
    "c3": ("C3 Instance", 0.03398, 0.003938, 0.3),
    "e2": ("E2 Instance", 0.02181159, 0.00292353, 0.31),
    "g2": ("G2 Instance", 0.024988, 0.002927, 0.5),
    "n1": ("N1 Predefined Instance", 0.031611, 0.004237, 0.21),
    "n2": ("N2 Instance", 0.031611, 0.004237, 0.242),
    "n2d": ("N2D AMD Instance", 0.027502, 0.003686, 0.2),
    "n4": ("N4 Instance", 0.02895, 0.00329, 0.4),
    "t2d": ("T2D AMD Instance", 0.027502, 0.003686, 0.2),
}
# Google's name for it → (words, USD each, share that spot costs).
GPUS = {
    "nvidia-tesla-t4": ("Nvidia Tesla T4 GPU", 0.35, 0.4),
    "nvidia-tesla-p4": ("Nvidia Tesla P4 GPU", 0.6, 0.4),
    "nvidia-tesla-p100": ("Nvidia Tesla P100 GPU", 1.46, 0.4),
    "nvidia-tesla-v100": ("Nvidia Tesla V100 GPU", 2.48, 0.4),
    "nvidia-l4": ("Nvidia L4 GPU", 0.56004, 0.5),
    "nvidia-tesla-a100": ("Nvidia Tesla A100 GPU", 2.933908, 0.6),
    "nvidia-a100-80gb": ("Nvidia Tesla A100 80GB GPU", 3.92808, 0.5),
    "nvidia-h100-80gb": ("Nvidia H100 80GB GPU", 9.796551, 0.3),
    "nvidia-h100-mega-80gb": ("Nvidia H100 80GB Plus GPU", 10.344276, 0.4),
    "nvidia-b200": ("A4 Nvidia B200 (1 gpu slice)", 16.11, 0.31),
}
WHOLE = ("nvidia-b200",)  # its price includes the machine
SSD_PER_MONTH = 0.08


def price(instance_type: str, region: str, market: Market) -> float:
    """USD per hour, as it is billed."""
    name, _, attached = instance_type.partition("+")
    machine, factor = MACHINES[name], PLACES[region][2]
    gpus = machine.gpus
    if attached:
        kind, _, count = attached.partition("x")
        gpus = (f"nvidia-tesla-{kind}", int(count))
    total = gpus[1] * _priced(GPUS[gpus[0]][1], GPUS[gpus[0]][2], factor, market) if gpus else 0.0
    if gpus is None or gpus[0] not in WHOLE:
        family = FAMILIES.get(name.rpartition("-")[0], FAMILIES[name.partition("-")[0]])
        total += machine.vcpus * _priced(family[1], family[3], factor, market)
        total += machine.memory_gib * _priced(family[2], family[3], factor, market)
        total += machine.ssds * 375 * _priced(SSD_PER_MONTH, 1.0, factor, market) / 730
    return round(total, 6)


def answer(call: Call, faults: Faults) -> dict[str, Any]:
    """One page of the price list. Raises Invalid."""
    if faults.prices_away:
        text = "Cloud Billing API has not been used in project perdure-test before or it is disabled."
        raise Invalid(403, "SERVICE_DISABLED", text)
    if call.method != "services.skus.list":
        raise Invalid(501, "notImplemented", f"the fake has no {call.method}")
    if call.parameters["parent"] != SERVICE:
        raise Invalid(404, "notFound", "Requested entity was not found.")
    listed = list(skus())
    start = int(call.parameters.get("pageToken", 0))
    size = min(faults.page_size, int(call.parameters.get("pageSize", 5000)))
    more = str(start + size) if start + size < len(listed) else ""
    return {"skus": listed[start : start + size], "nextPageToken": more}


def skus() -> Iterator[dict[str, Any]]:
    """All items of the price list."""
    numbers = iter(range(1, 1 << 16))
    for place, regions, factor in PLACES.values():
        for listed in _of_place(place, factor):
            yield _sku(next(numbers), regions, *listed)


def _of_place(place: str, factor: float) -> Iterator[tuple[str, str, str, float, str]]:
    """(description, resource group, usage type, USD, unit)"""
    for words, core, ram, share in FAMILIES.values():
        for part, group, usd, unit in (("Core", "CPU", core, "h"), ("Ram", "RAM", ram, "GiBy.h")):
            name, group = f"{words} {part}", "N1Standard" if words.startswith("N1 ") else group
            usual, spot = (_priced(usd, share, factor, market) for market in (ON_DEMAND, SPOT))
            yield f"{name} running in {place}", group, "OnDemand", usual, unit
            yield f"Spot Preemptible {name} running in {place}", group, "Preemptible", spot, unit
            short = words.removesuffix(" Instance")
            yield f"Commitment v1: {short} {part} in {place} for 1 Year", group, "Commit1Yr", usual * 0.63, unit
            yield f"{short} Custom Instance {part} running in {place}", group, "OnDemand", usual * 1.05, unit
            yield f"{short} Sole Tenancy Instance {part} running in {place}", group, "OnDemand", usual * 1.1, unit
            yield f"DWS Defined Duration {short} {part} running in {place}", group, "OnDemand", usual * 0.5, unit
    for google_name, (words, usd, share) in GPUS.items():
        usual, spot = (_priced(usd, share, factor, market) for market in (ON_DEMAND, SPOT))
        yield f"{words} running in {place}", "GPU", "OnDemand", usual, "h"
        if google_name in WHOLE:  # Google lists it as on demand
            yield f"Spot Preemptible {words} running in {place}", "GPU", "OnDemand", spot, "h"
        else:
            yield f"{words} attached to Spot Preemptible VMs running in {place}", "GPU", "Preemptible", spot, "h"
        yield f"Reserved {words} in {place} in Calendar Mode", "GPU", "OnDemand", usual * 0.4, "h"
        yield f"{words} attached to DWS Defined Duration VMs running in {place}", "GPU", "OnDemand", usual * 0.4, "h"
        yield f"Commitment v1: {words} running in {place} for 3 Years", "GPU", "Commit3Yr", usual * 0.4, "h"
    ssd = _priced(SSD_PER_MONTH, 1.0, factor, ON_DEMAND)
    where = "" if place == "Americas" else f" in {place}"
    yield f"SSD backed Local Storage{where}", "LocalSSD", "OnDemand", ssd, "GiBy.mo"
    spot_ssd = f"SSD backed Local Storage attached to Spot Preemptible VMs{where}"
    yield spot_ssd, "LocalSSD", "Preemptible", ssd, "GiBy.mo"
    yield f"Balanced PD Capacity{where}", "SSD", "OnDemand", 0.1 * factor, "GiBy.mo"


def _sku(
    number: int, regions: list[str], description: str, group: str, usage: str, usd: float, unit: str
) -> dict[str, Any]:
    words, base, factor = {
        "h": ("hour", "s", 3600.0),
        "GiBy.h": ("gibibyte hour", "By.s", 3865470566400.0),
        "GiBy.mo": ("gibibyte month", "By.s", 2.8759101014016e15),
    }[unit]
    expression = {
        "usageUnit": unit,
        "displayQuantity": 1.0,
        "tieredRates": [
            {
                "startUsageAmount": 0.0,
                "unitPrice": {"currencyCode": "USD", "units": str(int(usd)), "nanos": round((usd - int(usd)) * 1e9)},
            }
        ],
        "usageUnitDescription": words,
        "baseUnit": base,
        "baseUnitConversionFactor": factor,
    }
    info = {"summary": "", "pricingExpression": expression, "currencyConversionRate": 1.0}
    id = f"{number:04X}-5844-456A"
    return {
        "name": f"{SERVICE}/skus/{id}",
        "skuId": id,
        "description": description,
        "category": {
            "serviceDisplayName": "Compute Engine",
            "resourceFamily": "Storage" if unit == "GiBy.mo" else "Compute",
            "resourceGroup": group,
            "usageType": usage,
        },
        "serviceRegions": regions,
        "pricingInfo": [{**info, "effectiveTime": "2026-11-22T19:01:02.345Z"}],
        "serviceProviderName": "Google",
        "geoTaxonomy": {"type": "MULTI_REGIONAL" if len(regions) > 1 else "REGIONAL", "regions": regions},
    }


def _priced(usd: float, share: float, factor: float, market: Market) -> float:
    """A price of a place and a market, in full nanos."""
    return round(usd * factor * (share if market is SPOT else 1.0), 9)
