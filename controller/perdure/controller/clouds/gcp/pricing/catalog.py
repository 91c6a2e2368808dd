"""A built-in table of machine types and prices, used where Google's own are unavailable (`region_prices`).

USD per hour, Linux, us-central1, from Google's public price list at the end of 2025. Prices of other regions are
estimated by a factor. Spot prices, which Google sets per region and changes at most monthly, are estimated by a share
of the on-demand price. Only x86-64, for which the controller's rclone is built. Accelerators have SkyPilot's names.

A type with built-in GPUs has Google's name. N1 machines get GPUs attached, and the name of such a type contains both
(`n1-highmem-8+v100x1`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from perdure.controller.clouds.gcp.pricing.machine_families import ATTACHED_AS
from perdure.controller.clouds.pricing.region_catalog import InstanceType, RegionCatalog


@dataclass(frozen=True)
class AttachedGpus:
    """GPUs attached to an N1 machine. `accelerator`: Google's name for them."""

    machine_type: str
    accelerator: str
    count: int


# Family → (USD per vCPU, USD per GiB, spot price ÷ on-demand price), the same for every size of a family.
RATES = {
    "e2": (0.021811, 0.002923, 0.36),
    "n1": (0.031611, 0.004237, 0.24),
    "n2": (0.031611, 0.004237, 0.25),
    "n2d": (0.027502, 0.003686, 0.23),
    "c2": (0.03398, 0.00455, 0.30),
}
# (family, shape, GiB per vCPU, vCPUs)
SIZES = (
    ("e2", "standard", 4, (2, 4, 8, 16, 32)),
    ("n2", "standard", 4, (2, 4, 8, 16, 32, 48, 64, 80)),
    ("n2", "highmem", 8, (2, 4, 8, 16, 32, 48, 64, 80)),
    ("n2", "highcpu", 1, (2, 4, 8, 16, 32, 48, 64, 80)),
    ("n2d", "standard", 4, (2, 4, 8, 16, 32, 48, 64, 96)),
    ("c2", "standard", 4, (4, 8, 16, 30, 60)),
)

# (name, vCPUs, GiB of memory, accelerator, count, USD per hour)
ACCELERATED = (
    ("g2-standard-4", 4, 16, "L4", 1, 0.706832),
    ("g2-standard-8", 8, 32, "L4", 1, 0.853624),
    ("g2-standard-12", 12, 48, "L4", 1, 1.000416),
    ("g2-standard-16", 16, 64, "L4", 1, 1.147208),
    ("g2-standard-24", 24, 96, "L4", 2, 2.000832),
    ("g2-standard-32", 32, 128, "L4", 1, 1.734376),
    ("g2-standard-48", 48, 192, "L4", 4, 4.001664),
    ("g2-standard-96", 96, 384, "L4", 8, 8.003328),
    ("a2-highgpu-1g", 12, 85, "A100", 1, 3.673385),
    ("a2-highgpu-2g", 24, 170, "A100", 2, 7.34677),
    ("a2-highgpu-4g", 48, 340, "A100", 4, 14.69354),
    ("a2-highgpu-8g", 96, 680, "A100", 8, 29.38708),
    ("a2-megagpu-16g", 96, 1360, "A100", 16, 55.739504),
    ("a2-ultragpu-1g", 12, 170, "A100-80GB", 1, 5.068798),
    ("a2-ultragpu-2g", 24, 340, "A100-80GB", 2, 10.137596),
    ("a2-ultragpu-4g", 48, 680, "A100-80GB", 4, 20.275192),
    ("a2-ultragpu-8g", 96, 1360, "A100-80GB", 8, 40.550383),
    ("a3-highgpu-8g", 208, 1872, "H100", 8, 88.490001),
)
# Accelerator → (USD per hour each, counts per N1 machine, which has 8 vCPUs and 52 GiB per accelerator).
ATTACHABLE = {
    "T4": (0.35, (1, 2, 4)),
    "P100": (1.46, (1, 2, 4)),
    "V100": (2.48, (1, 2, 4, 8)),
}
N1_VCPUS_PER_GPU = 8
N1_GIB_PER_VCPU = 6.5

# Spot price ÷ on-demand price.
GPU_SPOT_SHARES = {"L4": 0.40, "A100": 0.50, "A100-80GB": 0.50, "H100": 0.35, "T4": 0.40, "P100": 0.35, "V100": 0.35}

# On-demand price of n1-standard-1 in the region ÷ that in us-central1. Other regions count as expensive ones.
REGION_FACTORS = {
    "us-central1": 1.0,
    "us-east1": 1.0,
    "us-east4": 1.126,
    "us-west1": 1.0,
    "us-west2": 1.201,
    "us-west3": 1.201,
    "us-west4": 1.126,
    "northamerica-northeast1": 1.101,
    "southamerica-east1": 1.587,
    "europe-north1": 1.101,
    "europe-west1": 1.1,
    "europe-west2": 1.288,
    "europe-west3": 1.288,
    "europe-west4": 1.101,
    "europe-west6": 1.399,
    "asia-east1": 1.158,
    "asia-east2": 1.399,
    "asia-northeast1": 1.284,
    "asia-northeast3": 1.284,
    "asia-south1": 1.2,
    "asia-southeast1": 1.234,
    "australia-southeast1": 1.419,
}
OTHER_REGIONS_FACTOR = 1.4
CATALOG_MONTH = "2025-12"

# Region → the last letters of its zones, if they are not `a`, `b` and `c`.
ZONES = {"us-central1": "abcf", "us-east1": "bcd", "europe-west1": "bcd"}


# Of controllers: types that share cores.
HOST_TYPES = {
    kind.name: kind for kind in (InstanceType("e2-small", 2, 2, 0.016751), InstanceType("e2-medium", 2, 4, 0.033503))
}


def _types() -> Iterator[InstanceType]:
    for family, shape, gib_per_vcpu, sizes in SIZES:
        usd_per_vcpu, usd_per_gib, _ = RATES[family]
        for vcpus in sizes:
            price = vcpus * (usd_per_vcpu + gib_per_vcpu * usd_per_gib)
            yield InstanceType(f"{family}-{shape}-{vcpus}", vcpus, vcpus * gib_per_vcpu, round(price, 6))
    for name, vcpus, memory_gib, accelerator, count, price in ACCELERATED:
        yield InstanceType(name, vcpus, memory_gib, price, (accelerator, float(count)))
    usd_per_vcpu, usd_per_gib, _ = RATES["n1"]
    for accelerator, (usd_each, counts) in ATTACHABLE.items():
        for count in counts:
            vcpus = count * N1_VCPUS_PER_GPU
            price = count * usd_each + vcpus * (usd_per_vcpu + N1_GIB_PER_VCPU * usd_per_gib)
            name = f"n1-highmem-{vcpus}+{accelerator.lower()}x{count}"
            yield InstanceType(name, vcpus, vcpus * N1_GIB_PER_VCPU, round(price, 6), (accelerator, float(count)))


TYPES: dict[str, InstanceType] = {kind.name: kind for kind in _types()}


def fallback(region: str) -> RegionCatalog:
    """A catalog of the region without calling Google: every zone sells every type. Empty for an unlisted region."""
    if region not in REGION_FACTORS:
        return RegionCatalog({})
    prices: dict[str, float | None] = {name: spot_price(kind, region) for name, kind in TYPES.items()}
    return RegionCatalog({f"{region}-{suffix}": prices for suffix in ZONES.get(region, "abc")})


def machine_type(instance_type: str) -> str:
    """Google's name of the machine type, without attached GPUs."""
    return instance_type.partition("+")[0]


def attached(instance_type: str) -> AttachedGpus | None:
    """The GPUs attached to machines of this type; None if there are none."""
    machine, _, gpus = instance_type.partition("+")
    name, _, count = gpus.rpartition("x")
    google_name = ATTACHED_AS.get(name.upper())
    return AttachedGpus(machine, google_name, int(count)) if google_name and count.isdecimal() else None


def on_demand_price(kind: InstanceType, region: str) -> float:
    """USD per hour; an estimate outside us-central1."""
    return round(kind.price_per_hour * REGION_FACTORS.get(region, OTHER_REGIONS_FACTOR), 6)


def spot_price(kind: InstanceType, region: str) -> float:
    """USD per hour; an estimate everywhere."""
    family = kind.name.partition("-")[0]
    share = GPU_SPOT_SHARES[kind.accelerators[0]] if kind.accelerators else RATES[family][2]
    return round(share * on_demand_price(kind, region), 6)
