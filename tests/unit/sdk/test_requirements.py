"""Conversion of resources to the types of the recovery engine."""

from __future__ import annotations

import pytest

from perdure.recovery.job import Recovery
from perdure.recovery.market.requirements import Amount, MachineRequirement
from perdure.recovery.market.view import Market, Offer
from perdure.sdk import Resources, Task
from perdure.sdk.requirements import candidates, gpus_per_node, machine_requirements, recovery
from perdure.sdk.resources import Alternatives


def of(text: str) -> Alternatives:
    return Task.from_yaml_str(f"resources: {text}\n").resources


def test_machine_requirements__include_every_field() -> None:
    text = (
        "{infra: aws/us-east-1/us-east-1a, instance_type: p3, cpus: 4, memory: 512MB+, accelerators: A100:8, "
        "use_spot: true, max_hourly_cost: 2.5}"
    )
    assert machine_requirements(of(text)) == (
        MachineRequirement(
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


def test_machine_requirements__default_to_on_demand() -> None:
    assert machine_requirements(of("{}")) == (MachineRequirement(use_spot=False),)
    assert machine_requirements(Resources())[0].market is Market.ON_DEMAND
    assert machine_requirements(of("{use_spot: true}"))[0].market is Market.SPOT


def names(text: str) -> set[str]:
    return {"{}:{}".format(*need.accelerators) for need in machine_requirements(of(text)) if need.accelerators}


def test_machine_requirements__select_gpus_by_memory() -> None:
    assert names("{accelerators: '80GB:2'}") == {"A100-80GB:2", "H100:2", "H100-MEGA:2"}
    at_least = names("{accelerators: '80GB+'}")
    assert at_least >= {"A100-80GB:1", "H100:1", "H200:1", "B200:1", "MI300X:1"}
    assert not at_least & {"A100:1", "L40S:1", "V100:1"}
    assert at_least - names("{accelerators: 'nvidia:80GB+'}") == {"MI250:1", "MI300X:1"}
    assert names("{accelerators: ['0.04TB:4', T4]}") == {"A100:4", "T4:1"}


def test_machine_requirements__rank_gpus_of_one_amount_alike() -> None:
    needs = machine_requirements(of("{accelerators: ['80GB', T4]}"))
    assert [need.rank for need in needs] == [0, 0, 0, 1]


def test_candidates__are_in_the_regions_that_have_an_image() -> None:
    options = "any_of: [{infra: aws, disk_size: 50}, {infra: '*/US-WEST-2'}]"
    text = f"{{image_id: {{us-east-1: ami-1, us-west-2: ami-2}}, {options}}}"
    found = [
        (one.requirement.cloud, one.requirement.region, one.image_id, one.option.disk_size)
        for one in candidates(of(text))
    ]
    assert found == [
        ("aws", "us-east-1", "ami-1", 50),
        ("aws", "us-west-2", "ami-2", 50),
        (None, "us-west-2", "ami-2", None),
    ]


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
def test_machine_requirements__rank_alternatives(text: str, expected: list[str]) -> None:
    def line(requirement: MachineRequirement) -> str:
        accelerator = "{}:{}".format(*requirement.accelerators) if requirement.accelerators else "-"
        return f"{requirement.cloud or '*'} {accelerator} {requirement.rank}"

    assert [line(requirement) for requirement in machine_requirements(of(text))] == expected


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
def test_recovery__from_job_recovery(text: str, expected: Recovery) -> None:
    assert recovery(of(text)) == expected


def test_gpus_per_node__counts_accelerators() -> None:
    assert gpus_per_node(of("{}")) == 0
    assert gpus_per_node(of("{accelerators: A100:8}")) == 8
    assert gpus_per_node(of("{accelerators: A100:0.5}")) == 1
    assert gpus_per_node(of("{accelerators: [A100:4, H100:8]}")) == 4
    offer = Offer("aws", "r", "z", "t", Market.SPOT, 1, 2, 8, 32, accelerators=("H100", 8))
    assert gpus_per_node(of("{accelerators: [A100:4, H100:8]}"), offer) == 8
    assert gpus_per_node(of("{}"), Offer("aws", "r", "z", "t", Market.SPOT, 1, 2, 8, 32)) == 0
