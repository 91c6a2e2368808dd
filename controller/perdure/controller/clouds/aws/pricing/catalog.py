"""A built-in table of instance types and prices, used until EC2's own are fetched (`region_prices`).

USD per hour, Linux, shared tenancy, us-east-1, from AWS's public price list at the end of 2025. Prices of other regions
are estimated by a factor, and spot prices by a share of these. Only x86-64, for which the controller's rclone is built.
Accelerators have SkyPilot's names.
"""

from __future__ import annotations

from collections.abc import Iterator

from perdure.controller.clouds.pricing.region_catalog import InstanceType, RegionCatalog

CATALOG_MONTH = "2025-12"

# Name → (GiB of memory per vCPU, USD per vCPU and hour). Both are the same for every size of a family.
FAMILIES = {
    "m6i": (4, 0.048),
    "m6a": (4, 0.0432),
    "m7i": (4, 0.0504),
    "c6i": (2, 0.0425),
    "c6a": (2, 0.03825),
    "c7i": (2, 0.044625),
    "r6i": (8, 0.063),
    "r7i": (8, 0.06615),
}
SIZES = {
    "large": 2,
    "xlarge": 4,
    "2xlarge": 8,
    "4xlarge": 16,
    "8xlarge": 32,
    "12xlarge": 48,
    "16xlarge": 64,
    "24xlarge": 96,
}

# (name, vCPUs, GiB of memory, accelerator, count, USD per hour)
ACCELERATED = (
    ("g4dn.xlarge", 4, 16, "T4", 1, 0.526),
    ("g4dn.2xlarge", 8, 32, "T4", 1, 0.752),
    ("g4dn.4xlarge", 16, 64, "T4", 1, 1.204),
    ("g4dn.8xlarge", 32, 128, "T4", 1, 2.176),
    ("g4dn.12xlarge", 48, 192, "T4", 4, 3.912),
    ("g4dn.16xlarge", 64, 256, "T4", 1, 4.352),
    ("g4dn.metal", 96, 384, "T4", 8, 7.824),
    ("g5.xlarge", 4, 16, "A10G", 1, 1.006),
    ("g5.2xlarge", 8, 32, "A10G", 1, 1.212),
    ("g5.4xlarge", 16, 64, "A10G", 1, 1.624),
    ("g5.8xlarge", 32, 128, "A10G", 1, 2.448),
    ("g5.12xlarge", 48, 192, "A10G", 4, 5.672),
    ("g5.16xlarge", 64, 256, "A10G", 1, 4.096),
    ("g5.24xlarge", 96, 384, "A10G", 4, 8.144),
    ("g5.48xlarge", 192, 768, "A10G", 8, 16.288),
    ("g6.xlarge", 4, 16, "L4", 1, 0.8048),
    ("g6.2xlarge", 8, 32, "L4", 1, 0.9776),
    ("g6.4xlarge", 16, 64, "L4", 1, 1.3232),
    ("g6.8xlarge", 32, 128, "L4", 1, 2.0144),
    ("g6.12xlarge", 48, 192, "L4", 4, 4.6016),
    ("g6.16xlarge", 64, 256, "L4", 1, 3.3968),
    ("g6.24xlarge", 96, 384, "L4", 4, 6.6752),
    ("g6.48xlarge", 192, 768, "L4", 8, 13.3504),
    ("g6e.xlarge", 4, 32, "L40S", 1, 1.861),
    ("g6e.2xlarge", 8, 64, "L40S", 1, 2.24208),
    ("g6e.4xlarge", 16, 128, "L40S", 1, 3.00424),
    ("g6e.8xlarge", 32, 256, "L40S", 1, 4.52856),
    ("g6e.12xlarge", 48, 384, "L40S", 4, 10.49264),
    ("g6e.16xlarge", 64, 512, "L40S", 1, 7.57719),
    ("g6e.24xlarge", 96, 768, "L40S", 4, 15.06559),
    ("g6e.48xlarge", 192, 1536, "L40S", 8, 30.13118),
    ("p3.2xlarge", 8, 61, "V100", 1, 3.06),
    ("p3.8xlarge", 32, 244, "V100", 4, 12.24),
    ("p3.16xlarge", 64, 488, "V100", 8, 24.48),
    ("p3dn.24xlarge", 96, 768, "V100-32GB", 8, 31.212),
    ("p4d.24xlarge", 96, 1152, "A100", 8, 21.957642),
    ("p4de.24xlarge", 96, 1152, "A100-80GB", 8, 27.447053),
    ("p5.4xlarge", 16, 256, "H100", 1, 6.88),
    ("p5.48xlarge", 192, 2048, "H100", 8, 55.04),
    ("p5en.48xlarge", 192, 2048, "H200", 8, 63.296),
    ("p6-b200.48xlarge", 192, 2048, "B200", 8, 113.9328),
)

# On-demand price of m5.large in the region ÷ that in us-east-1. Other regions count as expensive ones.
REGION_FACTORS = {
    "us-east-1": 1.0,
    "us-east-2": 1.0,
    "us-west-1": 1.167,
    "us-west-2": 1.0,
    "ca-central-1": 1.115,
    "eu-central-1": 1.198,
    "eu-north-1": 1.063,
    "eu-west-1": 1.115,
    "eu-west-2": 1.156,
    "eu-west-3": 1.167,
    "ap-northeast-1": 1.292,
    "ap-northeast-2": 1.229,
    "ap-south-1": 1.052,
    "ap-southeast-1": 1.25,
    "ap-southeast-2": 1.25,
    "sa-east-1": 1.594,
}
OTHER_REGIONS_FACTOR = 1.3

# The letters of zones, as new accounts see them. A launch in a zone that the account lacks fails, and is then avoided.
ZONES = {
    "us-east-1": "abcdef",
    "us-east-2": "abc",
    "us-west-1": "ab",
    "us-west-2": "abcd",
    "ca-central-1": "abd",
    "eu-central-1": "abc",
    "eu-north-1": "abc",
    "eu-west-1": "abc",
    "eu-west-2": "abc",
    "eu-west-3": "abc",
    "ap-northeast-1": "acd",
    "ap-northeast-2": "abcd",
    "ap-south-1": "abc",
    "ap-southeast-1": "abc",
    "ap-southeast-2": "abc",
    "sa-east-1": "abc",
}

# Spot price ÷ on-demand price: one estimate for all types.
SPOT_SHARE = 0.4


# Of controllers: types that save up CPU time while they idle. T3 types run on, at an extra charge, when it is used up.
HOST_TYPES = {
    kind.name: kind
    for kind in (
        InstanceType("t3a.small", 2, 2, 0.0188),
        InstanceType("t3.small", 2, 2, 0.0208),
        InstanceType("t3a.medium", 2, 4, 0.0376),
        InstanceType("t3.medium", 2, 4, 0.0416),
    )
}


def _types() -> Iterator[InstanceType]:
    for family, (gib_per_vcpu, usd_per_vcpu) in FAMILIES.items():
        for size, vcpus in SIZES.items():
            yield InstanceType(f"{family}.{size}", vcpus, vcpus * gib_per_vcpu, round(vcpus * usd_per_vcpu, 6))
    for name, vcpus, memory_gib, accelerator, count, price in ACCELERATED:
        yield InstanceType(name, vcpus, memory_gib, price, (accelerator, float(count)))


TYPES: dict[str, InstanceType] = {kind.name: kind for kind in _types()}


def on_demand_price(kind: InstanceType, region: str) -> float:
    """USD per hour; an estimate outside us-east-1."""
    return round(kind.price_per_hour * REGION_FACTORS.get(region, OTHER_REGIONS_FACTOR), 6)


def fallback(region: str) -> RegionCatalog:
    """A catalog of the region without calling AWS: every zone sells every type. Empty for an unlisted region."""
    spot = {name: round(SPOT_SHARE * on_demand_price(kind, region), 6) for name, kind in TYPES.items()}
    return RegionCatalog({f"{region}{suffix}": dict(spot) for suffix in ZONES.get(region, "")})
