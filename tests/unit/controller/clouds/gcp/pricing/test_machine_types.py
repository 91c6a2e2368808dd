"""Machine types as Google describes them, and their prices as sums of their parts."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.controller.clouds.gcp.machines.launch_request import DISK_TIERS
from perdure.controller.clouds.gcp.pricing import catalog
from perdure.controller.clouds.gcp.pricing.catalog import TYPES, AttachedGpus, attached, machine_type
from perdure.controller.clouds.gcp.pricing.machine_families import FAMILIES, GPUS, SPOT_ONLY, family_of, is_plain
from perdure.controller.clouds.gcp.pricing.machine_types import MachineType, parse, with_attached
from perdure.controller.clouds.gcp.pricing.region_prices import price_of
from perdure.controller.clouds.gcp.pricing.retail_prices import Item, Part
from perdure.recovery.market.view import Market
from perdure.sdk.spec.accelerators import choices
from perdure.sdk.spec.accelerators import parse as read_accelerators

SPOT, ON_DEMAND = Market.SPOT, Market.ON_DEMAND


def resource(name: str, vcpus: int, memory_mb: int, gpus: tuple[str, int] | None = None, **more: Any) -> dict[str, Any]:
    built_in = [{"guestAcceleratorType": gpus[0], "guestAcceleratorCount": gpus[1]}] if gpus else []
    return {"name": name, "guestCpus": vcpus, "memoryMb": memory_mb, "accelerators": built_in, **more}


@pytest.mark.parametrize(
    ("accelerator_type", "machine"),
    [
        (resource("n2-highmem-96", 96, 786432), MachineType("n2-highmem-96", 96, 768)),
        (resource("n1-standard-8", 8, 30720, architecture="X86_64"), MachineType("n1-standard-8", 8, 30)),
        (
            resource("a2-ultragpu-1g", 12, 174080, ("nvidia-a100-80gb", 1), bundledLocalSsds={"partitionCount": 1}),
            MachineType("a2-ultragpu-1g", 12, 170, ("nvidia-a100-80gb", 1), 375),
        ),
        (
            resource("a3-highgpu-1g", 26, 239616, ("nvidia-h100-80gb", 1), bundledLocalSsds={"partitionCount": 2}),
            MachineType("a3-highgpu-1g", 26, 234, ("nvidia-h100-80gb", 1), 750),
        ),
        (resource("a2-megagpu-16g", 96, 1392640, ("nvidia-tesla-a100", 16)), ("A100", 16.0)),
        (resource("a3-megagpu-8g", 208, 1916928, ("nvidia-h100-mega-80gb", 8)), ("H100-MEGA", 8.0)),
        (resource("a3-ultragpu-8g", 224, 3022848, ("nvidia-h200-141gb", 8)), ("H200", 8.0)),
        (resource("a4-highgpu-8g", 224, 4063232, ("nvidia-b200", 8)), ("B200", 8.0)),
    ],
    ids=lambda one: one["name"] if isinstance(one, dict) else "",
)
def test_parse__reads_a_machine_type(
    accelerator_type: dict[str, Any], machine: MachineType | tuple[str, float]
) -> None:
    (types,) = parse(accelerator_type)
    assert machine in (types, types.accelerators)


@pytest.mark.parametrize(
    "accelerator_type",
    [
        resource("e2-micro", 2, 1024, isSharedCpu=True),
        resource("f1-micro", 1, 614, isSharedCpu=True),
        resource("n2-custom-4-8192", 4, 8192),
        resource("c3-standard-192-metal", 192, 786432),
        resource("c4-standard-8-lssd", 8, 30720, bundledLocalSsds={"partitionCount": 1}),
        resource("n1-ultramem-40", 40, 984064),
        resource("t2a-standard-4", 4, 16384, architecture="ARM64"),
        resource("h3-standard-88", 88, 360448),
        resource("m3-megamem-64", 64, 999424),
        resource("a3-edgegpu-8g", 208, 1916928, ("nvidia-h100-80gb", 8)),
        resource("g4-standard-48", 48, 184320, ("nvidia-rtx-pro-6000", 1)),
        resource("n2-standard-2", 2, 8192, deprecated={"state": "DEPRECATED"}),
        {"name": "n2-standard-4"},
    ],
    ids=lambda one: one["name"],
)
def test_parse__skips_types_that_are_not_offered(accelerator_type: dict[str, Any]) -> None:
    assert not list(parse(accelerator_type))


def test_with_attached__respects_the_limits_of_the_zone() -> None:
    hosts = {f"n1-highmem-{n}": MachineType(f"n1-highmem-{n}", n, 6.5 * n) for n in (8, 16, 64)}
    v100 = {"name": "nvidia-tesla-v100", "maximumCardsPerInstance": 8}
    assert [one.name for one in with_attached(v100, hosts)] == [
        "n1-highmem-8+v100x1",
        "n1-highmem-16+v100x2",
        "n1-highmem-64+v100x8",
    ]
    (one, two) = with_attached({"name": "nvidia-tesla-p4", "maximumCardsPerInstance": 4}, hosts)
    assert (one.accelerators, two.accelerators) == (("P4", 1.0), ("P4", 2.0))
    for other in ("nvidia-l4", "nvidia-tesla-t4-vws", "ct5lp"):
        assert not list(with_attached({"name": other, "maximumCardsPerInstance": 8}, hosts))


def test_attached__is_read_from_the_name() -> None:
    assert attached("n1-highmem-16+v100x2") == AttachedGpus("n1-highmem-16", "nvidia-tesla-v100", 2)
    assert attached("n1-highmem-8+p4x1") == AttachedGpus("n1-highmem-8", "nvidia-tesla-p4", 1)
    for name in ("n2-standard-8", "n1-highmem-8", "a2-highgpu-1g", "n1-highmem-8+l4x1", "n1-highmem-8+v100x"):
        assert attached(name) is None
        assert machine_type(name) == name.partition("+")[0]


def rates(**usd: float) -> dict[Item, float]:
    """On demand; spot costs half."""
    parts = {
        "core": (Part.CORE, "a3-highgpu-"),
        "ram": (Part.RAM, "a3-highgpu-"),
        "gpu": (Part.GPU, "nvidia-h100-80gb"),
        "ssd": (Part.SSD, ""),
        "slice": (Part.GPU, "nvidia-b200"),
        "n2_core": (Part.CORE, "n2-"),
        "n2_ram": (Part.RAM, "n2-"),
    }
    return {
        Item(*parts[name], market): one * (0.5 if market is SPOT else 1.0)
        for name, one in usd.items()
        for market in Market
    }


H100 = MachineType("a3-highgpu-1g", 26, 234, ("nvidia-h100-80gb", 1), 750)
ALL = {"core": 0.03, "ram": 0.0026, "gpu": 9.8, "ssd": 0.0001}


def test_price_of__is_the_sum_of_the_parts() -> None:
    price = price_of(H100, "us-central1", rates(**ALL))
    assert price is not None
    assert price.is_listed
    assert price.on_demand == pytest.approx(26 * 0.03 + 234 * 0.0026 + 9.8 + 750 * 0.0001)
    assert price.spot == pytest.approx(price.on_demand / 2)


@pytest.mark.parametrize("missing", ALL)
def test_price_of__needs_a_price_for_every_part(missing: str) -> None:
    assert price_of(H100, "us-central1", rates(**{part: usd for part, usd in ALL.items() if part != missing})) is None


def test_price_of__a_gpu_slice_includes_the_machine() -> None:
    price = price_of(
        MachineType("a4-highgpu-8g", 224, 3968, ("nvidia-b200", 8), 12000), "us-central1", rates(slice=16.11)
    )
    assert price is not None
    assert price.on_demand == pytest.approx(8 * 16.11)


def test_price_of__marks_prices_of_the_table() -> None:
    kind = TYPES["n2-standard-8"]
    machine = MachineType(kind.name, kind.vcpus, kind.memory_gib)
    for listed_rates in ({}, rates(n2_core=0.04)):
        price = price_of(machine, "europe-west4", listed_rates)
        assert price is not None
        assert not price.is_listed
        assert price.on_demand == catalog.on_demand_price(kind, "europe-west4")
        assert price.spot == catalog.spot_price(kind, "europe-west4")
    listed_price = price_of(machine, "europe-west4", rates(n2_core=0.04, n2_ram=0.005))
    assert listed_price is not None
    assert (listed_price.on_demand, listed_price.is_listed) == (pytest.approx(0.48), True)


def test_price_of__may_have_one_market_only() -> None:
    no_spot = {item: usd for item, usd in rates(**ALL).items() if item.market is ON_DEMAND}
    price = price_of(H100, "us-central1", no_spot)
    assert price is not None
    assert price.spot is None, "a price that the table lacks is not guessed"
    assert all(is_plain(name) for name in SPOT_ONLY)


def test_family_of__distinguishes_prefixes() -> None:
    types = {name: family_of(name) for name in ("n2-standard-2", "n2d-standard-2", "a3-megagpu-8g", "a3-ultragpu-8g")}
    assert {name: one.prefix for name, one in types.items() if one} == {
        "n2-standard-2": "n2-",
        "n2d-standard-2": "n2d-",
        "a3-megagpu-8g": "a3-megagpu-",
        "a3-ultragpu-8g": "a3-ultragpu-",
    }
    for one in FAMILIES:
        assert sum(one.prefix.startswith(other.prefix) for other in FAMILIES) == 1, "no entry hides another"
        assert set(one.boot_disks) <= {*DISK_TIERS.values(), "hyperdisk-balanced"}
    assert all(is_plain(machine_type(name)) for name in TYPES), "the table has no others"


def test_gpus__have_skypilots_names() -> None:
    for gpu in GPUS.values():
        assert choices(read_accelerators(gpu.name.lower())) == ((gpu.name, 1),)
