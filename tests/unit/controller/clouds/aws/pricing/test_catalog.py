"""The built-in table of instance types, compared with moto's copy of EC2's DescribeInstanceTypes."""

from __future__ import annotations

import pytest
from moto.ec2.models.availability_zones_and_regions import RegionsAndZonesBackend
from moto.ec2.models.instance_types import INSTANCE_TYPES

from perdure.controller.clouds.aws.pricing.catalog import (
    REGION_FACTORS,
    SPOT_SHARE,
    TYPES,
    ZONES,
    fallback,
    on_demand_price,
)
from perdure.controller.clouds.pricing.region_catalog import InstanceType
from perdure.sdk.spec.accelerators import choices, parse

# EC2's names do not distinguish variants of a GPU.
VARIANTS = {"A100-80GB": "A100", "V100-32GB": "V100"}
RETIRED = {"p3.2xlarge", "p3.8xlarge", "p3.16xlarge"}


@pytest.mark.parametrize("kind", [kind for kind in TYPES.values() if kind.name not in RETIRED], ids=lambda k: k.name)
def test_types__have_ec2s_sizes(kind: InstanceType) -> None:
    info = INSTANCE_TYPES[kind.name]
    assert kind.vcpus == info["VCpuInfo"]["DefaultVCpus"]
    assert kind.memory_gib == info["MemoryInfo"]["SizeInMiB"] / 1024
    assert "x86_64" in info["ProcessorInfo"]["SupportedArchitectures"]
    assert "spot" in info["SupportedUsageClasses"]
    gpus = info.get("GpuInfo", {}).get("Gpus", [])
    if kind.accelerators is None:
        assert not gpus
    else:
        name, count = kind.accelerators
        assert [(gpu["Name"], gpu["Count"]) for gpu in gpus] == [(VARIANTS.get(name, name), count)]


def test_accelerators__have_skypilots_names() -> None:
    for name in {kind.accelerators[0] for kind in TYPES.values() if kind.accelerators}:
        assert choices(parse(name.lower())) == ((name, 1),)


def test_types__are_sufficient() -> None:
    assert 60 <= len(TYPES) <= 120
    assert all(kind.price_per_hour > 0 for kind in TYPES.values())


def test_on_demand_price__of_an_unlisted_region_is_high() -> None:
    kind = TYPES["m6i.large"]
    assert on_demand_price(kind, "us-east-1") == kind.price_per_hour == pytest.approx(0.096)
    assert on_demand_price(kind, "mars-north-1") > on_demand_price(kind, "eu-west-1")
    assert min(REGION_FACTORS.values()) == 1.0


def test_zones__are_those_of_moto() -> None:
    assert ZONES.keys() == REGION_FACTORS.keys()
    for region, letters in ZONES.items():
        assert [f"{region}{letter}" for letter in letters] == [z.name for z in RegionsAndZonesBackend.zones[region]]


def test_fallback__offers_every_type_in_every_zone() -> None:
    zones = fallback("us-west-1").zones
    assert set(zones) == {"us-west-1a", "us-west-1b"}
    assert zones["us-west-1a"]["m6i.large"] == pytest.approx(SPOT_SHARE * 0.096 * 1.167, abs=1e-6)
    assert zones["us-west-1a"].keys() == TYPES.keys()
    assert fallback("mars-north-1").zones == {}, "the names of its zones are unknown"
