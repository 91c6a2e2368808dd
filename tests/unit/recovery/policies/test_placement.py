"""How policies select offers: properties over small random markets, then single decisions."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.recovery.job import TaskView
from perdure.recovery.market.cooldown import EARLY_RETRY_S, unavailable_after_launch, unavailable_after_preemption
from perdure.recovery.market.fit import explain_no_fit, fitting_offers
from perdure.recovery.market.history import History, OfferObservation, with_observation
from perdure.recovery.market.requirements import MachineRequirement
from perdure.recovery.market.unavailable import FaultKind, UnavailableOffer
from perdure.recovery.market.view import Market, MarketView, Offer
from perdure.recovery.policies.decisions import Place, Policy, Unsatisfiable, Wait
from perdure.recovery.policies.placement import REEVALUATE_S, choose
from perdure.recovery.policies.registry import STRATEGIES, get_policy
from perdure.recovery.reasons import Reason

NOW = 1_000_000.0
KINDS = {"v": ("V100", 1.0), "w": ("V100", 1.0), "a": ("A100", 1.0)}


def offer(name: str, price: float = 1.0) -> Offer:
    """`offer("aws/east/e1/v")`: an instance type is one of KINDS."""
    cloud, region, zone, kind = name.split("/")
    return Offer(cloud, region, zone, kind, Market.SPOT, price, price * 3, 8, 61, KINDS[kind])


NAMES = [
    f"{place}/{kind}"
    for place in ("aws/east/e1", "aws/east/e2", "aws/west/w1", "gcp/east/e1", "gcp/south/s1")
    for kind in KINDS
]
offers = st.lists(
    st.builds(offer, st.sampled_from(NAMES), st.sampled_from([0.5, 1.0, 2.0])),
    unique_by=lambda o: o.key,
    min_size=1,
    max_size=15,
)
requirements = st.sampled_from(
    [
        (MachineRequirement(accelerators=("V100", 1)),),
        (MachineRequirement(accelerators=("A100", 1), rank=0), MachineRequirement(accelerators=("V100", 1), rank=1)),
        (MachineRequirement(accelerators=("V100", 1)), MachineRequirement(accelerators=("A100", 1))),
        (
            MachineRequirement(cloud="aws", accelerators=("V100", 1)),
            MachineRequirement(cloud="gcp", accelerators=("A100", 1), rank=1),
        ),
        (MachineRequirement(accelerators=("V100", 1), max_price_per_hour=1.0),),
        (MachineRequirement(accelerators=("H100", 1)),),
    ]
)


@st.composite
def refusals(draw: st.DrawFn, market: list[Offer]) -> tuple[UnavailableOffer, ...]:
    """Some in force and some expired; of every scope."""
    drawn = []
    for refused in draw(st.lists(st.sampled_from(market), max_size=12)):
        at = NOW - draw(st.integers(0, 600))
        if draw(st.booleans()):
            drawn.append(unavailable_after_preemption(refused, at, cooldown_s=draw(st.sampled_from([30, 300, 1800]))))
            continue
        kind = draw(st.sampled_from([FaultKind.AVOID_ZONE] * 4 + [*FaultKind]))
        ttl = draw(st.sampled_from([0, 15, 300, 3600]))
        any_type = draw(st.booleans())
        drawn.append(
            unavailable_after_launch(refused, at, kind=kind, retry_after_s=ttl, any_instance_type=any_type, code="No")
        )
    return tuple(drawn)


@st.composite
def cases(draw: st.DrawFn) -> tuple[TaskView, MarketView]:
    market = draw(offers)
    any_offer = st.none() | st.sampled_from(market)
    task = TaskView(
        0,
        draw(requirements),
        has_run=draw(st.booleans()),
        last_offer=draw(any_offer),
        preempted_from=draw(any_offer),
        consecutive_refusals=draw(st.sampled_from([0, 0, 1, 3, 100])),
    )
    return task, MarketView(tuple(market), draw(refusals(market)))


every_policy = pytest.mark.parametrize("choose", [get_policy(name).choose for name in STRATEGIES], ids=list(STRATEGIES))


def against(o: Offer, market: MarketView, *, soft: bool = True) -> list[UnavailableOffer]:
    """Those in force that cover `o`."""
    return [r for r in market.unavailable if r.until > NOW and r.covers(o) and (soft or not r.from_preemption)]


def given_up(o: Offer, market: MarketView) -> bool:
    return any(r.kind is FaultKind.GIVE_UP and r.covers(o) for r in market.unavailable)


def free(task: TaskView, market: MarketView) -> list[tuple[int, Offer]]:
    fit = fitting_offers(task.requirements, market.offers)
    return [(rank, o) for rank, o in fit if not given_up(o, market) and not against(o, market)]


@every_policy
@settings(deadline=None, max_examples=60)
@given(case=cases())
def test_choose__places_only_fitting_available_offers(choose: Policy, case: tuple[TaskView, MarketView]) -> None:
    task, market = case
    match choose(task, market, NOW):
        case Place(offer_chosen):
            assert offer_chosen in [o for _, o in fitting_offers(task.requirements, market.offers)]
            assert not given_up(offer_chosen, market)
            assert not against(offer_chosen, market, soft=False)
            # A preempted offer is tried early only when there is nothing else.
            early = against(offer_chosen, market)
            assert not early or not free(task, market)
            assert all(NOW - r.at >= EARLY_RETRY_S for r in early)
        case Wait() | Unsatisfiable():
            assert not free(task, market)


@every_policy
@settings(deadline=None, max_examples=60)
@given(case=cases())
def test_choose__unsatisfiable_only_if_nothing_can_fit(choose: Policy, case: tuple[TaskView, MarketView]) -> None:
    task, market = case
    fit = [o for _, o in fitting_offers(task.requirements, market.offers)]
    choice = choose(task, market, NOW)
    assert isinstance(choice, Unsatisfiable) == all(given_up(o, market) for o in fit)
    if isinstance(choice, Unsatisfiable):
        assert choice.request_at_fault == bool(fit)
        assert choice.why
        assert all("No" in line for line in choice.why) or not fit
        assert fit or choice.why == explain_no_fit(task.requirements, market)


@every_policy
@settings(deadline=None, max_examples=60)
@given(case=cases())
def test_choose__wait_ends_when_an_offer_becomes_available(choose: Policy, case: tuple[TaskView, MarketView]) -> None:
    task, market = case
    choice = choose(task, market, NOW)
    if isinstance(choice, Wait):
        assert NOW < choice.until <= NOW + REEVALUATE_S
        assert choice.why
        later = choose(task, market, choice.until)
        assert isinstance(later, Place) or choice.until == NOW + REEVALUATE_S
        assert not isinstance(choose(task, market, choice.until - 0.001), Place), "an offer was available earlier"


@every_policy
@settings(deadline=None, max_examples=60)
@given(case=cases(), random=st.randoms())
def test_choose__ignores_order_of_input(choose: Policy, case: tuple[TaskView, MarketView], random: object) -> None:
    task, market = case
    shuffled_offers, shuffled_refusals = list(market.offers), list(market.unavailable)
    random.shuffle(shuffled_offers)  # type: ignore[attr-defined]
    random.shuffle(shuffled_refusals)  # type: ignore[attr-defined]
    shuffled = MarketView(tuple(shuffled_offers), tuple(shuffled_refusals))
    one, other = choose(task, market, NOW), choose(task, shuffled, NOW)
    assert type(one) is type(other)
    assert getattr(one, "offer", None) == getattr(other, "offer", None)
    assert getattr(one, "until", None) == getattr(other, "until", None)


@every_policy
@settings(deadline=None, max_examples=60)
@given(case=cases())
def test_choose__orders_by_rank_then_price(choose: Policy, case: tuple[TaskView, MarketView]) -> None:
    task, market = replace(case[0], consecutive_refusals=0), case[1]
    choice = choose(task, market, NOW)
    if not isinstance(choice, Place) or against(choice.offer, market):
        return
    candidates = free(task, market)
    rank = min(rank for rank, _ in candidates)
    same_rank = [o for r, o in candidates if r == rank]
    assert choice.offer in same_rank
    alike = [o for o in same_rank if (o.cloud, o.region) == (choice.offer.cloud, choice.offer.region)]
    if choose == get_policy("CHEAPEST").choose:
        alike = same_rank
    if task.preempted_from is None or choice.offer.zone != task.preempted_from.zone:
        alike = [o for o in alike if task.preempted_from is None or o.zone != task.preempted_from.zone]
    assert choice.offer.price_per_hour == min(o.price_per_hour for o in alike)


@settings(deadline=None)
@given(case=cases())
def test_eager_next_region__leaves_region_if_possible(case: tuple[TaskView, MarketView]) -> None:
    task, market = replace(case[0], consecutive_refusals=0), case[1]
    choice = get_policy("EAGER_NEXT_REGION").choose(task, market, NOW)
    left = task.preempted_from
    if left is None:
        assert choice == get_policy("CHEAPEST").choose(task, market, NOW)
    elif isinstance(choice, Place) and region(choice.offer) == region(left) and not against(choice.offer, market):
        candidates = free(task, market)
        rank = next(rank for rank, o in candidates if o == choice.offer)
        rivals = [o for r, o in candidates if r == rank]
        assert all(region(o) == region(left) for o in rivals)
        if choice.offer.zone == left.zone:
            assert all(o.zone == left.zone for o in rivals)


@settings(deadline=None)
@given(case=cases())
def test_failover__stays_in_region_if_possible(case: tuple[TaskView, MarketView]) -> None:
    task, market = replace(case[0], consecutive_refusals=0), case[1]
    choice = get_policy("FAILOVER").choose(task, market, NOW)
    if not task.has_run or task.last_offer is None:
        assert choice == get_policy("CHEAPEST").choose(task, market, NOW)
    elif isinstance(choice, Place) and region(choice.offer) != region(task.last_offer):
        candidates = free(task, market)
        rank = next((rank for rank, o in candidates if o == choice.offer), None)
        assert not any(region(o) == region(task.last_offer) for r, o in candidates if r == rank)


@settings(deadline=None, max_examples=60)
@given(cases())
def test_choose__puts_reluctant_offers_last_in_their_rank(case: tuple[TaskView, MarketView]) -> None:
    task, market = replace(case[0], consecutive_refusals=0), case[1]
    choice = choose(task, market, NOW, lambda o: (o.region == "east", o.zone.endswith("1")))
    if candidates := free(task, market):
        assert choice == Place(min(candidates, key=lambda c: (c[0], c[1].region == "east", c[1].zone.endswith("1")))[1])


def region(o: Offer) -> tuple[str, str]:
    return o.cloud, o.region


# --- no offer starves -------------------------------------------------------------------------------------------------


@every_policy
@settings(deadline=None, max_examples=20)
@given(
    market=offers,
    required=requirements.filter(lambda n: n[0].accelerators != ("H100", 1)),
    answers=st.lists(st.tuples(st.sampled_from([0, 1, 60, 300, 3600]), st.sampled_from([0.01, 10, 400])), min_size=60),
    preempted=st.booleans(),
)
def test_choose__starves_no_fitting_offer(
    choose: Policy,
    market: list[Offer],
    required: tuple[MachineRequirement, ...],
    answers: list[tuple[int, float]],
    preempted: bool,
) -> None:
    """Every launch is refused for a random time, by clouds of random speed, while other jobs observe offers."""
    fit = [o for _, o in fitting_offers(required, market)]
    task = TaskView(0, required, has_run=True, last_offer=market[0], preempted_from=market[0])
    known: list[UnavailableOffer] = [unavailable_after_preemption(market[0], NOW)] if preempted else []
    now, tried, history = NOW, [], History()
    passed_over: Counter[Offer] = Counter()
    for turn, (ttl, took_s) in enumerate(answers if fit else ()):
        history = with_observation(history, OfferObservation(market[turn % len(market)].key, now, available=ttl > 0))
        choice = choose(task, MarketView(tuple(market), tuple(known), history=history), now)
        while isinstance(choice, Wait):
            assert choice.until > now
            now = choice.until
            choice = choose(task, MarketView(tuple(market), tuple(known), history=history), now)
        assert isinstance(choice, Place)
        for o in fit:
            available = not any(r.until > now and r.covers(o) for r in known)
            passed_over[o] = passed_over[o] + 1 if available and o != choice.offer else 0
        assert max(passed_over.values()) < len(fit), "an offer was passed over while another one was tried twice"
        tried.append(choice.offer)
        now += took_s
        history = with_observation(history, OfferObservation(choice.offer.key, now, available=False))
        known.append(unavailable_after_launch(choice.offer, now, kind=FaultKind.AVOID_ZONE, retry_after_s=ttl))
        task = replace(task, consecutive_refusals=task.consecutive_refusals + 1)
    if fit and not preempted:
        assert set(tried[: len(fit)]) == set(fit), "one round tries every offer once"


# --- single decisions -------------------------------------------------------------------------------------------------

E1, E2 = offer("aws/east/e1/v", 1.0), offer("aws/east/e2/v", 1.2)
W1, S1 = offer("aws/west/w1/v", 1.5), offer("gcp/south/s1/v", 2.0)
ALL = (E1, E2, W1, S1)
V100 = (MachineRequirement(accelerators=("V100", 1)),)
PREEMPTED = TaskView(0, V100, has_run=True, last_offer=E1, preempted_from=E1)


def order(strategy: str, task: TaskView = PREEMPTED, *known: UnavailableOffer) -> list[Offer]:
    """The offers in the order in which they are tried if every launch is refused."""
    tried: list[Offer] = []
    refusals = list(known)
    while True:
        choice = get_policy(strategy).choose(task, MarketView(ALL, tuple(refusals)), NOW + len(tried))
        if not isinstance(choice, Place):
            return tried
        tried.append(choice.offer)
        refusals.append(unavailable_after_launch(choice.offer, NOW + len(tried), kind=FaultKind.AVOID_ZONE))
        task = replace(task, consecutive_refusals=task.consecutive_refusals + 1, last_offer=choice.offer)


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ("CHEAPEST", [E2, W1, S1]),
        ("FAILOVER", [E2, W1, S1]),
        ("EAGER_NEXT_REGION", [W1, S1, E2]),
    ],
)
def test_policies__order_after_preemption(strategy: str, expected: list[Offer]) -> None:
    assert order(strategy, PREEMPTED, unavailable_after_preemption(E1, NOW)) == expected


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_policies__order_by_price_before_first_run(strategy: str) -> None:
    assert order(strategy, TaskView(0, V100)) == [E1, E2, W1, S1]


def test_failover__stays_in_more_expensive_region() -> None:
    ran_in_south = replace(PREEMPTED, last_offer=S1, preempted_from=S1)
    assert order("FAILOVER", ran_in_south) == [S1, E1, E2, W1]


def test_failover__returns_to_its_region_after_refusal_elsewhere() -> None:
    home = offer("gcp/south/s2/v", 3.0)
    searching = replace(PREEMPTED, preempted_from=S1, last_offer=W1, consecutive_refusals=1)
    refused = unavailable_after_launch(W1, NOW, kind=FaultKind.AVOID_ZONE)
    assert get_policy("FAILOVER").choose(searching, MarketView((*ALL[:3], home), (refused,)), NOW) == Place(home)


def test_eager_next_region__prefers_other_zone_to_other_type_in_same_zone() -> None:
    same_zone = offer("aws/east/e1/w", 0.5)
    market = MarketView((E1, same_zone, E2), (unavailable_after_preemption(E1, NOW),))
    assert get_policy("EAGER_NEXT_REGION").choose(PREEMPTED, market, NOW) == Place(E2)
    assert get_policy("CHEAPEST").choose(PREEMPTED, market, NOW) == Place(same_zone)


def test_cheapest__returns_after_cooldown() -> None:
    choose, market = get_policy("CHEAPEST").choose, MarketView(ALL, (unavailable_after_preemption(E1, NOW),))
    assert choose(PREEMPTED, market, NOW + 1799) == Place(E2)
    assert choose(PREEMPTED, market, NOW + 1800) == Place(E1)


def test_choose__retries_only_offer_one_minute_after_preemption() -> None:
    choose, market = get_policy("CHEAPEST").choose, MarketView((E1,), (unavailable_after_preemption(E1, NOW),))
    choice = choose(PREEMPTED, market, NOW + 1)
    assert isinstance(choice, Wait)
    assert choice.until == NOW + EARLY_RETRY_S
    assert choose(PREEMPTED, market, choice.until) == Place(E1)


def test_choose__bad_credentials_skip_cloud_then_give_up() -> None:
    aws, gcp = (
        unavailable_after_launch(
            o, NOW, kind=FaultKind.AVOID_CLOUD, code=code, message="no", reason=Reason.BAD_CREDENTIALS
        )
        for o, code in ((E1, "AuthFailure"), (S1, "401"))
    )
    choose, long_after = get_policy("CHEAPEST").choose, NOW + 10**7
    assert choose(PREEMPTED, MarketView(ALL, (aws,)), long_after) == Place(S1)
    nothing = choose(PREEMPTED, MarketView(ALL, (aws, gcp)), long_after)
    assert nothing == Unsatisfiable(("aws: AuthFailure: no", "gcp: 401: no"), request_at_fault=True)


def test_choose__waits_for_exhausted_quota() -> None:
    quotas = tuple(unavailable_after_launch(o, NOW, kind=FaultKind.AVOID_CLOUD, code="QUOTA") for o in (E1, S1))
    choice = get_policy("CHEAPEST").choose(PREEMPTED, MarketView(ALL, quotas), NOW)
    assert isinstance(choice, Wait)


def test_wait__explains_each_offer() -> None:
    code, message = "InsufficientInstanceCapacity", "sold out"
    refused = unavailable_after_launch(E1, NOW, kind=FaultKind.AVOID_ZONE, code=code, message=message)
    market = MarketView((E1, E2), (refused, unavailable_after_preemption(E2, NOW)))
    choice = get_policy("CHEAPEST").choose(PREEMPTED, market, NOW)
    assert choice == Wait(
        NOW + 60,
        (
            "aws/east/e2 v spot: avoided for 60 s: a machine was preempted there",
            "aws/east/e1 v spot: avoided for 180 s: InsufficientInstanceCapacity: sold out",
        ),
    )


def test_wait__shortens_long_explanations() -> None:
    many = tuple(replace(E1, zone=f"z{i}") for i in range(300))
    everywhere = UnavailableOffer("aws", until=NOW + 9, kind=FaultKind.AVOID_CLOUD, at=NOW)
    choice = get_policy("CHEAPEST").choose(PREEMPTED, MarketView(many, (everywhere,)), NOW)
    assert isinstance(choice, Wait)
    assert len(choice.why) == 21
    assert choice.why[-1] == "and 280 more"
