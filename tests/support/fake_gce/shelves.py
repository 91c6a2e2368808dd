"""What zones of the fake Compute Engine have: machine types and GPUs, as Google describes them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from fake_gce.operations import LINKS
from perdure.controller.clouds.gcp.catalog import TYPES, machine_type

ZONES = {
    "us-central1": ("us-central1-a", "us-central1-b", "us-central1-c", "us-central1-f"),
    "us-east4": ("us-east4-a", "us-east4-b", "us-east4-c"),
    "europe-west4": ("europe-west4-a", "europe-west4-b"),
}
SMALL_ZONE = "europe-west4-b"  # without GPUs
NEW_ZONE = "us-central1-b"  # has what no other has
ATTACHABLE = {"nvidia-tesla-t4": 4, "nvidia-tesla-p4": 4, "nvidia-tesla-p100": 4, "nvidia-tesla-v100": 8}
BUILT_IN = {
    "L4": "nvidia-l4",
    "A100": "nvidia-tesla-a100",
    "A100-80GB": "nvidia-a100-80gb",
    "H100": "nvidia-h100-80gb",
}


@dataclass(frozen=True)
class Shelved:
    """A machine type. `gpus`: Google's name for them, and how many; `ssds`: that it comes with, of 375 GiB."""

    name: str
    vcpus: int
    memory_gib: float
    gpus: tuple[str, int] | None = None
    ssds: int = 0
    more: dict[str, Any] = field(default_factory=dict)

    def to_json(self, zone: str, project: str) -> dict[str, Any]:
        told: dict[str, Any] = {
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
            told["accelerators"] = [{"guestAcceleratorType": self.gpus[0], "guestAcceleratorCount": self.gpus[1]}]
        if self.ssds:
            told["bundledLocalSsds"] = {"defaultInterface": "NVME", "partitionCount": self.ssds}
        return told


def _known() -> Iterator[Shelved]:
    """What the controller's own table has too."""
    for name, kind in TYPES.items():
        gpus, count = kind.accelerators or ("", 0.0)
        comes_with = {"a2-ultragpu": int(count), "a3-highgpu": 2 * int(count)}.get(name.rpartition("-")[0], 0)
        built_in = (BUILT_IN[gpus], int(count)) if gpus in BUILT_IN else None
        yield Shelved(machine_type(name), int(kind.vcpus), kind.memory_gib, built_in, comes_with)


# What it has not: the second word of a comment says what is the matter with those that can not be offered.
_NEW = (
    Shelved("a3-highgpu-1g", 26, 234, ("nvidia-h100-80gb", 1), ssds=2),
    Shelved("a3-megagpu-8g", 208, 1872, ("nvidia-h100-mega-80gb", 8), ssds=16),
    Shelved("a4-highgpu-8g", 224, 3968, ("nvidia-b200", 8), ssds=32),
    Shelved("c3-standard-8", 8, 32),
    Shelved("n2-highmem-96", 96, 768),
    Shelved("n4-standard-2", 2, 8),
    Shelved("t2d-standard-4", 4, 16),
)
NOT_OFFERED = (
    Shelved("c3-standard-4", 4, 16, more={"deprecated": {"state": "DEPRECATED"}}),
    Shelved("c4-standard-8-lssd", 8, 30, ssds=1),  # SSDs of another price
    Shelved("e2-micro", 2, 1, more={"isSharedCpu": True}),  # a part of a core
    Shelved("g4-standard-48", 48, 180, ("nvidia-rtx-pro-6000", 1)),  # a GPU that is not known
    Shelved("h3-standard-88", 88, 352),  # a family that is not known
    Shelved("n1-ultramem-40", 40, 961),  # is billed as what it is called now, m1
    Shelved("t2a-standard-4", 4, 16, more={"architecture": "ARM64"}),
)
_EVERYWHERE = {one.name: one for one in (*_known(), *NOT_OFFERED)}
_SOMEWHERE = {one.name: one for one in _NEW}
MACHINES = {**_EVERYWHERE, **_SOMEWHERE}


def machine_types(zone: str) -> list[str]:
    """Google's names of what is sold in the zone."""
    new = _SOMEWHERE if zone == NEW_ZONE else {}
    here = {**_EVERYWHERE, **new}.values()
    return sorted(one.name for one in here if zone != SMALL_ZONE or one.gpus is None)


def accelerator_types(zone: str) -> list[str]:
    """Of all GPUs that a zone has, those that can be attached among them."""
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
