"""Machine types and GPUs of the zones of the fake Compute Engine, as Google describes them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from perdure.controller.clouds.gcp.pricing.catalog import TYPES, machine_type
from support.fakes.gce.operations import LINKS

ZONES = {
    "us-central1": ("us-central1-a", "us-central1-b", "us-central1-c", "us-central1-f"),
    "us-east4": ("us-east4-a", "us-east4-b", "us-east4-c"),
    "europe-west4": ("europe-west4-a", "europe-west4-b"),
}
SMALL_ZONE = "europe-west4-b"  # without GPUs
NEW_ZONE = "us-central1-b"  # the only one with `_NEW`
ATTACHABLE = {"nvidia-tesla-t4": 4, "nvidia-tesla-p4": 4, "nvidia-tesla-p100": 4, "nvidia-tesla-v100": 8}
BUILT_IN = {
    "L4": "nvidia-l4",
    "A100": "nvidia-tesla-a100",
    "A100-80GB": "nvidia-a100-80gb",
    "H100": "nvidia-h100-80gb",
}


@dataclass(frozen=True)
class MachineType:
    """A machine type."""

    name: str
    vcpus: int
    memory_gib: float
    gpus: tuple[str, int] | None = None  # (Google's name for them, how many)
    ssds: int = 0  # how many local ones of 375 GiB it includes
    more: dict[str, Any] = field(default_factory=dict)  # further fields of its JSON

    def to_json(self, zone: str, project: str) -> dict[str, Any]:
        body: dict[str, Any] = {
            "kind": "compute#machineType",
            "id": "801032",
            "creationTimestamp": "1969-12-31T16:00:00.000-08:00",
            "name": self.name,
            "description": f"{self.vcpus} vCPUs, {self.memory_gib} GB RAM",
            "guestCpus": self.vcpus,
            "memoryMb": int(self.memory_gib * 1024),
            "imageSpaceGb": 0,
            "maximumPersistentDisks": 128,
            "maximumPersistentDisksSizeGb": "263168",
            "zone": zone,
            "selfLink": f"{LINKS}/projects/{project}/zones/{zone}/machineTypes/{self.name}",
            "isSharedCpu": False,
            "architecture": "X86_64",
            **self.more,
        }
        if self.gpus:
            body["accelerators"] = [{"guestAcceleratorType": self.gpus[0], "guestAcceleratorCount": self.gpus[1]}]
        if self.ssds:
            body["bundledLocalSsds"] = {"defaultInterface": "NVME", "partitionCount": self.ssds}
        return body


def _from_table() -> Iterator[MachineType]:
    """The types of the controller's own table."""
    for name, kind in TYPES.items():
        gpus, count = kind.accelerators or ("", 0.0)
        comes_with = {"a2-ultragpu": int(count), "a3-highgpu": 2 * int(count)}.get(name.rpartition("-")[0], 0)
        built_in = (BUILT_IN[gpus], int(count)) if gpus in BUILT_IN else None
        yield MachineType(machine_type(name), int(kind.vcpus), kind.memory_gib, built_in, comes_with)


# Types that the table lacks. A comment gives the reason why a type cannot be offered.
_NEW = (
    MachineType("a3-highgpu-1g", 26, 234, ("nvidia-h100-80gb", 1), ssds=2),
    MachineType("a3-megagpu-8g", 208, 1872, ("nvidia-h100-mega-80gb", 8), ssds=16),
    MachineType("a4-highgpu-8g", 224, 3968, ("nvidia-b200", 8), ssds=32),
    MachineType("c3-standard-8", 8, 32),
    MachineType("n2-highmem-96", 96, 768),
    MachineType("n4-standard-2", 2, 8),
    MachineType("t2d-standard-4", 4, 16),
)
NOT_OFFERED = (
    MachineType("c3-standard-4", 4, 16, more={"deprecated": {"state": "DEPRECATED"}}),
    MachineType("c4-standard-8-lssd", 8, 30, ssds=1),  # its SSDs have another price
    MachineType("e2-medium", 2, 4, more={"isSharedCpu": True}),  # for controllers only
    MachineType("e2-micro", 2, 1, more={"isSharedCpu": True}),  # shares a core
    MachineType("e2-small", 2, 2, more={"isSharedCpu": True}),  # for controllers only
    MachineType("g4-standard-48", 48, 180, ("nvidia-rtx-pro-6000", 1)),  # an unknown GPU
    MachineType("h3-standard-88", 88, 352),  # an unknown family
    MachineType("n1-ultramem-40", 40, 961),  # billed under its new name, m1
    MachineType("t2a-standard-4", 4, 16, more={"architecture": "ARM64"}),
)
_EVERYWHERE = {one.name: one for one in (*_from_table(), *NOT_OFFERED)}
_SOMEWHERE = {one.name: one for one in _NEW}
MACHINES = {**_EVERYWHERE, **_SOMEWHERE}


def machine_types(zone: str) -> list[str]:
    """Google's names of the machine types of a zone."""
    new = _SOMEWHERE if zone == NEW_ZONE else {}
    here = {**_EVERYWHERE, **new}.values()
    return sorted(one.name for one in here if zone != SMALL_ZONE or one.gpus is None)


def accelerator_types(zone: str) -> list[str]:
    """Google's names of the GPUs of a zone: those that can be attached, and those that are built in."""
    return [] if zone == SMALL_ZONE else sorted([*ATTACHABLE, *BUILT_IN.values()])


def accelerator_type(name: str, zone: str, project: str) -> dict[str, Any]:
    return {
        "kind": "compute#acceleratorType",
        "id": "10016",
        "name": name,
        "description": name.replace("-", " ").upper(),
        "zone": f"{LINKS}/projects/{project}/zones/{zone}",
        "selfLink": f"{LINKS}/projects/{project}/zones/{zone}/acceleratorTypes/{name}",
        "maximumCardsPerInstance": ATTACHABLE.get(name, 8),
    }
