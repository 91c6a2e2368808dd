"""The built-in table of machine types and prices."""

from __future__ import annotations

import pytest

from perdure.controller.clouds.gcp.pricing.catalog import (
    ATTACHABLE,
    REGION_FACTORS,
    TYPES,
    attached,
    machine_type,
    on_demand_price,
    spot_price,
)
from perdure.controller.clouds.gcp.pricing.machine_families import GPUS
from perdure.sdk.spec.accelerators import choices, parse


def test_accelerators__have_skypilots_names() -> None:
    names = {kind.accelerators[0] for kind in TYPES.values() if kind.accelerators}
    assert {"T4", "V100", "L4", "A100", "A100-80GB", "H100"} <= names
    for name in names:
        assert choices(parse(name.lower())) == ((name, 1),)


def test_types__are_sufficient() -> None:
    assert 60 <= len(TYPES) <= 120
    assert all(0 < spot_price(kind, "us-central1") < kind.price_per_hour for kind in TYPES.values())


def test_types__include_the_price_of_attached_gpus() -> None:
    with_gpus = {name: extra for name in TYPES if (extra := attached(name)) is not None}
    assert len(with_gpus) == sum(len(counts) for _, counts in ATTACHABLE.values())
    for name, extra in with_gpus.items():
        assert machine_type(name) == extra.machine_type
        kind = TYPES[name]
        assert kind.accelerators == (GPUS[extra.accelerator].name, float(extra.count))
        usd_each, _ = ATTACHABLE[kind.accelerators[0]]
        assert kind.price_per_hour > extra.count * usd_each
    assert machine_type("g2-standard-4") == "g2-standard-4"
    # n1-highmem-8, and one V100, on Google's price list
    assert TYPES["n1-highmem-8+v100x1"].price_per_hour == pytest.approx(0.473212 + 2.48)


def test_on_demand_price__of_an_unlisted_region_is_high() -> None:
    kind = TYPES["n2-standard-8"]
    assert on_demand_price(kind, "us-central1") == kind.price_per_hour == pytest.approx(0.388472)
    assert on_demand_price(kind, "mars-north1") > on_demand_price(kind, "europe-west1")
    assert min(REGION_FACTORS.values()) == 1.0
