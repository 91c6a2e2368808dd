"""Machine types and attachable GPUs by zone, as Compute Engine describes them.

One aggregated list per region, restricted to the fields in use. cloud.google.com/compute/docs/reference/rest/v1/
machineTypes/aggregatedList, and …/acceleratorTypes/aggregatedList.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from perdure.controller.clouds.base.faults import CloudRejected
from perdure.controller.clouds.gcp.pricing import machine_families
from perdure.controller.clouds.gcp.pricing.machine_families import GPUS
from perdure.controller.clouds.gcp.sdk.connections import GcpConnections

URL = "https://compute.googleapis.com"
PAGE_SIZE = 500  # the maximum
MAX_PAGES = 200
SSD_GIB = 375.0  # of each local SSD
# Attached GPUs are offered with a machine of 8 vCPUs and 52 GiB per GPU.
HOST_PREFIX = "n1-highmem-"
VCPUS_PER_GPU = 8

_TYPE = "name,guestCpus,memoryMb,accelerators,bundledLocalSsds/partitionCount,architecture,deprecated/state"


@dataclass(frozen=True)
class MachineType:
    """A machine type."""

    name: str
    vcpus: float
    memory_gib: float
    gpus: tuple[str, int] | None = None  # (Google's name, count)
    ssd_gib: float = 0.0  # built-in local SSDs

    @property
    def accelerators(self) -> tuple[str, float] | None:
        return (GPUS[self.gpus[0]].name, float(self.gpus[1])) if self.gpus else None


def fetch(connections: GcpConnections, region: str) -> dict[str, dict[str, MachineType]]:
    """Zone → name → machine type, of the sizes that may be offered, including N1 types with attached GPUs.

    Raises CloudRejected if a zone is unreachable, and what `GcpConnections.call` raises.
    """
    types = {
        zone: {one.name: one for resource in resources for one in parse(resource)}
        for zone, resources in _list(connections, region, "machineTypes", _TYPE).items()
    }
    attachable = _list(connections, region, "acceleratorTypes", "name,maximumCardsPerInstance")
    for zone, resources in attachable.items():
        in_zone = types.get(zone, {})
        in_zone |= {one.name: one for resource in resources for one in with_attached(resource, in_zone)}
    return types


def parse(resource: Mapping[str, Any]) -> Iterator[MachineType]:
    """The machine type of Google's resource; nothing if it is not offered."""
    gpus = [
        (one["guestAcceleratorType"], int(one["guestAcceleratorCount"])) for one in resource.get("accelerators", ())
    ]
    has_known_gpus = len(gpus) <= 1 and all(name in GPUS for name, _ in gpus)
    is_supported = resource.get("architecture", "X86_64") != "ARM64" and not resource.get("deprecated", {}).get("state")
    vcpus, memory_mb = resource.get("guestCpus"), resource.get("memoryMb")
    if has_known_gpus and is_supported and vcpus and memory_mb and machine_families.is_plain(resource["name"]):
        yield MachineType(
            resource["name"],
            float(vcpus),
            memory_mb / 1024.0,
            gpus[0] if gpus else None,
            SSD_GIB * resource.get("bundledLocalSsds", {}).get("partitionCount", 0),
        )


def with_attached(resource: Mapping[str, Any], types: Mapping[str, MachineType]) -> Iterator[MachineType]:
    """N1 types with each possible number of these GPUs. `resource`: the GPU, as Google describes it."""
    gpu = GPUS.get(resource["name"])
    if gpu is None or not gpu.is_attached:
        return
    for count in machine_families.ATTACHED_COUNTS:
        host = types.get(f"{HOST_PREFIX}{VCPUS_PER_GPU * count}")
        if host is not None and count <= resource.get("maximumCardsPerInstance", 1):
            name = f"{host.name}+{gpu.name.lower()}x{count}"
            yield MachineType(name, host.vcpus, host.memory_gib, (resource["name"], count))


def _list(connections: GcpConnections, region: str, kind: str, fields: str) -> dict[str, list[Mapping[str, Any]]]:
    """Zone → its resources of that kind."""
    path = f"/compute/v1/projects/{connections.project}/aggregated/{kind}"
    query = {
        "filter": rf'zone eq ".*\b{region}-[a-z0-9]+\b.*"',
        "maxResults": str(PAGE_SIZE),
        "fields": f"items/*({kind}({fields}),warning/code),unreachables,nextPageToken",
    }
    resources: dict[str, list[Mapping[str, Any]]] = {}
    for _ in range(MAX_PAGES):
        response = connections.call("GET", URL, path, query=query)
        unreachable = [*response.get("unreachables", ())]
        for scope, part in response.get("items", {}).items():
            zone = scope.rpartition("/")[2]
            if part.get("warning", {}).get("code") == "UNREACHABLE":
                unreachable.append(scope)
            if part.get(kind) and zone.rpartition("-")[0] == region:
                resources.setdefault(zone, []).extend(part[kind])
        if scope := next((scope for scope in unreachable if f"{region}-" in scope), None):
            raise CloudRejected("UNREACHABLE", f"the machine types of {scope} are temporarily unknown")
        if not response.get("nextPageToken"):
            break
        query["pageToken"] = response["nextPageToken"]
    return resources
