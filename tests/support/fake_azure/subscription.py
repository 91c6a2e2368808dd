"""The subscription around the machines: what its caller may do, what it may buy in a region, and how much."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from fake_azure.answers import Answer, Invalid
from fake_azure.faults import Faults
from fake_azure.sizes import SIZES, UNFIT, capabilities
from perdure.controller.clouds.azure.catalog import REGIONS

LIMIT, USED = 100, 12


def permissions(faults: Faults) -> Answer:
    role = {"actions": faults.granted, "notActions": faults.taken_away, "notDataActions": []}
    role["dataActions"] = faults.granted_data
    return Answer(200, {"value": [role]})


def family(size: str) -> str:
    """What quotas call the family of a size: as Azure does, with the size's figures left out."""
    begin, _, version = re.sub(r"(?<=[A-Z])\d+", "", size.removeprefix("Standard_"), count=1).rpartition("_")
    return f"standard{begin}{version}Family".replace("_", "")


def usages(region: str, faults: Faults) -> Answer:
    names = {"cores": "Total Regional vCPUs", "lowPriorityCores": "Total Regional Low-priority vCPUs"}
    names |= {family(size): f"{family(size)} vCPUs" for size in SIZES} | {"virtualMachines": "Virtual Machines"}
    told = [
        {
            "unit": "Count",
            "currentValue": USED if name == "cores" else 0,
            "limit": faults.quotas.get((region, name), LIMIT),
            "name": {"value": name, "localizedValue": words},
        }
        for name, words in names.items()
    ]
    return Answer(200, {"value": told})


def skus(query: Mapping[str, str], faults: Faults) -> Answer:
    """Of virtual machines, and a disk."""
    found = re.fullmatch(r"location eq '(\w+)'", query.get("$filter", ""))
    if found is None or found[1] not in REGIONS:
        raise Invalid("InvalidFilter", f"The filter {query.get('$filter')!r} is not supported.")
    region = found[1]
    listed = [_machine(size, region, faults) for size in [*SIZES, *UNFIT]]
    disk = {"resourceType": "disks", "name": "Premium_LRS", "locations": [region]}
    return Answer(200, {"value": [disk, *listed]})


def _machine(size: str, region: str, faults: Faults) -> dict[str, Any]:
    zones = REGIONS[region].zones
    barred = [zone for zone in zones if (f"{region}-{zone}", size) in faults.closed]
    restrictions: list[dict[str, Any]] = []
    if (region, size) in faults.closed:
        restrictions.append({"type": "Location", "values": [region], "restrictionInfo": {"locations": [region]}})
    if barred:
        info = {"locations": [region], "zones": barred}
        restrictions.append({"type": "Zone", "values": [region], "restrictionInfo": info})
    return {
        "resourceType": "virtualMachines",
        "name": size,
        "family": family(size),
        "locations": [region],
        "locationInfo": [{"location": region, "zones": list(zones)}],
        "capabilities": [{"name": name, "value": value} for name, value in capabilities(size).items()],
        "restrictions": [{**one, "reasonCode": "NotAvailableForSubscription"} for one in restrictions],
    }
