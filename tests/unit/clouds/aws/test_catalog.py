"""The table of instance types, against what moto keeps of EC2's own DescribeInstanceTypes."""

from __future__ import annotations

import pytest
from moto.ec2.models.availability_zones_and_regions import RegionsAndZonesBackend
from moto.ec2.models.instance_types import INSTANCE_TYPES

from perdure.controller.clouds.aws.catalog import REGION_FACTORS, SPOT_SHARE, TYPES, ZONES, on_demand_price, sold
from perdure.controller.clouds.sold import InstanceType
from perdure.sdk.accelerators import choices, read

# EC2 does not tell the variants of a GPU apart by name.
VARIANTS = {"A100-80GB": "A100", "V100-32GB": "V100"}
RETIRED = {"p3.2xlarge", "p3.8xlarge", "p3.16xlarge"}


@pytest.mark.parametrize("kind", [kind for kind in TYPES.values() if kind.name not in RETIRED], ids=lambda k: k.name)
def test_sizes_are_ec2s(kind: InstanceType) -> None:
    told = INSTANCE_TYPES[kind.name]
    assert kind.vcpus == told["VCpuInfo"]["DefaultVCpus"]
    assert kind.memory_gib == told["MemoryInfo"]["SizeInMiB"] / 1024
    assert "x86_64" in told["ProcessorInfo"]["SupportedArchitectures"]
    assert "spot" in told["SupportedUsageClasses"]
    gpus = told.get("GpuInfo", {}).get("Gpus", [])
    if kind.accelerators is None:
        assert not gpus
    else:
        name, count = kind.accelerators
        assert [(gpu["Name"], gpu["Count"]) for gpu in gpus] == [(VARIANTS.get(name, name), count)]


def test_accelerators_have_the_names_that_tasks_use() -> None:
    for name in {kind.accelerators[0] for kind in TYPES.values() if kind.accelerators}:
        assert choices(read(name.lower())) == ((name, 1),)


def test_there_are_enough_to_choose_from() -> None:
    assert 60 <= len(TYPES) <= 120
    assert all(kind.price_per_hour > 0 for kind in TYPES.values())


def test_a_region_that_nobody_named_is_not_thought_cheap() -> None:
    kind = TYPES["m6i.large"]
    assert on_demand_price(kind, "us-east-1") == kind.price_per_hour == pytest.approx(0.096)
    assert on_demand_price(kind, "mars-north-1") > on_demand_price(kind, "eu-west-1")
    assert min(REGION_FACTORS.values()) == 1.0


def test_zones_are_those_that_moto_keeps_of_ec2s() -> None:
    assert ZONES.keys() == REGION_FACTORS.keys()
    for region, letters in ZONES.items():
        assert [f"{region}{letter}" for letter in letters] == [z.name for z in RegionsAndZonesBackend.zones[region]]


def test_until_a_region_has_told_all_its_zones_sell_everything() -> None:
    zones = sold("us-west-1").zones
    assert set(zones) == {"us-west-1a", "us-west-1b"}
    assert zones["us-west-1a"]["m6i.large"] == pytest.approx(SPOT_SHARE * 0.096 * 1.167, abs=1e-6)
    assert zones["us-west-1a"].keys() == TYPES.keys()
    assert sold("mars-north-1").zones == {}, "nobody knows how its zones are called"
