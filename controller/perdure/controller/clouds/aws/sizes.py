"""Which of EC2's types are offered besides those of the table, and what a type has, as EC2 describes it.

EC2 tells a GPU's name and memory; together they are one of SkyPilot's names. Only NVIDIA's: their driver is what images
bring. Types with a part of a GPU are left out: a task could ask for none of them.
docs.aws.amazon.com/AWSEC2/latest/APIReference/API_InstanceTypeInfo.html
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from perdure.controller.clouds.aws.catalog import SIZES, TYPES
from perdure.controller.clouds.sold import Shape

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

# Without accelerators: what comes after the families of the table, in the same sizes.
LATER_FAMILIES = ("m7a", "m8a", "m8i", "c7a", "c8a", "c8i", "r7a", "r8a", "r8i")
PLAIN = tuple(f"{family}.{size}" for family in LATER_FAMILIES for size in SIZES)

NAMES = (*TYPES, *PLAIN, "g*", "p*")
"""As a filter of EC2's takes them, 200 at most: the types that might be offered, by name or by how names begin."""

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
    """Whether a type of that name might be."""
    return name in TYPES or name in PLAIN or name[:1] in ("g", "p")


def of_region(ec2: EC2Client) -> dict[str, Shape]:
    """Type → what it is, of those that the region has and that are to be offered. Raises what botocore raises."""
    pages = ec2.get_paginator("describe_instance_types").paginate(
        Filters=[{"Name": "instance-type", "Values": list(NAMES)}]
    )
    told = [(str(one["InstanceType"]), shape_of(one)) for page in pages for one in page["InstanceTypes"]]
    return {name: shape for name, shape in told if shape is not None}


def shape_of(told: Mapping[str, Any]) -> Shape | None:
    """Of an InstanceTypeInfo; None for what is not to be offered."""
    name = told["InstanceType"]
    if "x86_64" not in told.get("ProcessorInfo", {}).get("SupportedArchitectures", ()):
        return None
    if told.get("BareMetal") and name not in TYPES:
        return None
    gpus = told.get("GpuInfo", {}).get("Gpus", ())
    if not gpus and name not in TYPES and name not in PLAIN:
        return None
    accelerators = _accelerators(gpus)
    if bool(gpus) != (accelerators is not None):
        return None
    return Shape(
        float(told["VCpuInfo"]["DefaultVCpus"]), told["MemoryInfo"]["SizeInMiB"] / 1024, accelerators=accelerators
    )


def _accelerators(gpus: Any) -> tuple[str, float] | None:
    if len(gpus) != 1 or gpus[0].get("Manufacturer") != "NVIDIA" or gpus[0].get("Count", 0) < 1:
        return None
    name = ACCELERATORS.get((gpus[0]["Name"], gpus[0].get("MemoryInfo", {}).get("SizeInMiB")))
    return (name, float(gpus[0]["Count"])) if name else None
