"""Which offers fit, in which order, and what users are expected if none does."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.recovery.market.fit import explain_no_fit, fits, fitted_requirement, fitting_offers, mismatches
from perdure.recovery.market.requirements import Amount, MachineRequirement
from perdure.recovery.market.view import Market, MarketView, Offer


def offer(
    place: str = "local/local-east/local-east-a",
    instance_type: str = "cpu2",
    price: float = 0.1,
    *,
    vcpus: float = 2,
    memory_gib: float = 8,
    accelerators: tuple[str, float] | None = None,
    market: Market = Market.SPOT,
) -> Offer:
    cloud, region, zone = place.split("/")
    return Offer(cloud, region, zone, instance_type, market, price, price * 3, vcpus, memory_gib, accelerators)


EAST_CPU2 = offer(price=0.01)
EAST_CPU8 = offer(instance_type="cpu8", price=0.04, vcpus=8, memory_gib=32)
EAST_V100X2 = offer("local/local-east/local-east-b", "v100x2", 0.6, vcpus=8, memory_gib=64, accelerators=("V100", 2))
WEST_V100X4 = offer("local/local-west/local-west-a", "v100x4", 1, vcpus=16, memory_gib=128, accelerators=("V100", 4))
AWS_P3 = offer("aws/us-east-1/us-east-1a", "p3.2xlarge", 0.9, vcpus=8, memory_gib=61, accelerators=("V100", 1))
AWS_P3_ON_DEMAND = replace(AWS_P3, market=Market.ON_DEMAND, price_per_hour=3.06)
AWS_P4 = offer("aws/us-east-1/us-east-1b", "p4d.24xlarge", 9.8, vcpus=96, memory_gib=1152, accelerators=("A100", 8))
AWS_M5 = replace(offer("aws/us-west-2/us-west-2a", "m5.large", 0.096), market=Market.ON_DEMAND)
OFFERS = (EAST_CPU2, EAST_CPU8, EAST_V100X2, WEST_V100X4, AWS_P3, AWS_P3_ON_DEMAND, AWS_P4, AWS_M5)


@pytest.mark.parametrize(
    ("requirement", "expected"),
    [
        (MachineRequirement(), [EAST_CPU2, EAST_CPU8]),
        (MachineRequirement(use_spot=False), [AWS_M5]),
        (MachineRequirement(cpus=Amount(8)), [EAST_CPU8]),
        (MachineRequirement(cpus=Amount(2, at_least=True)), [EAST_CPU2, EAST_CPU8]),
        (MachineRequirement(memory_gib=Amount(9, at_least=True)), [EAST_CPU8]),
        (MachineRequirement(accelerators=("V100", 1)), [AWS_P3]),
        (MachineRequirement(accelerators=("v100", 4)), [WEST_V100X4]),
        (MachineRequirement(accelerators=("A100", 4)), []),
        (MachineRequirement(accelerators=("A100", 8)), [AWS_P4]),
        (MachineRequirement(accelerators=("V100", 1), use_spot=False), [AWS_P3_ON_DEMAND]),
        (MachineRequirement(instance_type="P3.2xlarge"), [AWS_P3]),
        (MachineRequirement(cloud="AWS", region="US-EAST-1", zone="us-east-1A", accelerators=("V100", 1)), [AWS_P3]),
        (MachineRequirement(region="local-east", accelerators=("V100", 2), max_price_per_hour=0.6), [EAST_V100X2]),
        (MachineRequirement(region="local-east", accelerators=("V100", 2), max_price_per_hour=0.59), []),
    ],
)
def test_fitting_offers__of_one_requirement(requirement: MachineRequirement, expected: list[Offer]) -> None:
    assert [o for _, o in fitting_offers([requirement], OFFERS)] == expected


def test_mismatches__accelerators_must_be_required() -> None:
    assert mismatches(MachineRequirement(), AWS_P3) == ("has V100:1, not no accelerators",)


def test_mismatches__names_every_aspect() -> None:
    requirement = MachineRequirement(
        cloud="gcp", region="us", zone="us-a", cpus=Amount(4), memory_gib=Amount(16, at_least=True)
    )
    requirement = replace(
        requirement, instance_type="n1", max_price_per_hour=0.005, accelerators=("T4", 1), use_spot=False
    )
    assert mismatches(requirement, EAST_CPU2) == (
        "is spot, not on-demand",
        "has no accelerators, not T4:1",
        "cloud is local, not gcp",
        "region is local-east, not us",
        "zone is local-east-a, not us-a",
        "instance_type is cpu2, not n1",
        "has 2 vCPUs, not 4",
        "has 8 GiB of memory, not 16+",
        "costs $0.0100 an hour, above max_hourly_cost 0.005",
    )


def test_fitting_offers__orders_by_price_before_size() -> None:
    big = offer(instance_type="big", price=0.1, vcpus=64)
    assert [o for _, o in fitting_offers([MachineRequirement()], (EAST_CPU8, big, EAST_CPU2))] == [
        EAST_CPU2,
        EAST_CPU8,
        big,
    ]
    discounted = replace(big, price_per_hour=0.02)
    assert [o for _, o in fitting_offers([MachineRequirement()], (EAST_CPU8, discounted, EAST_CPU2))] == [
        EAST_CPU2,
        discounted,
        EAST_CPU8,
    ]


def test_fitting_offers__orders_by_size_at_equal_price() -> None:
    big, small, roomy = (
        offer(instance_type=f"t{i}", vcpus=v, memory_gib=m) for i, (v, m) in enumerate([(8, 8), (2, 8), (2, 16)])
    )
    assert [o for _, o in fitting_offers([MachineRequirement()], (big, roomy, small))] == [small, roomy, big]


def test_fitting_offers__uses_better_rank_of_two_alternatives() -> None:
    requirements = [MachineRequirement(rank=1), MachineRequirement(cpus=Amount(8), rank=0)]
    assert fitting_offers(requirements, OFFERS) == [(0, EAST_CPU8), (1, EAST_CPU2)]


@pytest.mark.parametrize(
    ("requirement", "expected"),
    [
        (
            MachineRequirement(accelerators=("V100", 4), region="local-east"),
            "V100:4 spot in local-east: no offer fits; closest: V100:2 in local/local-east; "
            "it is offered in local/local-west/local-west-a",
        ),
        (
            MachineRequirement(cpus=Amount(4)),
            "cpus 4 spot: no offer fits; the nearest values of cpus are 2 and 8; did you mean 4+?",
        ),
        (
            MachineRequirement(cpus=Amount(1)),
            "cpus 1 spot: no offer fits; the nearest value of cpus is 2; did you mean 1+?",
        ),
        (
            MachineRequirement(cpus=Amount(128, at_least=True)),
            "cpus 128+ spot: no offer fits; the largest value of cpus is 8",
        ),
        (
            MachineRequirement(memory_gib=Amount(16)),
            "memory 16 spot: no offer fits; the nearest values of memory are 8 and 32; did you mean 16+?",
        ),
        (MachineRequirement(accelerators=("A100", 4)), "A100:4 spot: no offer fits; closest: A100:8 in aws/us-east-1"),
        (
            MachineRequirement(accelerators=("V100", 3)),
            "V100:3 spot: no offer fits; closest: V100:2 in local/local-east, V100:4 in local/local-west, "
            "V100:1 in aws/us-east-1",
        ),
        (
            MachineRequirement(accelerators=("H100", 1)),
            "no enabled cloud offers an accelerator called H100; available: A100, V100",
        ),
        (
            MachineRequirement(accelerators=("V10", 1)),
            "no enabled cloud offers an accelerator called V10; did you mean V100?",
        ),
        (MachineRequirement(cloud="azure"), "no cloud called azure is enabled; available: aws, local"),
        (MachineRequirement(cloud="loca"), "no cloud called loca is enabled; did you mean local?"),
        (
            MachineRequirement(cloud="aws", region="us-est-1"),
            "aws has no region called us-est-1; did you mean us-east-1 or us-west-2?",
        ),
        (MachineRequirement(cloud="aws", region="local-east"), "aws has no region called local-east; local has one"),
        (
            MachineRequirement(region="us-east-1", zone="us-east-1f"),
            "no enabled cloud has any zone called us-east-1f; did you mean us-east-1b or us-east-1a?",
        ),
        (
            MachineRequirement(instance_type="p3.2xlarg"),
            "no enabled cloud has any instance type called p3.2xlarg; did you mean p3.2xlarge?",
        ),
        (
            MachineRequirement(instance_type="p3.2xlarge", max_price_per_hour=0.5),
            "p3.2xlarge spot: no offer fits; the cheapest costs $0.90 an hour, above max_hourly_cost",
        ),
        (
            MachineRequirement(instance_type="m5.large"),
            "m5.large spot: no offer fits; it is offered on-demand only, from $0.0960 an hour: set use_spot to false",
        ),
        (
            MachineRequirement(cpus=Amount(4), memory_gib=Amount(16)),
            "cpus 4 memory 16 spot: no offer fits; closest: local/local-east/local-east-a cpu2 spot "
            "has 2 vCPUs, not 4 and has 8 GiB of memory, not 16",
        ),
        (
            MachineRequirement(cloud="aws", region="us-west-2", zone="us-east-1a", use_spot=False),
            "any machine on-demand in aws/us-west-2/us-east-1a: no offer fits; "
            "it is offered in aws/us-west-2/us-west-2a",
        ),
    ],
)
def test_explain_no_fit__names_nearest_offer(requirement: MachineRequirement, expected: str) -> None:
    assert not fitting_offers([requirement], OFFERS)
    assert explain_no_fit([requirement], MarketView(OFFERS)) == (expected,)


def test_explain_no_fit__lists_disabled_clouds() -> None:
    market = MarketView(OFFERS, disabled={"gcp": "no credentials: run `gcloud auth login`", "azure": "no subscription"})
    gcp = "gcp cannot be used: no credentials: run `gcloud auth login`"
    assert explain_no_fit(
        [MachineRequirement(cloud="gcp"), MachineRequirement(cloud="GCP", cpus=Amount(4))], market
    ) == (gcp,)
    expected = explain_no_fit([MachineRequirement(accelerators=("H100", 1))], market)
    assert expected[1:] == ("not considered, because they cannot be used: azure, gcp",)
    empty = explain_no_fit([MachineRequirement()], replace(market, offers=()))
    assert empty == ("no enabled cloud offers any machine", expected[1])


# --- properties -------------------------------------------------------------------------------------------------------

prices = st.sampled_from([0.1, 0.5, 1.0, 3.0])
amounts = st.builds(Amount, st.sampled_from([2.0, 4.0, 8.0]), st.booleans())
kinds = st.sampled_from([None, ("V100", 1.0), ("V100", 4.0), ("A100", 8.0)])
offers = st.lists(
    st.builds(
        offer,
        st.sampled_from(["a/r/r1", "a/r/r2", "a/s/s1", "b/r/r1", "b/t/t1"]),
        st.sampled_from(["small", "large"]),
        prices,
        vcpus=st.sampled_from([2.0, 4.0, 8.0]),
        memory_gib=st.sampled_from([4.0, 16.0]),
        accelerators=kinds,
        market=st.sampled_from(Market),
    ),
    unique_by=lambda o: o.key,
    max_size=20,
)
requirements = st.builds(
    MachineRequirement,
    cloud=st.sampled_from([None, "a", "B", "c"]),
    region=st.sampled_from([None, "r", "T", "nowhere"]),
    zone=st.sampled_from([None, "r1", "t1", "nowhere"]),
    instance_type=st.sampled_from([None, "small", "LARGE", "huge"]),
    cpus=st.none() | amounts,
    memory_gib=st.none() | amounts,
    accelerators=st.sampled_from([None, ("v100", 1.0), ("V100", 2.0), ("H100", 1.0)]),
    use_spot=st.booleans(),
    max_price_per_hour=st.none() | prices,
    rank=st.integers(0, 2),
)


@settings(deadline=None)
@given(st.lists(requirements, min_size=1, max_size=3), offers)
def test_fitting_offers__are_those_without_mismatch(
    requirements_drawn: list[MachineRequirement], market: list[Offer]
) -> None:
    fit = fitting_offers(requirements_drawn, market)
    assert {o.key for _, o in fit} == {o.key for o in market if any(not mismatches(n, o) for n in requirements_drawn)}
    for rank, o in fit:
        assert rank == min(n.rank for n in requirements_drawn if fits(n, o))
    assert [(rank, o.price_per_hour) for rank, o in fit] == sorted((rank, o.price_per_hour) for rank, o in fit)
    assert fit == fitting_offers(requirements_drawn[::-1], market[::-1])


@settings(deadline=None)
@given(st.lists(requirements, min_size=1, max_size=3), offers)
def test_explain_no_fit__always_explains(requirements_drawn: list[MachineRequirement], market: list[Offer]) -> None:
    unsatisfiable = [n for n in requirements_drawn if not fitting_offers([n], market)]
    expected = explain_no_fit(unsatisfiable, MarketView(tuple(market), disabled={"c": "it is disabled"}))
    assert bool(expected) == bool(unsatisfiable)
    assert all(line.strip() == line and line and "None" not in line for line in expected)


def test_fitted_requirement__is_the_first_by_rank_that_fits() -> None:
    any_aws, v100, west = (
        MachineRequirement(cloud="aws", accelerators=("V100", 1), rank=1),
        MachineRequirement(accelerators=("V100", 1), rank=0),
        MachineRequirement(cloud="aws", region="us-west-2", rank=0),
    )
    assert fitted_requirement((any_aws, v100, west), AWS_P3) == 1
    assert fitted_requirement((any_aws, west), AWS_P3) == 0
    assert fitted_requirement((west,), AWS_P3) is None


def test_fitted_requirement__prefers_the_market_but_accepts_another() -> None:
    on_spot = MachineRequirement(accelerators=("V100", 1), max_price_per_hour=1.0)
    on_demand = replace(on_spot, use_spot=False, max_price_per_hour=None)
    assert fitted_requirement((on_spot, on_demand), AWS_P3_ON_DEMAND) == 1
    assert fitted_requirement((on_spot,), AWS_P3_ON_DEMAND) == 0


def test_explanation__names_clouds_that_could_not_be_asked() -> None:
    market = MarketView(OFFERS, unconfirmed={"aws": "aws could not be asked", "gcp": "gcp could not be asked"})
    assert explain_no_fit((MachineRequirement(cloud="AWS", instance_type="m5.2xlarge"),), market)[1:] == (
        "aws could not be asked",
    )
    assert len(explain_no_fit((MachineRequirement(instance_type="m5.2xlarge"),), market)) == 3
    assert "could not be asked" not in str(explain_no_fit((MachineRequirement(cloud="local", region="x"),), market))


def test_explanation__names_few_of_many_unknown_accelerators() -> None:
    needs = [MachineRequirement(accelerators=(name, 1)) for name in ("H100", "H200", "B200", "GH200")]
    (line,) = explain_no_fit(needs, MarketView(OFFERS))
    assert line == "no enabled cloud offers an accelerator called H100, H200, B200 and 1 more"


def test_explanation__is_of_the_first_alternatives() -> None:
    requirements = [MachineRequirement(cpus=Amount(1000 + i)) for i in range(1_000)]
    lines = explain_no_fit(requirements, MarketView(OFFERS))
    assert len(lines) == 51
    assert lines[-1] == "none of 950 more alternatives fits"
