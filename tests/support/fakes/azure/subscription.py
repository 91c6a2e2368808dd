"""The subscription: permissions of the caller, sizes and quotas per region."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from perdure.controller.clouds.azure.pricing.catalog import REGIONS
from support.fakes.azure.faults import Faults
from support.fakes.azure.responses import Answer, Invalid
from support.fakes.azure.sizes import LAUNCHED, SIZES, UNFIT, capabilities

LIMIT, USED = 100, 12


def permissions(faults: Faults) -> Answer:
    role = {"actions": faults.granted, "notActions": faults.taken_away, "notDataActions": []}
    role["dataActions"] = faults.granted_data
    return Answer(200, {"value": [role]})


def provider(name: str, faults: Faults) -> Answer:
    return Answer(200, {"namespace": name, "registrationState": faults.registrations.get(name, "Registered")})


def image_versions(path: str, faults: Faults) -> Answer:
    """The versions of a public image in a region; none for an image that is not published there."""
    parts = path.split("/")
    region, urn = parts[parts.index("locations") + 1], ":".join(parts[parts.index("publishers") + 1 :: 2][:4])
    known = [] if (region, urn) in faults.missing_images else [{"name": "22.04.2026", "location": region}]
    return Answer(200, known)


def family(size: str) -> str:
    """The name of a size's family in quotas, which omits the numbers of the size, as Azure's do."""
    begin, _, version = re.sub(r"(?<=[A-Z])\d+", "", size.removeprefix("Standard_"), count=1).rpartition("_")
    return f"standard{begin}{version}Family".replace("_", "")


def usages(region: str, faults: Faults) -> Answer:
    names = {"cores": "Total Regional vCPUs", "lowPriorityCores": "Total Regional Low-priority vCPUs"}
    names |= {family(size): f"{family(size)} vCPUs" for size in SIZES} | {"virtualMachines": "Virtual Machines"}
    values = [
        {
            "unit": "Count",
            "currentValue": USED if name == "cores" else 0,
            "limit": faults.quotas.get((region, name), LIMIT),
            "name": {"value": name, "localizedValue": words},
        }
        for name, words in names.items()
    ]
    return Answer(200, {"value": values})


def skus(query: Mapping[str, str], faults: Faults) -> Answer:
    """The sizes of virtual machines in a region, and one SKU of a disk."""
    selected = re.fullmatch(r"location eq '(\w+)'", query.get("$filter", ""))
    if selected is None or selected[1] not in REGIONS:
        raise Invalid("InvalidFilter", f"The filter {query.get('$filter')!r} is not supported.")
    region = selected[1]
    listed = [_machine(size, region, faults) for size in [*LAUNCHED, *UNFIT]]
    disk = {"resourceType": "disks", "name": "Premium_LRS", "locations": [region]}
    return Answer(200, {"value": [disk, *listed]})


def _machine(size: str, region: str, faults: Faults) -> dict[str, Any]:
    zones = REGIONS[region].zones
    closed_zones = [zone for zone in zones if (f"{region}-{zone}", size) in faults.closed]
    restrictions: list[dict[str, Any]] = []
    if (region, size) in faults.closed:
        restrictions.append({"type": "Location", "values": [region], "restrictionInfo": {"locations": [region]}})
    if closed_zones:
        info = {"locations": [region], "zones": closed_zones}
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
