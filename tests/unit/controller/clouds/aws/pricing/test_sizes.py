"""The hardware of instance types, from moto's copy of EC2's own descriptions."""

from __future__ import annotations

import json

import pytest
from moto.ec2.models.instance_types import INSTANCE_TYPES

from perdure.controller.clouds.aws.pricing import region_prices, sizes
from perdure.controller.clouds.aws.pricing.catalog import TYPES
from perdure.controller.clouds.pricing.region_catalog import InstanceType, Shape
from perdure.sdk.spec.accelerators import choices, parse

KNOWN = [kind for kind in TYPES.values() if kind.name in INSTANCE_TYPES]
T4 = {"Name": "T4", "Manufacturer": "NVIDIA", "Count": 1, "MemoryInfo": {"SizeInMiB": 16384}}


@pytest.mark.parametrize("kind", KNOWN, ids=lambda kind: kind.name)
def test_shape_of__agrees_with_the_table(kind: InstanceType) -> None:
    assert sizes.shape_of(INSTANCE_TYPES[kind.name]) == Shape(kind.vcpus, kind.memory_gib, kind.accelerators)


def test_accelerators__have_skypilots_names() -> None:
    for name in sizes.ACCELERATORS.values():
        assert choices(parse(name.lower())) == ((name, 1),)


def test_is_offered__selects_from_all_of_ec2s_types() -> None:
    shapes = {name: shape for name, info in INSTANCE_TYPES.items() if (shape := sizes.shape_of(info))}
    assert shapes.keys() <= {*TYPES, *sizes.PLAIN, *(name for name in INSTANCE_TYPES if name[0] in "gp")}
    more = {name: shape.accelerators for name, shape in shapes.items() if shape.accelerators and name not in TYPES}
    assert more == {
        "gr6.4xlarge": ("L4", 1.0),
        "gr6.8xlarge": ("L4", 1.0),
        "p5e.48xlarge": ("H200", 8.0),
        "p6-b300.48xlarge": ("B300", 8.0),
    }
    assert len(sizes.NAMES) <= 200, "a filter accepts no more values"


@pytest.mark.parametrize(
    ("changes", "shape"),
    [
        ({}, Shape(8, 32, ("T4", 1.0))),
        ({"GpuInfo": {"Gpus": [{**T4, "Count": 4}]}}, Shape(8, 32, ("T4", 4.0))),
        ({"GpuInfo": {"Gpus": [{**T4, "Count": 0}]}}, None),
        ({"GpuInfo": {"Gpus": [{**T4, "Name": "T99"}]}}, None),
        ({"GpuInfo": {"Gpus": [{**T4, "Manufacturer": "AMD"}]}}, None),
        ({"GpuInfo": {"Gpus": [T4, T4]}}, None),
        ({"GpuInfo": {}}, None),
        ({"BareMetal": True}, None),
        ({"ProcessorInfo": {"SupportedArchitectures": ["arm64"]}}, None),
        ({"InstanceType": "m6i.2xlarge", "GpuInfo": {}}, Shape(8, 32)),
    ],
)
def test_shape_of__reads_hardware(changes: dict[str, object], shape: Shape | None) -> None:
    info = {
        "InstanceType": "g99.2xlarge",
        "VCpuInfo": {"DefaultVCpus": 8},
        "MemoryInfo": {"SizeInMiB": 32768},
        "ProcessorInfo": {"SupportedArchitectures": ["i386", "x86_64"]},
        "GpuInfo": {"Gpus": [T4]},
    }
    assert sizes.shape_of({**info, **changes}) == shape


def test_parse_products__reads_hourly_prices() -> None:
    def product(name: str, *prices: tuple[str, str]) -> str:
        dimensions = {f"r{i}": {"unit": unit, "pricePerUnit": {"USD": usd}} for i, (unit, usd) in enumerate(prices)}
        terms = {"OnDemand": {"t": {"priceDimensions": dimensions}}, "Reserved": {"t": {"priceDimensions": {}}}}
        return json.dumps({"product": {"attributes": {"instanceType": name}}, "terms": terms})

    no_terms = json.dumps({"product": {"attributes": {"instanceType": "m6i.4xlarge"}}})
    info = [product("m6i.large", ("Hrs", "0.0960000000")), product("g5.xlarge", ("Quantity", "12"), ("Hrs", "0.0"))]
    others = [product("t3.micro", ("Hrs", "0.01")), product("", ("Hrs", "0.01"))]
    assert region_prices.parse_products([*info, no_terms, *others]) == {"m6i.large": 0.096}
