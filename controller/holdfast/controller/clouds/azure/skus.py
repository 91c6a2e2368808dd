"""What a subscription may have of Azure's sizes in a region, as Azure tells: zones, quota family, spot or not.

Azure lists what it does not let a subscription have too, with a restriction, of the region or of some of its zones:
learn.microsoft.com/rest/api/compute/resource-skus/list
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from azure.mgmt.compute import ComputeManagementClient


@dataclass(frozen=True)
class Sku:
    """`family`: as quotas name it, in lower case. `zones`: those where it may be had, by number; empty where the region
    has none. `may_be_had`: nothing of the region restricts it."""

    name: str
    family: str
    zones: tuple[str, ...]
    may_be_had: bool
    takes_spot: bool


def of_region(client: ComputeManagementClient, region: str, wanted: Collection[str]) -> dict[str, Sku]:
    """Those of `wanted` that the region has, by name. One call, whose answer is long."""
    listed = client.resource_skus.list(filter=f"location eq '{region}'")
    return {one.name: one for told in listed for one in _read(told, region, wanted)}


def _read(told: Any, region: str, wanted: Collection[str]) -> Iterator[Sku]:
    if told.resource_type != "virtualMachines" or told.name not in wanted:
        return
    places = [one for one in told.location_info or () if (one.location or "").lower() == region]
    zones = {zone for one in places for zone in one.zones or ()}
    barred: set[str] = set()
    may_be_had = True
    for one in told.restrictions or ():
        if one.type == "Location":
            may_be_had = False
        elif one.restriction_info is not None:
            barred |= set(one.restriction_info.zones or ())
    can = {one.name: one.value for one in told.capabilities or ()}
    yield Sku(
        name=told.name,
        family=(told.family or "").lower(),
        zones=tuple(sorted(zones - barred)),
        may_be_had=may_be_had and (not zones or bool(zones - barred)),
        takes_spot=can.get("LowPriorityCapable", "True") == "True",
    )
