"""Machine types as Google describes them, and what they cost by their parts."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.controller.clouds.gcp import catalog
from perdure.controller.clouds.gcp.billing import Item, Part
from perdure.controller.clouds.gcp.catalog import TYPES, Attached, attached, machine_type
from perdure.controller.clouds.gcp.families import FAMILIES, GPUS, SPOT_ONLY, family_of, is_plain
from perdure.controller.clouds.gcp.launching import DISK_TIERS
from perdure.controller.clouds.gcp.machines import Machine, read, with_attached
from perdure.controller.clouds.gcp.market import price_of
from perdure.recovery.market import Market
from perdure.sdk.accelerators import choices
from perdure.sdk.accelerators import read as read_accelerators

SPOT, ON_DEMAND = Market.SPOT, Market.ON_DEMAND


def told(name: str, vcpus: int, memory_mb: int, gpus: tuple[str, int] | None = None, **more: Any) -> dict[str, Any]:
    built_in = [{"guestAcceleratorType": gpus[0], "guestAcceleratorCount": gpus[1]}] if gpus else []
    return {"name": name, "guestCpus": vcpus, "memoryMb": memory_mb, "accelerators": built_in, **more}


@pytest.mark.parametrize(
    ("type_told", "machine"),
    [
        (told("n2-highmem-96", 96, 786432), Machine("n2-highmem-96", 96, 768)),
        (told("n1-standard-8", 8, 30720, architecture="X86_64"), Machine("n1-standard-8", 8, 30)),
        (
            told("a2-ultragpu-1g", 12, 174080, ("nvidia-a100-80gb", 1), bundledLocalSsds={"partitionCount": 1}),
            Machine("a2-ultragpu-1g", 12, 170, ("nvidia-a100-80gb", 1), 375),
        ),
        (
            told("a3-highgpu-1g", 26, 239616, ("nvidia-h100-80gb", 1), bundledLocalSsds={"partitionCount": 2}),
            Machine("a3-highgpu-1g", 26, 234, ("nvidia-h100-80gb", 1), 750),
        ),
        (told("a2-megagpu-16g", 96, 1392640, ("nvidia-tesla-a100", 16)), ("A100", 16.0)),
        (told("a3-megagpu-8g", 208, 1916928, ("nvidia-h100-mega-80gb", 8)), ("H100-MEGA", 8.0)),
        (told("a3-ultragpu-8g", 224, 3022848, ("nvidia-h200-141gb", 8)), ("H200", 8.0)),
        (told("a4-highgpu-8g", 224, 4063232, ("nvidia-b200", 8)), ("B200", 8.0)),
    ],
    ids=lambda one: one["name"] if isinstance(one, dict) else "",
)
def test_a_machine_is_read_as_google_describes_it(type_told: dict[str, Any], machine: Any) -> None:
    (found,) = read(type_told)
    assert machine in (found, found.accelerators)


@pytest.mark.parametrize(
    "type_told",
    [
        told("e2-micro", 2, 1024, isSharedCpu=True),
        told("f1-micro", 1, 614, isSharedCpu=True),
        told("n2-custom-4-8192", 4, 8192),
        told("c3-standard-192-metal", 192, 786432),
        told("c4-standard-8-lssd", 8, 30720, bundledLocalSsds={"partitionCount": 1}),
        told("n1-ultramem-40", 40, 984064),
        told("t2a-standard-4", 4, 16384, architecture="ARM64"),
        told("h3-standard-88", 88, 360448),
        told("m3-megamem-64", 64, 999424),
        told("a3-edgegpu-8g", 208, 1916928, ("nvidia-h100-80gb", 8)),
        told("g4-standard-48", 48, 184320, ("nvidia-rtx-pro-6000", 1)),
        told("n2-standard-2", 2, 8192, deprecated={"state": "DEPRECATED"}),
        {"name": "n2-standard-4"},
    ],
    ids=lambda one: one["name"],
)
def test_what_is_not_offered(type_told: dict[str, Any]) -> None:
    assert not list(read(type_told))


def test_gpus_are_attached_to_what_a_zone_has_and_no_more_than_it_may_have() -> None:
    hosts = {f"n1-highmem-{n}": Machine(f"n1-highmem-{n}", n, 6.5 * n) for n in (8, 16, 64)}
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


def test_what_is_attached_is_in_the_name() -> None:
    assert attached("n1-highmem-16+v100x2") == Attached("n1-highmem-16", "nvidia-tesla-v100", 2)
    assert attached("n1-highmem-8+p4x1") == Attached("n1-highmem-8", "nvidia-tesla-p4", 1)
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


H100 = Machine("a3-highgpu-1g", 26, 234, ("nvidia-h100-80gb", 1), 750)
ALL = {"core": 0.03, "ram": 0.0026, "gpu": 9.8, "ssd": 0.0001}


def test_a_machine_costs_what_its_parts_do() -> None:
    price = price_of(H100, "us-central1", rates(**ALL))
    assert price is not None
    assert price.is_told
    assert price.on_demand == pytest.approx(26 * 0.03 + 234 * 0.0026 + 9.8 + 750 * 0.0001)
    assert price.spot == pytest.approx(price.on_demand / 2)


@pytest.mark.parametrize("missing", ALL)
def test_without_one_of_its_parts_it_has_no_price(missing: str) -> None:
    assert price_of(H100, "us-central1", rates(**{part: usd for part, usd in ALL.items() if part != missing})) is None


def test_a_slice_holds_the_machine_around_the_gpu() -> None:
    price = price_of(Machine("a4-highgpu-8g", 224, 3968, ("nvidia-b200", 8), 12000), "us-central1", rates(slice=16.11))
    assert price is not None
    assert price.on_demand == pytest.approx(8 * 16.11)


def test_the_table_stands_in_and_is_told_from_the_price_list() -> None:
    kind = TYPES["n2-standard-8"]
    machine = Machine(kind.name, kind.vcpus, kind.memory_gib)
    for told_rates in ({}, rates(n2_core=0.04)):
        price = price_of(machine, "europe-west4", told_rates)
        assert price is not None
        assert not price.is_told
        assert price.on_demand == catalog.on_demand_price(kind, "europe-west4")
        assert price.spot == catalog.spot_price(kind, "europe-west4")
    told_price = price_of(machine, "europe-west4", rates(n2_core=0.04, n2_ram=0.005))
    assert told_price is not None
    assert (told_price.on_demand, told_price.is_told) == (pytest.approx(0.48), True)


def test_what_is_sold_as_spot_alone_and_on_demand_alone() -> None:
    no_spot = {item: usd for item, usd in rates(**ALL).items() if item.market is ON_DEMAND}
    price = price_of(H100, "us-central1", no_spot)
    assert price is not None
    assert price.spot is None, "the table does not know it, so it is not guessed"
    assert all(is_plain(name) for name in SPOT_ONLY)


def test_families_are_told_apart() -> None:
    found = {name: family_of(name) for name in ("n2-standard-2", "n2d-standard-2", "a3-megagpu-8g", "a3-ultragpu-8g")}
    assert {name: one.prefix for name, one in found.items() if one} == {
        "n2-standard-2": "n2-",
        "n2d-standard-2": "n2d-",
        "a3-megagpu-8g": "a3-megagpu-",
        "a3-ultragpu-8g": "a3-ultragpu-",
    }
    for one in FAMILIES:
        assert sum(one.prefix.startswith(other.prefix) for other in FAMILIES) == 1, "none hides another"
        assert set(one.takes) <= {*DISK_TIERS.values(), "hyperdisk-balanced"}
    assert all(is_plain(machine_type(name)) for name in TYPES), "the table knows no other"


def test_gpus_have_the_names_that_tasks_use() -> None:
    for gpu in GPUS.values():
        assert choices(read_accelerators(gpu.name.lower())) == ((gpu.name, 1),)
