"""Families of machine types: their names in offers and on bills, and the disks that they support.

A machine is billed by its parts: vCPUs, memory, GPUs, and the local SSDs of some types. Each part is an item of
Google's price list (an SKU), identified by the words of its description: cloud.google.com/skus. Other types are offered
only if `catalog` has a price for them. Only x86-64, for which the controller's rclone is built.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Family:
    """A family of machine types."""

    #: Of the names of its types.
    prefix: str
    #: How descriptions in the price list begin, before `Core` or `Ram`; empty if the price of its GPUs includes these.
    words: tuple[str, ...]
    #: It supports no other network interface.
    needs_gvnic: bool = False
    #: The boot disks of `launch_request.DISK_TIERS` that it supports, or one that replaces them all.
    boot_disks: tuple[str, ...] = ("pd-standard", "pd-balanced", "pd-ssd")


@dataclass(frozen=True)
class Gpu:
    """A kind of GPU."""

    name: str  # SkyPilot's
    words: tuple[str, ...]  # descriptions in the price list
    is_attached: bool = False  # it is attached to N1 machines


_SSD = ("pd-balanced", "pd-ssd")
_HYPERDISK = ("hyperdisk-balanced",)

# cloud.google.com/compute/docs/machine-resource lists network interfaces and disks of each. The first match counts.
FAMILIES = (
    Family("a2-", ("A2 Instance",)),
    Family("a3-highgpu-", ("A3 Instance",), needs_gvnic=True, boot_disks=_SSD),
    Family("a3-megagpu-", ("A3Plus Instance",), needs_gvnic=True, boot_disks=_SSD),
    Family("a3-ultragpu-", ("A3Ultra Instance",), needs_gvnic=True, boot_disks=_HYPERDISK),
    Family("a4-highgpu-", (), needs_gvnic=True, boot_disks=_HYPERDISK),
    Family("c2-", ("Compute optimized", "Compute optimized Instance")),
    Family("c2d-", ("C2D AMD Instance",)),
    Family("c3-", ("C3 Instance",), needs_gvnic=True, boot_disks=_SSD),
    Family("c3d-", ("C3D Instance",), needs_gvnic=True, boot_disks=_SSD),
    Family("c4-", ("C4 Instance",), needs_gvnic=True, boot_disks=_HYPERDISK),
    Family("c4d-", ("C4D Instance",), needs_gvnic=True, boot_disks=_HYPERDISK),
    Family("e2-", ("E2 Instance",)),
    Family("g2-", ("G2 Instance",), boot_disks=_SSD),
    Family("n1-", ("N1 Predefined Instance",)),
    Family("n2-", ("N2 Instance",)),
    Family("n2d-", ("N2D AMD Instance",)),
    Family("n4-", ("N4 Instance",), needs_gvnic=True, boot_disks=_HYPERDISK),
    Family("t2d-", ("T2D AMD Instance",)),
)

# By Google's name.
GPUS = {
    "nvidia-tesla-t4": Gpu("T4", ("Nvidia Tesla T4 GPU",), is_attached=True),
    "nvidia-tesla-p4": Gpu("P4", ("Nvidia Tesla P4 GPU",), is_attached=True),
    "nvidia-tesla-p100": Gpu("P100", ("Nvidia Tesla P100 GPU",), is_attached=True),
    "nvidia-tesla-v100": Gpu("V100", ("Nvidia Tesla V100 GPU",), is_attached=True),
    "nvidia-l4": Gpu("L4", ("Nvidia L4 GPU",)),
    "nvidia-tesla-a100": Gpu("A100", ("Nvidia Tesla A100 GPU",)),
    "nvidia-a100-80gb": Gpu("A100-80GB", ("Nvidia Tesla A100 80GB GPU",)),
    "nvidia-h100-80gb": Gpu("H100", ("Nvidia H100 80GB GPU",)),
    "nvidia-h100-mega-80gb": Gpu(
        "H100-MEGA", ("Nvidia H100 80GB Mega GPU", "Nvidia H100 Mega 80GB GPU", "Nvidia H100 80GB Plus GPU")
    ),
    "nvidia-h200-141gb": Gpu("H200", ("H200 141GB GPU",)),
    "nvidia-b200": Gpu("B200", ("A4 Nvidia B200 (1 gpu slice)",)),
}
ATTACHED_AS = {gpu.name: google_name for google_name, gpu in GPUS.items() if gpu.is_attached}
# Possible numbers of attached GPUs.
ATTACHED_COUNTS = (1, 2, 4, 8)

# On demand, these are available only by reservation: cloud.google.com/compute/docs/accelerator-optimized-machines
SPOT_ONLY = ("a3-highgpu-1g", "a3-highgpu-2g", "a3-highgpu-4g", "a3-ultragpu-8g", "a4-highgpu-8g")

# Not offered: shared cores, custom sizes, bare metal, and general-purpose machines with local SSDs.
_PLAIN = re.compile(r"[a-z]\d[a-z]?-((standard|highmem|highcpu)-\d+|(high|mega|ultra)gpu-\d+g)")


def family_of(instance_type: str) -> Family | None:
    """None for a type of an unknown family."""
    return next((family for family in FAMILIES if instance_type.startswith(family.prefix)), None)


def is_plain(machine_type: str) -> bool:
    """Whether it is a size that may be offered."""
    return _PLAIN.fullmatch(machine_type) is not None and family_of(machine_type) is not None
