"""The table of machine types and prices."""

from __future__ import annotations

import pytest

from perdure.controller.clouds.gcp.catalog import (
    ATTACHABLE,
    REGION_FACTORS,
    TYPES,
    attached,
    machine_type,
    on_demand_price,
    spot_price,
)
from perdure.controller.clouds.gcp.families import GPUS
from perdure.sdk.accelerators import choices, read


def test_accelerators_have_the_names_that_tasks_use() -> None:
    names = {kind.accelerators[0] for kind in TYPES.values() if kind.accelerators}
    assert {"T4", "V100", "L4", "A100", "A100-80GB", "H100"} <= names
    for name in names:
        assert choices(read(name.lower())) == ((name, 1),)


def test_there_are_enough_to_choose_from() -> None:
    assert 60 <= len(TYPES) <= 120
    assert all(0 < spot_price(kind, "us-central1") < kind.price_per_hour for kind in TYPES.values())


def test_a_machine_with_what_is_attached_to_it_costs_both() -> None:
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


def test_a_region_that_nobody_named_is_not_thought_cheap() -> None:
    kind = TYPES["n2-standard-8"]
    assert on_demand_price(kind, "us-central1") == kind.price_per_hour == pytest.approx(0.388472)
    assert on_demand_price(kind, "mars-north1") > on_demand_price(kind, "europe-west1")
    assert min(REGION_FACTORS.values()) == 1.0
