"""What Compute Engine says of machine types and of GPUs that can be attached, by zone: size, memory, what is in them.

One aggregated list for a region, asked for with the few fields that are read. cloud.google.com/compute/docs/reference/
rest/v1/machineTypes/aggregatedList, and …/acceleratorTypes/aggregatedList.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from perdure.controller.clouds.faulting import Refused
from perdure.controller.clouds.gcp import families
from perdure.controller.clouds.gcp.connections import Connections
from perdure.controller.clouds.gcp.families import GPUS

URL = "https://compute.googleapis.com"
PAGE = 500  # the most there is
MOST_PAGES = 200
SSD_GIB = 375.0  # of each local SSD that a machine comes with
# Each type of GPU that can be attached goes with a machine of 8 vCPUs and 52 GiB for each.
HOST = "n1-highmem-"
VCPUS_PER_GPU = 8

_TYPE = "name,guestCpus,memoryMb,accelerators,bundledLocalSsds/partitionCount,architecture,deprecated/state"


@dataclass(frozen=True)
class Machine:
    """`gpus`: Google's name for them, and how many. `ssd_gib`: of local SSD, which it always comes with."""

    name: str
    vcpus: float
    memory_gib: float
    gpus: tuple[str, int] | None = None
    ssd_gib: float = 0.0

    @property
    def accelerators(self) -> tuple[str, float] | None:
        return (GPUS[self.gpus[0]].name, float(self.gpus[1])) if self.gpus else None


def of_region(connections: Connections, region: str) -> dict[str, dict[str, Machine]]:
    """Zone → name → machine, of the sizes that are offered; N1 with GPUs by both names. Raises Refused if one of the
    zones does not answer, and what `Connections.call` does."""
    machines = {
        zone: {one.name: one for told in some for one in read(told)}
        for zone, some in _listed(connections, region, "machineTypes", _TYPE).items()
    }
    attachable = _listed(connections, region, "acceleratorTypes", "name,maximumCardsPerInstance")
    for zone, some in attachable.items():
        here = machines.get(zone, {})
        here |= {one.name: one for told in some for one in with_attached(told, here)}
    return machines


def read(told: Mapping[str, Any]) -> Iterator[Machine]:
    """As Google tells it; none if it is not offered."""
    gpus = [(one["guestAcceleratorType"], int(one["guestAcceleratorCount"])) for one in told.get("accelerators", ())]
    is_known = len(gpus) <= 1 and all(name in GPUS for name, _ in gpus)
    is_ours = told.get("architecture", "X86_64") != "ARM64" and not told.get("deprecated", {}).get("state")
    vcpus, memory_mb = told.get("guestCpus"), told.get("memoryMb")
    if is_known and is_ours and vcpus and memory_mb and families.is_plain(told["name"]):
        yield Machine(
            told["name"],
            float(vcpus),
            memory_mb / 1024.0,
            gpus[0] if gpus else None,
            SSD_GIB * told.get("bundledLocalSsds", {}).get("partitionCount", 0),
        )


def with_attached(told: Mapping[str, Any], machines: Mapping[str, Machine]) -> Iterator[Machine]:
    """N1 machines with as many of these GPUs as they may have. `told`: as Google tells of them."""
    gpu = GPUS.get(told["name"])
    if gpu is None or not gpu.is_attached:
        return
    for count in families.ATTACHED_COUNTS:
        host = machines.get(f"{HOST}{VCPUS_PER_GPU * count}")
        if host is not None and count <= told.get("maximumCardsPerInstance", 1):
            name = f"{host.name}+{gpu.name.lower()}x{count}"
            yield Machine(name, host.vcpus, host.memory_gib, (told["name"], count))


def _listed(connections: Connections, region: str, what: str, fields: str) -> dict[str, list[Mapping[str, Any]]]:
    """Zone → what it has."""
    path = f"/compute/v1/projects/{connections.project}/aggregated/{what}"
    query = {
        "filter": rf'zone eq ".*\b{region}-[a-z0-9]+\b.*"',
        "maxResults": str(PAGE),
        "fields": f"items/*({what}({fields}),warning/code),unreachables,nextPageToken",
    }
    found: dict[str, list[Mapping[str, Any]]] = {}
    for _ in range(MOST_PAGES):
        told = connections.call("GET", URL, path, query=query)
        silent = [*told.get("unreachables", ())]
        for scope, here in told.get("items", {}).items():
            zone = scope.rpartition("/")[2]
            if here.get("warning", {}).get("code") == "UNREACHABLE":
                silent.append(scope)
            if here.get(what) and zone.rpartition("-")[0] == region:
                found.setdefault(zone, []).extend(here[what])
        if mute := next((scope for scope in silent if f"{region}-" in scope), None):
            raise Refused("UNREACHABLE", f"{mute} does not tell what it sells")
        if not told.get("nextPageToken"):
            break
        query["pageToken"] = told["nextPageToken"]
    return found
