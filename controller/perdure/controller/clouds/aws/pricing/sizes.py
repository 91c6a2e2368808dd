"""The EC2 types that are offered in addition to the built-in table, and their hardware as EC2 describes it.

A GPU's name and memory determine SkyPilot's name for it. Only NVIDIA's GPUs are offered, since the images contain their
driver. Types with a fraction of a GPU are not offered, since no task can request one.
docs.aws.amazon.com/AWSEC2/latest/APIReference/API_InstanceTypeInfo.html
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from perdure.controller.clouds.aws.pricing.catalog import SIZES, TYPES
from perdure.controller.clouds.pricing.region_catalog import Shape

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

# Families without accelerators that are newer than those of the table, in the same sizes.
LATER_FAMILIES = ("m7a", "m8a", "m8i", "c7a", "c8a", "c8i", "r7a", "r8a", "r8i")
PLAIN = tuple(f"{family}.{size}" for family in LATER_FAMILIES for size in SIZES)

NAMES = (*TYPES, *PLAIN, "g*", "p*")
"""The types that may be offered, by name or prefix, for a filter of EC2, which takes at most 200."""

# (EC2's name of a GPU, its memory in MiB) → SkyPilot's name.
ACCELERATORS = {
    ("T4", 16384): "T4",
    ("A10G", 22888): "A10G",
    ("L4", 22888): "L4",
    ("L40S", 45776): "L40S",
    ("V100", 16384): "V100",
    ("V100", 32768): "V100-32GB",
    ("A100", 40960): "A100",
    ("A100", 81920): "A100-80GB",
    ("H100", 81920): "H100",
    ("H200", 144384): "H200",
    ("B200", 183359): "B200",
    ("B300", 275040): "B300",
}


def is_offered(name: str) -> bool:
    """Whether a type of that name may be offered."""
    return name in TYPES or name in PLAIN or name[:1] in ("g", "p")


def fetch_shapes(ec2: EC2Client) -> dict[str, Shape]:
    """Type → hardware, of the region's types that are offered. Raises botocore's exceptions."""
    pages = ec2.get_paginator("describe_instance_types").paginate(
        Filters=[{"Name": "instance-type", "Values": list(NAMES)}]
    )
    shapes = [(str(one["InstanceType"]), shape_of(one)) for page in pages for one in page["InstanceTypes"]]
    return {name: shape for name, shape in shapes if shape is not None}


def shape_of(info: Mapping[str, Any]) -> Shape | None:
    """The hardware of an InstanceTypeInfo; None if the type is not offered."""
    name = info["InstanceType"]
    if "x86_64" not in info.get("ProcessorInfo", {}).get("SupportedArchitectures", ()):
        return None
    if info.get("BareMetal") and name not in TYPES:
        return None
    gpus = info.get("GpuInfo", {}).get("Gpus", ())
    if not gpus and name not in TYPES and name not in PLAIN:
        return None
    accelerators = _accelerators(gpus)
    if bool(gpus) != (accelerators is not None):
        return None
    return Shape(
        float(info["VCpuInfo"]["DefaultVCpus"]), info["MemoryInfo"]["SizeInMiB"] / 1024, accelerators=accelerators
    )


def _accelerators(gpus: Any) -> tuple[str, float] | None:
    if len(gpus) != 1 or gpus[0].get("Manufacturer") != "NVIDIA" or gpus[0].get("Count", 0) < 1:
        return None
    name = ACCELERATORS.get((gpus[0]["Name"], gpus[0].get("MemoryInfo", {}).get("SizeInMiB")))
    return (name, float(gpus[0]["Count"])) if name else None
