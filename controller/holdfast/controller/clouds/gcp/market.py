"""What Compute Engine sells: which zones have which of our types. Prices are the catalog's; how they are kept:
`pricelist`."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.controller.clouds.gcp import reading
from holdfast.controller.clouds.gcp.catalog import ATTACHED, TYPES, machine_type, spot_price
from holdfast.controller.clouds.gcp.connections import Connections
from holdfast.controller.clouds.pricelist import Prices


def zones_by_region(connections: Connections) -> dict[str, list[str]]:
    """The regions of the project, each with its zones that are up."""
    found: dict[str, list[str]] = {}
    request = {"project": connections.project, "filter": "status = UP"}
    for zone in connections.zones.list(request=request, **connections.once):
        found.setdefault(reading.last_word(zone.region), []).append(zone.name)
    return found


def crawl_region(connections: Connections, region: str, zones: Iterable[str]) -> Prices:
    """Which of our types each zone sells, and at what spot price."""
    return {zone: {name: spot_price(TYPES[name], region) for name in _sold(connections, zone)} for zone in zones}


def _sold(connections: Connections, zone: str) -> list[str]:
    machines = "|".join(sorted({machine_type(name) for name in TYPES}))
    request = {"project": connections.project, "zone": zone, "filter": f'name eq "({machines})"'}
    here = {one.name for one in connections.machine_types.list(request=request, **connections.once)}
    gpus = {"project": connections.project, "zone": zone}
    attachable = {one.name for one in connections.accelerator_types.list(request=gpus, **connections.once)}
    return [
        name
        for name in TYPES
        if machine_type(name) in here and (name not in ATTACHED or ATTACHED[name].accelerator in attachable)
    ]
