"""From resources to what the recovery engine works with."""

from __future__ import annotations

import pytest

from perdure.recovery.job import Recovery
from perdure.recovery.market import Market, Offer
from perdure.recovery.needs import Amount, Need
from perdure.sdk import Resources, Task
from perdure.sdk.needs import gpus_per_node, needs, recovery
from perdure.sdk.resources import Alternatives


def of(text: str) -> Alternatives:
    return Task.from_yaml_str(f"resources: {text}\n").resources


def test_every_field_arrives() -> None:
    text = (
        "{infra: aws/us-east-1/us-east-1a, instance_type: p3, cpus: 4, memory: 512MB+, accelerators: A100:8, "
        "use_spot: true, max_hourly_cost: 2.5}"
    )
    assert needs(of(text)) == (
        Need(
            cloud="aws",
            region="us-east-1",
            zone="us-east-1a",
            instance_type="p3",
            cpus=Amount(4),
            memory_gib=Amount(0.5, at_least=True),
            accelerators=("A100", 8),
            use_spot=True,
            max_price_per_hour=2.5,
        ),
    )


def test_on_demand_unless_spot_is_asked_for() -> None:
    assert needs(of("{}")) == (Need(use_spot=False),)
    assert needs(Resources())[0].market is Market.ON_DEMAND
    assert needs(of("{use_spot: true}"))[0].market is Market.SPOT


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{accelerators: A100:8}", ["* A100:8 0"]),
        ("{accelerators: [H100, A100:8]}", ["* H100:1 0", "* A100:8 1"]),
        ("{accelerators: {H100: 1, A100: 8}}", ["* H100:1 0", "* A100:8 0"]),
        ("{any_of: [{infra: aws}, {infra: gcp}]}", ["aws - 0", "gcp - 0"]),
        ("{ordered: [{infra: gcp}, {infra: aws}]}", ["gcp - 0", "aws - 1"]),
        (
            "{accelerators: {H100: 1, A100: 8}, any_of: [{infra: aws}, {infra: gcp}]}",
            ["aws H100:1 0", "aws A100:8 0", "gcp H100:1 0", "gcp A100:8 0"],
        ),
        (
            "{accelerators: [H100, A100:8], any_of: [{infra: aws}, {infra: gcp}]}",
            ["aws H100:1 0", "aws A100:8 1", "gcp H100:1 0", "gcp A100:8 1"],
        ),
        (
            "{accelerators: {H100: 1, A100: 8}, ordered: [{infra: aws}, {infra: gcp}]}",
            ["aws H100:1 0", "aws A100:8 0", "gcp H100:1 1", "gcp A100:8 1"],
        ),
        (
            "{accelerators: [H100, A100:8], ordered: [{infra: aws}, {infra: gcp, gpus: T4}, {infra: oci}]}",
            ["aws H100:1 0", "aws A100:8 1", "gcp T4:1 2", "oci H100:1 3", "oci A100:8 4"],
        ),
    ],
)
def test_ranks(text: str, expected: list[str]) -> None:
    def line(need: Need) -> str:
        accelerator = "{}:{}".format(*need.accelerators) if need.accelerators else "-"
        return f"{need.cloud or '*'} {accelerator} {need.rank}"

    assert [line(need) for need in needs(of(text))] == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{}", Recovery(strategy="CHEAPEST")),
        ("{job_recovery: none}", Recovery(strategy="CHEAPEST")),
        ("{job_recovery: eager_next_region}", Recovery(strategy="EAGER_NEXT_REGION")),
        (
            "{job_recovery: {strategy: failover, max_restarts_on_errors: 3, recover_on_exit_codes: [33, 34]}}",
            Recovery("FAILOVER", 3, frozenset({33, 34})),
        ),
        (
            "{job_recovery: {recover_on_exit_codes: 7}, any_of: [{infra: aws}, {infra: gcp}]}",
            Recovery("CHEAPEST", 0, frozenset({7})),
        ),
    ],
)
def test_recovery(text: str, expected: Recovery) -> None:
    assert recovery(of(text)) == expected


def test_gpus_per_node() -> None:
    assert gpus_per_node(of("{}")) == 0
    assert gpus_per_node(of("{accelerators: A100:8}")) == 8
    assert gpus_per_node(of("{accelerators: A100:0.5}")) == 1
    assert gpus_per_node(of("{accelerators: [A100:4, H100:8]}")) == 4
    offer = Offer("aws", "r", "z", "t", Market.SPOT, 1, 2, 8, 32, accelerators=("H100", 8))
    assert gpus_per_node(of("{accelerators: [A100:4, H100:8]}"), offer) == 8
    assert gpus_per_node(of("{}"), Offer("aws", "r", "z", "t", Market.SPOT, 1, 2, 8, 32)) == 0
