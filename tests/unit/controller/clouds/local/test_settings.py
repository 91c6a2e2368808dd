"""The `local:` section: defaults, fields and errors."""

from __future__ import annotations

import pytest

from perdure.controller.clouds.local.settings import LaunchError, LocalSettings, SectionError
from perdure.recovery.market.view import Market


def test_from_mapping__defaults_to_three_zones_in_two_regions() -> None:
    settings = LocalSettings.from_mapping(None)
    assert settings == LocalSettings.from_mapping({}) == LocalSettings()
    assert [(z.region, z.name) for z in settings.zones] == [
        ("local-east", "local-east-a"),
        ("local-east", "local-east-b"),
        ("local-west", "local-west-a"),
    ]
    sizes = [(kind.name, kind.vcpus, kind.memory_gib) for kind in settings.instance_types]
    assert sizes == [(f"local-{n}", n, 4.0 * n) for n in (1, 2, 4, 8, 16, 32, 64, 96)]


def test_from_mapping__offers_accelerators_by_powers_of_two() -> None:
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


def test_from_mapping__reads_every_field() -> None:
    settings = LocalSettings.from_mapping(
        {
            "zones": {
                "here": {"region": "r", "price_factor": 2, "capacity": 3},
                "there": {
                    "region": "r",
                    "capacity": None,
                    "launch_error": {"code": "VcpuLimitExceeded", "market": "spot"},
                },
            },
            "instance_types": {"small": {"vcpus": 0.5}, "big": {"vcpus": 4, "memory_gib": 32, "price_per_hour": 1.5}},
            "default_notice_s": 2.5,
            "isolation": "processes",
        }
    )
    here, there = settings.zones
    assert (here.price_factor, here.capacity, here.launch_error) == (2.0, 3, None)
    assert there.capacity is None
    assert there.launch_error == LaunchError("VcpuLimitExceeded", "the region's quota is used up", Market.SPOT)
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
        ({"zones": {"a": {"region": "r", "launch_error": "no"}}}, "local.zones.a.launch_error"),
        ({"zones": {"a": {"region": "r", "launch_error": {"code": "Tired"}}}}, "local.zones.a.launch_error.code"),
        (
            {"zones": {"a": {"region": "r", "launch_error": {"code": "Unsupported", "market": "black"}}}},
            "local.zones.a.launch_error.market",
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
def test_from_mapping__names_an_invalid_field_with_a_fix(mapping: object, where: str) -> None:
    with pytest.raises(SectionError) as caught:
        LocalSettings.from_mapping(mapping)
    assert caught.value.where == where
    assert caught.value.fix
    assert str(caught.value).startswith(where)
