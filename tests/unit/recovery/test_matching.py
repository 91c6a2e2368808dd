"""Which offers fit, in which order, and what people are told when none does."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.recovery.market import Market, MarketView, Offer
from perdure.recovery.matching import fits, fitting, misfits, why_nothing_fits
from perdure.recovery.needs import Amount, Need


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
    ("need", "expected"),
    [
        (Need(), [EAST_CPU2, EAST_CPU8]),
        (Need(use_spot=False), [AWS_M5]),
        (Need(cpus=Amount(8)), [EAST_CPU8]),
        (Need(cpus=Amount(2, at_least=True)), [EAST_CPU2, EAST_CPU8]),
        (Need(memory_gib=Amount(9, at_least=True)), [EAST_CPU8]),
        (Need(accelerators=("V100", 1)), [AWS_P3]),
        (Need(accelerators=("v100", 4)), [WEST_V100X4]),
        (Need(accelerators=("A100", 4)), []),
        (Need(accelerators=("A100", 8)), [AWS_P4]),
        (Need(accelerators=("V100", 1), use_spot=False), [AWS_P3_ON_DEMAND]),
        (Need(instance_type="P3.2xlarge"), [AWS_P3]),
        (Need(cloud="AWS", region="US-EAST-1", zone="us-east-1A", accelerators=("V100", 1)), [AWS_P3]),
        (Need(region="local-east", accelerators=("V100", 2), max_price_per_hour=0.6), [EAST_V100X2]),
        (Need(region="local-east", accelerators=("V100", 2), max_price_per_hour=0.59), []),
    ],
)
def test_what_fits(need: Need, expected: list[Offer]) -> None:
    assert [o for _, o in fitting([need], OFFERS)] == expected


def test_machines_with_accelerators_are_for_those_who_ask() -> None:
    assert misfits(Need(), AWS_P3) == ("has V100:1, not no accelerators",)


def test_every_misfit_is_told() -> None:
    need = Need(cloud="gcp", region="us", zone="us-a", cpus=Amount(4), memory_gib=Amount(16, at_least=True))
    need = replace(need, instance_type="n1", max_price_per_hour=0.005, accelerators=("T4", 1), use_spot=False)
    assert misfits(need, EAST_CPU2) == (
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


def test_a_cheaper_offer_comes_first_though_it_is_bigger() -> None:
    big = offer(instance_type="big", price=0.1, vcpus=64)
    assert [o for _, o in fitting([Need()], (EAST_CPU8, big, EAST_CPU2))] == [EAST_CPU2, EAST_CPU8, big]
    sold_off = replace(big, price_per_hour=0.02)
    assert [o for _, o in fitting([Need()], (EAST_CPU8, sold_off, EAST_CPU2))] == [EAST_CPU2, sold_off, EAST_CPU8]


def test_equally_cheap_offers_come_smallest_first() -> None:
    big, small, roomy = (
        offer(instance_type=f"t{i}", vcpus=v, memory_gib=m) for i, (v, m) in enumerate([(8, 8), (2, 8), (2, 16)])
    )
    assert [o for _, o in fitting([Need()], (big, roomy, small))] == [small, roomy, big]


def test_an_offer_that_fits_two_alternatives_has_the_better_rank() -> None:
    needs = [Need(rank=1), Need(cpus=Amount(8), rank=0)]
    assert fitting(needs, OFFERS) == [(0, EAST_CPU8), (1, EAST_CPU2)]


@pytest.mark.parametrize(
    ("need", "told"),
    [
        (
            Need(accelerators=("V100", 4), region="local-east"),
            "V100:4 spot in local-east: no offer fits; closest: V100:2 in local/local-east; "
            "it is sold in local/local-west/local-west-a",
        ),
        (
            Need(cpus=Amount(4)),
            "cpus 4 spot: no offer fits; the nearest cpus to 4 exactly are 2 and 8; did you mean 4+?",
        ),
        (Need(cpus=Amount(1)), "cpus 1 spot: no offer fits; the nearest cpus to 1 exactly is 2; did you mean 1+?"),
        (Need(cpus=Amount(128, at_least=True)), "cpus 128+ spot: no offer fits; the most there is of cpus: 8"),
        (
            Need(memory_gib=Amount(16)),
            "memory 16 spot: no offer fits; the nearest memory to 16 exactly are 8 and 32; did you mean 16+?",
        ),
        (Need(accelerators=("A100", 4)), "A100:4 spot: no offer fits; closest: A100:8 in aws/us-east-1"),
        (
            Need(accelerators=("V100", 3)),
            "V100:3 spot: no offer fits; closest: V100:2 in local/local-east, V100:4 in local/local-west, "
            "V100:1 in aws/us-east-1",
        ),
        (Need(accelerators=("H100", 1)), "no enabled cloud sells an accelerator called H100; there is A100, V100"),
        (Need(accelerators=("V10", 1)), "no enabled cloud sells an accelerator called V10; did you mean V100?"),
        (Need(cloud="azure"), "no cloud called azure is enabled; there is aws, local"),
        (Need(cloud="loca"), "no cloud called loca is enabled; did you mean local?"),
        (
            Need(cloud="aws", region="us-est-1"),
            "aws has no region called us-est-1; did you mean us-east-1 or us-west-2?",
        ),
        (Need(cloud="aws", region="local-east"), "aws has no region called local-east; local has one"),
        (
            Need(region="us-east-1", zone="us-east-1f"),
            "no enabled cloud has any zone called us-east-1f; did you mean us-east-1b or us-east-1a?",
        ),
        (
            Need(instance_type="p3.2xlarg"),
            "no enabled cloud has any instance type called p3.2xlarg; did you mean p3.2xlarge?",
        ),
        (
            Need(instance_type="p3.2xlarge", max_price_per_hour=0.5),
            "p3.2xlarge spot: no offer fits; the cheapest costs $0.90 an hour, above max_hourly_cost",
        ),
        (
            Need(instance_type="m5.large"),
            "m5.large spot: no offer fits; it is sold on-demand only, from $0.0960 an hour: set use_spot to false",
        ),
        (
            Need(cpus=Amount(4), memory_gib=Amount(16)),
            "cpus 4 memory 16 spot: no offer fits; closest: local/local-east/local-east-a cpu2 spot "
            "has 2 vCPUs, not 4 and has 8 GiB of memory, not 16",
        ),
        (
            Need(cloud="aws", region="us-west-2", zone="us-east-1a", use_spot=False),
            "any machine on-demand in aws/us-west-2/us-east-1a: no offer fits; it is sold in aws/us-west-2/us-west-2a",
        ),
    ],
)
def test_people_are_told_the_nearest_thing(need: Need, told: str) -> None:
    assert not fitting([need], OFFERS)
    assert why_nothing_fits([need], MarketView(OFFERS)) == (told,)


def test_people_are_told_of_clouds_left_out() -> None:
    market = MarketView(OFFERS, disabled={"gcp": "no credentials: run `gcloud auth login`", "azure": "no subscription"})
    gcp = "gcp can not be used: no credentials: run `gcloud auth login`"
    assert why_nothing_fits([Need(cloud="gcp"), Need(cloud="GCP", cpus=Amount(4))], market) == (gcp,)
    told = why_nothing_fits([Need(accelerators=("H100", 1))], market)
    assert told[1:] == ("not looked at, since they can not be used: azure, gcp",)
    empty = why_nothing_fits([Need()], replace(market, offers=()))
    assert empty == ("no enabled cloud has anything to sell", told[1])


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
needs = st.builds(
    Need,
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
@given(st.lists(needs, min_size=1, max_size=3), offers)
def test_fitting_is_what_has_no_misfit(wanted: list[Need], market: list[Offer]) -> None:
    found = fitting(wanted, market)
    assert {o.key for _, o in found} == {o.key for o in market if any(not misfits(n, o) for n in wanted)}
    for rank, o in found:
        assert rank == min(n.rank for n in wanted if fits(n, o))
    assert [(rank, o.price_per_hour) for rank, o in found] == sorted((rank, o.price_per_hour) for rank, o in found)
    assert found == fitting(wanted[::-1], market[::-1])


@settings(deadline=None)
@given(st.lists(needs, min_size=1, max_size=3), offers)
def test_there_is_always_something_to_tell(wanted: list[Need], market: list[Offer]) -> None:
    hopeless = [n for n in wanted if not fitting([n], market)]
    told = why_nothing_fits(hopeless, MarketView(tuple(market), disabled={"c": "it is switched off"}))
    assert bool(told) == bool(hopeless)
    assert all(line.strip() == line and line and "None" not in line for line in told)
