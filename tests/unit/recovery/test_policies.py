"""What every strategy promises, whatever the market: properties over small random markets, then single decisions."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.recovery.history import History, Sighting, learn
from perdure.recovery.job import TaskView
from perdure.recovery.market import FaultKind, Market, MarketView, Offer, Refusal
from perdure.recovery.matching import fitting, why_nothing_fits
from perdure.recovery.needs import Need
from perdure.recovery.policies.choice import Never, Place, Policy, Wait
from perdure.recovery.policies.cooldown import EARLY_RETRY_S, launch_refusal, preemption_refusal
from perdure.recovery.policies.registry import DEFAULT, STRATEGIES, UnknownStrategy, policy
from perdure.recovery.policies.selection import LOOK_AGAIN_S, RefusalIndex, choose
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
needs = st.sampled_from(
    [
        (Need(accelerators=("V100", 1)),),
        (Need(accelerators=("A100", 1), rank=0), Need(accelerators=("V100", 1), rank=1)),
        (Need(accelerators=("V100", 1)), Need(accelerators=("A100", 1))),
        (Need(cloud="aws", accelerators=("V100", 1)), Need(cloud="gcp", accelerators=("A100", 1), rank=1)),
        (Need(accelerators=("V100", 1), max_price_per_hour=1.0),),
        (Need(accelerators=("H100", 1)),),
    ]
)


@st.composite
def refusals(draw: st.DrawFn, market: list[Offer]) -> tuple[Refusal, ...]:
    """Some in force and some run out; of every scope."""
    found = []
    for refused in draw(st.lists(st.sampled_from(market), max_size=12)):
        at = NOW - draw(st.integers(0, 600))
        if draw(st.booleans()):
            found.append(preemption_refusal(refused, at, cooldown_s=draw(st.sampled_from([30, 300, 1800]))))
            continue
        kinds = [FaultKind.AVOID_ZONE] * 4 + [*FaultKind]
        kind = draw(st.sampled_from(kinds))
        ttl = draw(st.sampled_from([0, 15, 300, 3600]))
        wide = draw(st.booleans())
        found.append(launch_refusal(refused, at, kind=kind, retry_after_s=ttl, any_instance_type=wide, code="No"))
    return tuple(found)


@st.composite
def cases(draw: st.DrawFn) -> tuple[TaskView, MarketView]:
    market = draw(offers)
    somewhere = st.none() | st.sampled_from(market)
    task = TaskView(
        0,
        draw(needs),
        has_run=draw(st.booleans()),
        last_offer=draw(somewhere),
        preempted_from=draw(somewhere),
        refused_in_a_row=draw(st.sampled_from([0, 0, 1, 3, 100])),
    )
    return task, MarketView(tuple(market), draw(refusals(market)))


every_policy = pytest.mark.parametrize("choose", [policy(name).choose for name in STRATEGIES], ids=list(STRATEGIES))


def against(o: Offer, market: MarketView, *, soft: bool = True) -> list[Refusal]:
    """Refusals in force that cover `o`."""
    return [r for r in market.refusals if r.until > NOW and r.covers(o) and (soft or not r.from_preemption)]


def given_up(o: Offer, market: MarketView) -> bool:
    return any(r.kind is FaultKind.GIVE_UP and r.covers(o) for r in market.refusals)


def free(task: TaskView, market: MarketView) -> list[tuple[int, Offer]]:
    fit = fitting(task.needs, market.offers)
    return [(rank, o) for rank, o in fit if not given_up(o, market) and not against(o, market)]


@every_policy
@settings(deadline=None, max_examples=60)
@given(case=cases())
def test_what_is_placed_fits_and_was_not_refused(choose: Policy, case: tuple[TaskView, MarketView]) -> None:
    task, market = case
    match choose(task, market, NOW):
        case Place(placed):
            assert placed in [o for _, o in fitting(task.needs, market.offers)]
            assert not given_up(placed, market)
            assert not against(placed, market, soft=False)
            # An offer that took a machine back is tried early only when there is nothing else.
            early = against(placed, market)
            assert not early or not free(task, market)
            assert all(NOW - r.at >= EARLY_RETRY_S for r in early)
        case Wait() | Never():
            assert not free(task, market)


@every_policy
@settings(deadline=None, max_examples=60)
@given(case=cases())
def test_never_is_said_only_of_what_can_not_be(choose: Policy, case: tuple[TaskView, MarketView]) -> None:
    task, market = case
    fit = [o for _, o in fitting(task.needs, market.offers)]
    choice = choose(task, market, NOW)
    assert isinstance(choice, Never) == all(given_up(o, market) for o in fit)
    if isinstance(choice, Never):
        assert choice.is_request == bool(fit)
        assert choice.why
        assert all("No" in line for line in choice.why) or not fit
        assert fit or choice.why == why_nothing_fits(task.needs, market)


@every_policy
@settings(deadline=None, max_examples=60)
@given(case=cases())
def test_a_wait_ends_in_a_try(choose: Policy, case: tuple[TaskView, MarketView]) -> None:
    task, market = case
    choice = choose(task, market, NOW)
    if isinstance(choice, Wait):
        assert NOW < choice.until <= NOW + LOOK_AGAIN_S
        assert choice.why
        later = choose(task, market, choice.until)
        assert isinstance(later, Place) or choice.until == NOW + LOOK_AGAIN_S
        assert not isinstance(choose(task, market, choice.until - 0.001), Place), "it could have been tried earlier"


@every_policy
@settings(deadline=None, max_examples=60)
@given(case=cases(), random=st.randoms())
def test_the_same_is_chosen_in_whatever_order_things_are_listed(
    choose: Policy, case: tuple[TaskView, MarketView], random: object
) -> None:
    task, market = case
    shuffled_offers, shuffled_refusals = list(market.offers), list(market.refusals)
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
def test_ranks_are_kept_and_prices_within_them(choose: Policy, case: tuple[TaskView, MarketView]) -> None:
    task, market = replace(case[0], refused_in_a_row=0), case[1]
    choice = choose(task, market, NOW)
    if not isinstance(choice, Place) or against(choice.offer, market):
        return
    candidates = free(task, market)
    rank = min(rank for rank, _ in candidates)
    same_rank = [o for r, o in candidates if r == rank]
    assert choice.offer in same_rank
    alike = [o for o in same_rank if (o.cloud, o.region) == (choice.offer.cloud, choice.offer.region)]
    if choose == policy("CHEAPEST").choose:
        alike = same_rank
    if task.preempted_from is None or choice.offer.zone != task.preempted_from.zone:
        alike = [o for o in alike if task.preempted_from is None or o.zone != task.preempted_from.zone]
    assert choice.offer.price_per_hour == min(o.price_per_hour for o in alike)


@settings(deadline=None)
@given(case=cases())
def test_eager_leaves_the_region_whenever_it_can(case: tuple[TaskView, MarketView]) -> None:
    task, market = replace(case[0], refused_in_a_row=0), case[1]
    choice = policy("EAGER_NEXT_REGION").choose(task, market, NOW)
    left = task.preempted_from
    if left is None:
        assert choice == policy("CHEAPEST").choose(task, market, NOW)
    elif isinstance(choice, Place) and region(choice.offer) == region(left) and not against(choice.offer, market):
        candidates = free(task, market)
        rank = next(rank for rank, o in candidates if o == choice.offer)
        rivals = [o for r, o in candidates if r == rank]
        assert all(region(o) == region(left) for o in rivals)
        if choice.offer.zone == left.zone:
            assert all(o.zone == left.zone for o in rivals)


@settings(deadline=None)
@given(case=cases())
def test_failover_stays_when_it_can(case: tuple[TaskView, MarketView]) -> None:
    task, market = replace(case[0], refused_in_a_row=0), case[1]
    choice = policy("FAILOVER").choose(task, market, NOW)
    if not task.has_run or task.last_offer is None:
        assert choice == policy("CHEAPEST").choose(task, market, NOW)
    elif isinstance(choice, Place) and region(choice.offer) != region(task.last_offer):
        candidates = free(task, market)
        rank = next((rank for rank, o in candidates if o == choice.offer), None)
        assert not any(region(o) == region(task.last_offer) for r, o in candidates if r == rank)


@settings(deadline=None, max_examples=60)
@given(cases())
def test_what_is_kept_for_last_comes_last_of_its_rank(case: tuple[TaskView, MarketView]) -> None:
    task, market = replace(case[0], refused_in_a_row=0), case[1]
    choice = choose(task, market, NOW, lambda o: (o.region == "east", o.zone.endswith("1")))
    if candidates := free(task, market):
        assert choice == Place(min(candidates, key=lambda c: (c[0], c[1].region == "east", c[1].zone.endswith("1")))[1])


def region(o: Offer) -> tuple[str, str]:
    return o.cloud, o.region


# --- nobody starves ---------------------------------------------------------------------------------------------------


@every_policy
@settings(deadline=None, max_examples=20)
@given(
    market=offers,
    wanted=needs.filter(lambda n: n[0].accelerators != ("H100", 1)),
    answers=st.lists(st.tuples(st.sampled_from([0, 1, 60, 300, 3600]), st.sampled_from([0.01, 10, 400])), min_size=60),
    preempted=st.booleans(),
)
def test_every_offer_that_fits_gets_its_turn(
    choose: Policy, market: list[Offer], wanted: tuple[Need, ...], answers: list[tuple[int, float]], preempted: bool
) -> None:
    """Everything is refused, for as long as chance has it, by clouds as slow as chance has it; other jobs buy."""
    fit = [o for _, o in fitting(wanted, market)]
    task = TaskView(0, wanted, has_run=True, last_offer=market[0], preempted_from=market[0])
    known: list[Refusal] = [preemption_refusal(market[0], NOW)] if preempted else []
    now, tried, history = NOW, [], History()
    passed_over: Counter[Offer] = Counter()
    for turn, (ttl, took_s) in enumerate(answers if fit else ()):
        history = learn(history, Sighting(market[turn % len(market)].key, now, available=ttl > 0))
        choice = choose(task, MarketView(tuple(market), tuple(known), history=history), now)
        while isinstance(choice, Wait):
            assert choice.until > now
            now = choice.until
            choice = choose(task, MarketView(tuple(market), tuple(known), history=history), now)
        assert isinstance(choice, Place)
        for o in fit:
            could = not any(r.until > now and r.covers(o) for r in known)
            passed_over[o] = passed_over[o] + 1 if could and o != choice.offer else 0
        assert max(passed_over.values()) < len(fit), "an offer was passed over while others had a second turn"
        tried.append(choice.offer)
        now += took_s
        history = learn(history, Sighting(choice.offer.key, now, available=False))
        known.append(launch_refusal(choice.offer, now, kind=FaultKind.AVOID_ZONE, retry_after_s=ttl))
        task = replace(task, refused_in_a_row=task.refused_in_a_row + 1)
    if fit and not preempted:
        assert set(tried[: len(fit)]) == set(fit), "one round tries every offer once"


# --- single decisions -------------------------------------------------------------------------------------------------

E1, E2 = offer("aws/east/e1/v", 1.0), offer("aws/east/e2/v", 1.2)
W1, S1 = offer("aws/west/w1/v", 1.5), offer("gcp/south/s1/v", 2.0)
ALL = (E1, E2, W1, S1)
V100 = (Need(accelerators=("V100", 1)),)
PREEMPTED = TaskView(0, V100, has_run=True, last_offer=E1, preempted_from=E1)


def order(strategy: str, task: TaskView = PREEMPTED, *known: Refusal) -> list[Offer]:
    """What is tried, one after the other, when everything is refused at once."""
    tried: list[Offer] = []
    refusals = list(known)
    while True:
        choice = policy(strategy).choose(task, MarketView(ALL, tuple(refusals)), NOW + len(tried))
        if not isinstance(choice, Place):
            return tried
        tried.append(choice.offer)
        refusals.append(launch_refusal(choice.offer, NOW + len(tried), kind=FaultKind.AVOID_ZONE))
        task = replace(task, refused_in_a_row=task.refused_in_a_row + 1, last_offer=choice.offer)


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ("CHEAPEST", [E2, W1, S1]),
        ("FAILOVER", [E2, W1, S1]),
        ("EAGER_NEXT_REGION", [W1, S1, E2]),
    ],
)
def test_after_a_preemption(strategy: str, expected: list[Offer]) -> None:
    assert order(strategy, PREEMPTED, preemption_refusal(E1, NOW)) == expected


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_first_time_all_go_by_price(strategy: str) -> None:
    assert order(strategy, TaskView(0, V100)) == [E1, E2, W1, S1]


def test_failover_stays_where_it_ran_though_it_is_dearer() -> None:
    ran_in_south = replace(PREEMPTED, last_offer=S1, preempted_from=S1)
    assert order("FAILOVER", ran_in_south) == [S1, E1, E2, W1]


def test_failover_goes_back_home_after_a_refusal_elsewhere() -> None:
    home = offer("gcp/south/s2/v", 3.0)
    searching = replace(PREEMPTED, preempted_from=S1, last_offer=W1, refused_in_a_row=1)
    refused = launch_refusal(W1, NOW, kind=FaultKind.AVOID_ZONE)
    assert policy("FAILOVER").choose(searching, MarketView((*ALL[:3], home), (refused,)), NOW) == Place(home)


def test_eager_takes_another_zone_of_the_region_before_another_type_in_the_same_zone() -> None:
    same_zone = offer("aws/east/e1/w", 0.5)
    market = MarketView((E1, same_zone, E2), (preemption_refusal(E1, NOW),))
    assert policy("EAGER_NEXT_REGION").choose(PREEMPTED, market, NOW) == Place(E2)
    assert policy("CHEAPEST").choose(PREEMPTED, market, NOW) == Place(same_zone)


def test_a_cool_down_ends() -> None:
    choose, market = policy("CHEAPEST").choose, MarketView(ALL, (preemption_refusal(E1, NOW),))
    assert choose(PREEMPTED, market, NOW + 1799) == Place(E2)
    assert choose(PREEMPTED, market, NOW + 1800) == Place(E1)


def test_the_only_zone_is_tried_again_after_a_minute_not_half_an_hour() -> None:
    choose, market = policy("CHEAPEST").choose, MarketView((E1,), (preemption_refusal(E1, NOW),))
    choice = choose(PREEMPTED, market, NOW + 1)
    assert isinstance(choice, Wait)
    assert choice.until == NOW + EARLY_RETRY_S
    assert choose(PREEMPTED, market, choice.until) == Place(E1)


def test_broken_credentials_move_to_the_next_cloud_then_give_up() -> None:
    aws = launch_refusal(
        E1, NOW, kind=FaultKind.AVOID_CLOUD, code="AuthFailure", message="no", reason=Reason.BAD_CREDENTIALS
    )
    gcp = launch_refusal(S1, NOW, kind=FaultKind.AVOID_CLOUD, code="401", message="no", reason=Reason.BAD_CREDENTIALS)
    choose, long_after = policy("CHEAPEST").choose, NOW + 10**7
    assert choose(PREEMPTED, MarketView(ALL, (aws,)), long_after) == Place(S1)
    nothing = choose(PREEMPTED, MarketView(ALL, (aws, gcp)), long_after)
    assert nothing == Never(("aws: AuthFailure: no", "gcp: 401: no"), is_request=True)


def test_a_used_up_quota_is_waited_for() -> None:
    quotas = tuple(launch_refusal(o, NOW, kind=FaultKind.AVOID_CLOUD, code="QUOTA") for o in (E1, S1))
    choice = policy("CHEAPEST").choose(PREEMPTED, MarketView(ALL, quotas), NOW)
    assert isinstance(choice, Wait)


def test_a_wait_says_why_for_each_offer() -> None:
    known = (
        launch_refusal(E1, NOW, kind=FaultKind.AVOID_ZONE, code="InsufficientInstanceCapacity", message="sold out"),
    )
    choice = policy("CHEAPEST").choose(PREEMPTED, MarketView((E1, E2), (*known, preemption_refusal(E2, NOW))), NOW)
    assert choice == Wait(
        NOW + 60,
        (
            "aws/east/e2 v spot: avoided for 60 s: took a machine back",
            "aws/east/e1 v spot: avoided for 180 s: InsufficientInstanceCapacity: sold out",
        ),
    )


def test_a_wait_for_hundreds_of_offers_is_told_in_a_few_lines() -> None:
    many = tuple(replace(E1, zone=f"z{i}") for i in range(300))
    everywhere = Refusal("aws", until=NOW + 9, kind=FaultKind.AVOID_CLOUD, at=NOW)
    choice = policy("CHEAPEST").choose(PREEMPTED, MarketView(many, (everywhere,)), NOW)
    assert isinstance(choice, Wait)
    assert len(choice.why) == 21
    assert choice.why[-1] == "and 280 more"


@settings(deadline=None)
@given(market=offers, data=st.data())
def test_the_index_finds_what_covers(market: list[Offer], data: st.DataObject) -> None:
    known = data.draw(refusals(market))
    index = RefusalIndex(known)
    for o in market:
        assert Counter(index.covering(o)) == Counter(r for r in known if r.covers(o))


def test_strategies_are_known_by_name_in_any_case() -> None:
    assert policy("eager_next_region") is policy("EAGER_NEXT_REGION")
    assert DEFAULT in STRATEGIES
    with pytest.raises(UnknownStrategy, match="'FASTEST'; choose one of CHEAPEST, FAILOVER, EAGER_NEXT_REGION"):
        policy("FASTEST")
