"""The `local:` section: what is sold by default, what can be said, and how a mistake is told."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.controller.clouds.local.settings import LocalSettings, Refuse, SettingsError
from perdure.recovery.market import Market


def test_nothing_said_gives_three_zones_in_two_regions() -> None:
    settings = LocalSettings.from_mapping(None)
    assert settings == LocalSettings.from_mapping({}) == LocalSettings()
    assert [(z.region, z.name) for z in settings.zones] == [
        ("local-east", "local-east-a"),
        ("local-east", "local-east-b"),
        ("local-west", "local-west-a"),
    ]
    sizes = [(kind.name, kind.vcpus, kind.memory_gib) for kind in settings.instance_types]
    assert sizes == [(f"local-{n}", n, 4.0 * n) for n in (1, 2, 4, 8, 16, 32, 64, 96)]


def test_accelerators_are_sold_by_powers_of_two_and_the_most() -> None:
    settings = LocalSettings.from_mapping({"accelerators": {"V100": 8, "A100-80GB": 3}})
    pretended = {k.name: (k.accelerators, k.vcpus, k.memory_gib) for k in settings.instance_types if k.accelerators}
    assert pretended == {
        "local-v100x1": (("V100", 1.0), 8, 64.0),
        "local-v100x2": (("V100", 2.0), 16, 128.0),
        "local-v100x4": (("V100", 4.0), 32, 256.0),
        "local-v100x8": (("V100", 8.0), 64, 512.0),
        "local-a100-80gbx1": (("A100-80GB", 1.0), 8, 64.0),
        "local-a100-80gbx2": (("A100-80GB", 2.0), 16, 128.0),
        "local-a100-80gbx3": (("A100-80GB", 3.0), 24, 192.0),
    }


def test_all_that_can_be_said() -> None:
    settings = LocalSettings.from_mapping(
        {
            "zones": {
                "here": {"region": "r", "price_factor": 2, "capacity": 3},
                "there": {"region": "r", "capacity": None, "refuse": {"code": "VcpuLimitExceeded", "market": "spot"}},
            },
            "instance_types": {"small": {"vcpus": 0.5}, "big": {"vcpus": 4, "memory_gib": 32, "price_per_hour": 1.5}},
            "default_notice_s": 2.5,
            "isolation": "processes",
        }
    )
    here, there = settings.zones
    assert (here.price_factor, here.capacity, here.refuse) == (2.0, 3, None)
    assert there.capacity is None
    assert there.refuse == Refuse("VcpuLimitExceeded", "the region's quota is used up", Market.SPOT)
    small, big = settings.instance_types
    assert (small.memory_gib, small.price_per_hour) == (2.0, 0.024)
    assert (big.memory_gib, big.price_per_hour) == (32.0, 1.5)
    assert (settings.default_notice_s, settings.isolation) == (2.5, "processes")


@pytest.mark.parametrize(
    ("mapping", "where"),
    [
        ("on", "local"),
        ({"zonez": {}}, "local.zonez"),
        ({"zones": ["a"]}, "local.zones"),
        ({"zones": {"a": {}}}, "local.zones.a"),
        ({"zones": {"a": {"region": 3}}}, "local.zones.a.region"),
        ({"zones": {"a": {"region": "r", "capacity": -1}}}, "local.zones.a.capacity"),
        ({"zones": {"a": {"region": "r", "capacity": 1.5}}}, "local.zones.a.capacity"),
        ({"zones": {"a": {"region": "r", "capacity": True}}}, "local.zones.a.capacity"),
        ({"zones": {"a": {"region": "r", "price_factor": 0}}}, "local.zones.a.price_factor"),
        ({"zones": {"a": {"region": "r", "price_factor": float("inf")}}}, "local.zones.a.price_factor"),
        ({"zones": {"a": {"region": "r", "refuse": "no"}}}, "local.zones.a.refuse"),
        ({"zones": {"a": {"region": "r", "refuse": {"code": "Tired"}}}}, "local.zones.a.refuse.code"),
        (
            {"zones": {"a": {"region": "r", "refuse": {"code": "Unsupported", "market": "black"}}}},
            "local.zones.a.refuse.market",
        ),
        ({"instance_types": {"x": {}}}, "local.instance_types.x.vcpus"),
        ({"instance_types": {"x": {"vcpus": "4"}}}, "local.instance_types.x.vcpus"),
        ({"instance_types": {"x": {"vcpus": 4, "gpus": 1}}}, "local.instance_types.x.gpus"),
        ({"accelerators": {"V100": 0}}, "local.accelerators.V100"),
        ({"accelerators": {"V100": "8"}}, "local.accelerators.V100"),
        ({"default_notice_s": -1}, "local.default_notice_s"),
        ({"isolation": "none"}, "local.isolation"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_mistake_names_its_field_and_what_to_do(mapping: Any, where: str) -> None:
    with pytest.raises(SettingsError) as caught:
        LocalSettings.from_mapping(mapping)
    assert caught.value.where == where
    assert caught.value.fix
    assert str(caught.value).startswith(where)
