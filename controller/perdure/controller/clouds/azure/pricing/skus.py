"""The sizes of a region as Azure lists them for the subscription: zones, quota family, spot support and hardware.

Azure also lists sizes that are not available to the subscription, with a restriction on the region or some zones:
learn.microsoft.com/rest/api/compute/resource-skus/list
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from perdure.controller.clouds.azure.pricing import sizes
from perdure.controller.clouds.pricing.region_catalog import Shape

if TYPE_CHECKING:
    from azure.mgmt.compute import ComputeManagementClient


@dataclass(frozen=True)
class Sku:
    """A size in a region."""

    name: str
    family: str  # as in quotas, in lower case
    zones: tuple[str, ...]  # numbers of the zones where it is available; empty in a region without zones
    is_available: bool  # not restricted in the whole region
    supports_spot: bool
    shape: Shape | None  # None: unknown hardware, or the controller's images cannot boot on it


def fetch(client: ComputeManagementClient, region: str, wanted: Callable[[str], bool]) -> dict[str, Sku]:
    """The region's sizes whose name is `wanted`, by name. One call with a long response."""
    listed = client.resource_skus.list(filter=f"location eq '{region}'")
    return {sku.name: sku for resource in listed for sku in _parse(resource, region, wanted)}


def _parse(resource: Any, region: str, wanted: Callable[[str], bool]) -> Iterator[Sku]:
    if resource.resource_type != "virtualMachines" or not wanted(resource.name):
        return
    locations = [one for one in resource.location_info or () if (one.location or "").lower() == region]
    zones = {zone for one in locations for zone in one.zones or ()}
    restricted: set[str] = set()
    is_available = True
    for one in resource.restrictions or ():
        if one.type == "Location":
            is_available = False
        elif one.restriction_info is not None:
            restricted |= set(one.restriction_info.zones or ())
    capabilities = {one.name: one.value for one in resource.capabilities or ()}
    yield Sku(
        name=resource.name,
        family=(resource.family or "").lower(),
        zones=tuple(sorted(zones - restricted)),
        is_available=is_available and (not zones or bool(zones - restricted)),
        supports_spot=capabilities.get("LowPriorityCapable", "True") == "True",
        shape=shape_of(resource.name, capabilities),
    )


def shape_of(size: str, capabilities: Mapping[str, str]) -> Shape | None:
    """The hardware of a size. Any of its capabilities (texts) may be missing. None if its GPUs are unknown."""
    if capabilities.get("CpuArchitectureType", "x64") != "x64" or "V2" not in capabilities.get(
        "HyperVGenerations", "V2"
    ).split(","):
        return None
    try:
        vcpus = float(
            capabilities.get("vCPUsAvailable") or capabilities["vCPUs"]
        )  # fewer in sizes with constrained cores
        memory_gib, gpus = float(capabilities["MemoryGB"]), float(capabilities.get("GPUs") or 0)
    except (KeyError, ValueError):
        return None
    accelerator = sizes.accelerator(size)
    if (accelerator is not None) != (gpus > 0) or vcpus <= 0 or memory_gib <= 0:
        return None
    return Shape(vcpus, memory_gib, (accelerator, gpus) if accelerator else None)
