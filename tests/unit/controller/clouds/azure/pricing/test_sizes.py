"""The accelerators of a size from its name, and its hardware from its capabilities."""

from __future__ import annotations

import pytest

from perdure.controller.clouds.azure.pricing.catalog import TYPES
from perdure.controller.clouds.azure.pricing.sizes import ACCELERATORS, accelerator, is_offered
from perdure.controller.clouds.azure.pricing.skus import shape_of
from perdure.controller.clouds.pricing.region_catalog import InstanceType, Shape
from perdure.sdk.spec.accelerators import choices, parse

CAN = {"vCPUs": "8", "MemoryGB": "32", "CpuArchitectureType": "x64", "HyperVGenerations": "V1,V2"}


@pytest.mark.parametrize("kind", TYPES.values(), ids=lambda kind: kind.name)
def test_accelerator__agrees_with_the_table(kind: InstanceType) -> None:
    assert accelerator(kind.name) == (kind.accelerators[0] if kind.accelerators else None)
    assert is_offered(kind.name)


@pytest.mark.parametrize(
    ("size", "name"),
    [
        ("NC6s_v3", "V100"),
        ("NC24rs_v3", "V100"),
        ("ND40rs_v2", "V100-32GB"),
        ("NC64as_T4_v3", "T4"),
        ("NV36adms_A10_v5", "A10"),
        ("ND96ams_A100_v4", "A100-80GB"),
        ("NC80adis_H100_v5", "H100"),
        ("ND96isrf_H100_v5", "H100"),
        ("ND96isr_H200_v5", "H200"),
        *((part, None) for part in ("NV6ads_A10_v5", "NV12ads_A10_v5", "NV18ads_A10_v5")),
        *((other, None) for other in ("ND96isr_MI300X_v5", "NCC40ads_H100_v5", "NG8ads_V620_v1", "NC6", "D4s_v6", "")),
    ],
)
def test_accelerator__is_read_from_the_name(size: str, name: str | None) -> None:
    assert accelerator(f"Standard_{size}") == name


def test_accelerator__has_skypilots_name() -> None:
    for _, name in ACCELERATORS:
        assert choices(parse(name.lower())) == ((name, 1),)


@pytest.mark.parametrize(
    ("size", "is_it"),
    [
        ("D8s_v6", True),
        ("E16as_v7", True),
        ("F8as_v6", True),
        ("NC12s_v3", True),
        ("D4ps_v6", False),
        ("E8-4as_v6", False),
        ("D8s_v4", False),
        ("M8ms", False),
        ("B2s_v2", False),
        ("NC40ads_H100_v5", True),
        ("NV6ads_A10_v5", False),
    ],
)
def test_is_offered__includes_sizes_outside_the_table(size: str, is_it: bool) -> None:
    assert is_offered(f"Standard_{size}") == is_it


@pytest.mark.parametrize(
    ("size", "changes", "shape"),
    [
        ("Standard_D8s_v6", {}, Shape(8, 32)),
        ("Standard_D8s_v6", {"vCPUsAvailable": "4"}, Shape(4, 32)),
        ("Standard_D8s_v6", {"MemoryGB": "0.75", "GPUs": "0"}, Shape(8, 0.75)),
        ("Standard_NC12s_v3", {"GPUs": "2"}, Shape(8, 32, ("V100", 2.0))),
        ("Standard_NC12s_v3", {}, None),
        ("Standard_D8s_v6", {"GPUs": "1"}, None),
        ("Standard_D8s_v6", {"MemoryGB": "many"}, None),
        ("Standard_D8s_v6", {"MemoryGB": "0"}, None),
        ("Standard_D8s_v6", {"vCPUs": ""}, None),
        ("Standard_D8s_v6", {"CpuArchitectureType": "Arm64"}, None),
        ("Standard_D8s_v6", {"HyperVGenerations": "V1"}, None),
    ],
)
def test_shape_of__reads_capabilities(size: str, changes: dict[str, str], shape: Shape | None) -> None:
    assert shape_of(size, {**CAN, **changes}) == shape


def test_shape_of__is_none_without_capabilities() -> None:
    assert shape_of("Standard_D8s_v6", {}) is None
