"""What a subscription may have of Azure's sizes in a region, as Azure tells: zones, quota family, spot or not, and what
a size has.

Azure lists what it does not let a subscription have too, with a restriction, of the region or of some of its zones:
learn.microsoft.com/rest/api/compute/resource-skus/list
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from perdure.controller.clouds.azure import sizes
from perdure.controller.clouds.sold import Shape

if TYPE_CHECKING:
    from azure.mgmt.compute import ComputeManagementClient


@dataclass(frozen=True)
class Sku:
    """`family`: as quotas name it, in lower case. `zones`: those where it may be had, by number; empty where the region
    has none. `may_be_had`: nothing of the region restricts it. `shape` None: its capabilities do not say it, or it is
    nothing that the controller's images boot on."""

    name: str
    family: str
    zones: tuple[str, ...]
    may_be_had: bool
    takes_spot: bool
    shape: Shape | None


def of_region(client: ComputeManagementClient, region: str, wanted: Callable[[str], bool]) -> dict[str, Sku]:
    """Those that are `wanted` of what the region has, by name. One call, whose answer is long."""
    listed = client.resource_skus.list(filter=f"location eq '{region}'")
    return {one.name: one for told in listed for one in _read(told, region, wanted)}


def _read(told: Any, region: str, wanted: Callable[[str], bool]) -> Iterator[Sku]:
    if told.resource_type != "virtualMachines" or not wanted(told.name):
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
        shape=shape_of(told.name, can),
    )


def shape_of(size: str, can: Mapping[str, str]) -> Shape | None:
    """By its capabilities: texts all, of which a size may lack any. GPUs that have no name here make it none."""
    if can.get("CpuArchitectureType", "x64") != "x64" or "V2" not in can.get("HyperVGenerations", "V2").split(","):
        return None
    try:
        vcpus = float(can.get("vCPUsAvailable") or can["vCPUs"])  # fewer, where a size is sold with some turned off
        memory_gib, gpus = float(can["MemoryGB"]), float(can.get("GPUs") or 0)
    except (KeyError, ValueError):
        return None
    accelerator = sizes.accelerator(size)
    if (accelerator is not None) != (gpus > 0) or vcpus <= 0 or memory_gib <= 0:
        return None
    return Shape(vcpus, memory_gib, (accelerator, gpus) if accelerator else None)
