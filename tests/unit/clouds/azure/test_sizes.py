"""What a size is by its name, and by what Azure says of it."""

from __future__ import annotations

import pytest

from perdure.controller.clouds.azure.catalog import TYPES
from perdure.controller.clouds.azure.sizes import ACCELERATORS, accelerator, is_offered
from perdure.controller.clouds.azure.skus import shape_of
from perdure.controller.clouds.sold import Shape
from perdure.sdk.accelerators import choices, read

CAN = {"vCPUs": "8", "MemoryGB": "32", "CpuArchitectureType": "x64", "HyperVGenerations": "V1,V2"}


@pytest.mark.parametrize("kind", TYPES.values(), ids=lambda kind: kind.name)
def test_names_say_what_the_table_says(kind) -> None:
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
def test_accelerators_by_name(size: str, name: str | None) -> None:
    assert accelerator(f"Standard_{size}") == name


def test_accelerators_have_the_names_that_tasks_use() -> None:
    for _, name in ACCELERATORS:
        assert choices(read(name.lower())) == ((name, 1),)


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
def test_what_is_offered_besides_the_table(size: str, is_it: bool) -> None:
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
def test_a_shape_is_made_of_capabilities(size: str, changes: dict[str, str], shape: Shape | None) -> None:
    assert shape_of(size, {**CAN, **changes}) == shape


def test_a_size_of_which_nothing_is_said_has_none() -> None:
    assert shape_of("Standard_D8s_v6", {}) is None
