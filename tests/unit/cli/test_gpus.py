"""perdure gpus."""

from __future__ import annotations

import json

import pytest

from perdure.cli.gpus import ROWS
from perdure.controller.clock import SystemClock
from perdure.controller.store.queries import iso


def gpu(accelerator, count, cloud, region, spot, on_demand, zones=2, priced_at=None, table_of=None):
    return {
        "accelerator": accelerator, "count": count, "cloud": cloud, "region": region, "instance_type": f"m{count:g}",
        "vcpus": 8.0, "memory_gib": 32.0, "zones": zones, "spot_per_hour": spot, "on_demand_per_hour": on_demand,
        "priced_at": priced_at, "table_of": table_of,
    }  # fmt: skip


@pytest.fixture
def some(named):
    named.gpus = [
        gpu("A100", 1.0, "gcp", "us-central1", 1.1, 3.67),
        gpu("A100", 8.0, "aws", "us-east-1", 9.5, 32.77),
        gpu("T4", 1.0, "aws", "us-east-1", None, 0.526, zones=0),
    ]
    return named


def test_without_a_name_each_accelerator_has_a_line(perdure, some):
    lines = perdure("gpus").stdout.splitlines()
    assert [line.split() for line in lines[:3]] == [
        ["GPU", "COUNTS", "CLOUDS", "SPOT", "$/HR", "ON-DEMAND", "$/HR"],
        ["A100", "1,", "8", "aws,", "gcp", "1.100", "3.670"],
        ["T4", "1", "aws", "-", "0.526"],
    ]
    assert "perdure gpus NAME" in lines[-2]


def test_with_a_name_each_region_has_a_line(perdure, some):
    lines = perdure("gpus", "T4").stdout.splitlines()
    assert lines[1].split() == ["T4:1", "aws/us-east-1", "m1", "8", "32", "-", "-", "0.526"]


def test_the_cheapest_are_shown_unless_all_are_asked_for(perdure, named):
    named.gpus = [gpu("L4", 1.0, "gcp", f"region-{n}", 0.2, 0.7) for n in range(ROWS + 3)]
    assert "and 3 more" in perdure("gpus", "L4").stdout
    assert len(perdure("gpus", "L4", "--all").stdout.splitlines()) == ROWS + 5


def test_how_old_prices_are_is_told_of_each_cloud(perdure, named):
    long_ago, lately = (iso(SystemClock().now() - 60 * minutes - 10) for minutes in (14, 3))
    named.gpus = [
        gpu("L4", 1.0, "aws", "us-east-1", 0.2, 0.7, priced_at=long_ago),
        gpu("L4", 1.0, "aws", "us-west-2", 0.2, 0.7, priced_at=lately),
        gpu("L4", 1.0, "azure", "eastus", 0.2, 0.7, priced_at=long_ago),
        gpu("L4", 1.0, "azure", "westus", 0.2, 0.7, table_of="2025-12"),
        gpu("L4", 1.0, "gcp", "us-east1", 0.2, 0.7, table_of="2025-12"),
        gpu("L4", 1.0, "local", "local", 0.2, 0.7),
    ]
    said = "aws asked 14m ago to 3m ago; azure asked 14m ago, else of the built-in table of 2025-12; "
    said += "gcp of the built-in table of 2025-12; local as config.yaml says"
    for words in ((), ("L4",)):
        assert perdure("gpus", *words).stdout.splitlines()[-1] == f"Prices: {said}"


def test_json_for_scripts(perdure, some):
    assert [one["cloud"] for one in json.loads(perdure("gpus", "-o", "json").stdout)] == ["gcp", "aws", "aws"]


def test_what_can_not_be_had_is_said(perdure, some):
    nowhere = perdure("gpus", "H100", "--infra", "aws/us-east-1")
    assert (nowhere.exit_code, "no H100 can be had in aws/us-east-1" in nowhere.stderr) == (1, True)
    assert perdure("gpus", "A100:").exit_code == 2
