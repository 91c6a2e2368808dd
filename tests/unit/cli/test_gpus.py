"""`perdure gpus`."""

from __future__ import annotations

import json
from typing import Any

import pytest

from perdure.cli.clouds.gpus import MAX_ROWS
from perdure.controller.runtime.clock import SystemClock
from perdure.controller.store.queries.job_listing import iso
from unit.cli.commands import RunPerdure
from unit.sdk.contract_server import Controller


def gpu(
    accelerator: str,
    count: float,
    cloud: str,
    region: str,
    spot: float | None,
    on_demand: float | None,
    zones: int = 2,
    priced_at: str | None = None,
    catalog_month: str | None = None,
) -> dict[str, Any]:
    return {
        "accelerator": accelerator, "count": count, "cloud": cloud, "region": region, "instance_type": f"m{count:g}",
        "vcpus": 8.0, "memory_gib": 32.0, "zones": zones, "spot_per_hour": spot, "on_demand_per_hour": on_demand,
        "priced_at": priced_at, "catalog_month": catalog_month,
    }  # fmt: skip


@pytest.fixture
def gpu_offers(server: Controller) -> Controller:
    server.gpus = [
        gpu("A100", 1.0, "gcp", "us-central1", 1.1, 3.67),
        gpu("A100", 8.0, "aws", "us-east-1", 9.5, 32.77),
        gpu("T4", 1.0, "aws", "us-east-1", None, 0.526, zones=0),
    ]
    return server


def test_gpus__lists_each_accelerator_without_a_name(perdure: RunPerdure, gpu_offers: Controller) -> None:
    lines = perdure("gpus").stdout.splitlines()
    assert [line.split() for line in lines[:3]] == [
        ["GPU", "COUNTS", "CLOUDS", "SPOT", "$/HR", "ON-DEMAND", "$/HR"],
        ["A100", "1,", "8", "aws,", "gcp", "1.100", "3.670"],
        ["T4", "1", "aws", "-", "0.526"],
    ]
    assert "perdure gpus NAME" in lines[-2]


def test_gpus__lists_each_region_with_a_name(perdure: RunPerdure, gpu_offers: Controller) -> None:
    lines = perdure("gpus", "T4").stdout.splitlines()
    assert lines[1].split() == ["T4:1", "aws/us-east-1", "m1", "8", "32", "-", "-", "0.526"]


def test_gpus__takes_the_word_list_of_skypilot(perdure: RunPerdure, gpu_offers: Controller) -> None:
    assert perdure("gpus", "list", "T4").stdout == perdure("gpus", "T4").stdout
    assert perdure("gpus", "list").stdout == perdure("gpus").stdout
    assert perdure("gpus", "T4", "A100").exit_code == 2


def test_gpus__shows_only_the_cheapest_without_all(perdure: RunPerdure, server: Controller) -> None:
    server.gpus = [gpu("L4", 1.0, "gcp", f"region-{n}", 0.2, 0.7) for n in range(MAX_ROWS + 3)]
    assert "and 3 more" in perdure("gpus", "L4").stdout
    assert len(perdure("gpus", "L4", "--all").stdout.splitlines()) == MAX_ROWS + 5


def test_price_ages__are_shown_per_cloud(perdure: RunPerdure, server: Controller) -> None:
    old, recent = (iso(SystemClock().now() - 60 * minutes - 10) for minutes in (14, 3))
    server.gpus = [
        gpu("L4", 1.0, "aws", "us-east-1", 0.2, 0.7, priced_at=old),
        gpu("L4", 1.0, "aws", "us-west-2", 0.2, 0.7, priced_at=recent),
        gpu("L4", 1.0, "azure", "eastus", 0.2, 0.7, priced_at=old),
        gpu("L4", 1.0, "azure", "westus", 0.2, 0.7, catalog_month="2025-12"),
        gpu("L4", 1.0, "gcp", "us-east1", 0.2, 0.7, catalog_month="2025-12"),
        gpu("L4", 1.0, "local", "local", 0.2, 0.7),
    ]
    sources = "aws fetched 14m ago to 3m ago; azure fetched 14m ago, otherwise built-in table of 2025-12; "
    sources += "gcp built-in table of 2025-12; local from config.yaml"
    for words in ((), ("L4",)):
        assert perdure("gpus", *words).stdout.splitlines()[-1] == f"Prices: {sources}"


def test_gpus__prints_json(perdure: RunPerdure, gpu_offers: Controller) -> None:
    assert [one["cloud"] for one in json.loads(perdure("gpus", "-o", "json").stdout)] == ["gcp", "aws", "aws"]


def test_gpus__rejects_unavailable_and_malformed_names(perdure: RunPerdure, gpu_offers: Controller) -> None:
    unavailable = perdure("gpus", "H100", "--infra", "aws/us-east-1")
    assert (unavailable.exit_code, "no H100 available in aws/us-east-1" in unavailable.stderr) == (1, True)
    assert perdure("gpus", "A100:").exit_code == 2


def test_gpus__keeps_the_end_of_a_place_at_80_columns(perdure: RunPerdure, server: Controller) -> None:
    place = ("local", "a-region-of-a-name-that-is-far-too-long-for-eighty-columns-7")
    server.gpus = [gpu("A100", 8.0, *place, 9.5, 32.77)]
    line = perdure("gpus", "A100:8", env={"COLUMNS": "80"}).stdout.splitlines()[1]
    assert len(line) <= 80
    assert line.split()[1].startswith("…")
    assert line.split()[1].endswith("columns-7")
