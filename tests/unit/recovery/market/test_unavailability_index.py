"""What is kept of many unavailable offers says as much as all of them, and the index finds those of an offer."""

from __future__ import annotations

from collections import Counter
from itertools import accumulate, product

from hypothesis import given
from hypothesis import strategies as st

from perdure.recovery.market.cooldown import failed_tries
from perdure.recovery.market.unavailability_index import UnavailabilityIndex, UnavailableOffers
from perdure.recovery.market.unavailable import FaultKind, UnavailableOffer
from perdure.recovery.market.view import Market, Offer

_KIND = FaultKind.AVOID_ZONE
OFFER = Offer("aws", "us-east-1", "us-east-1a", "p5.48xlarge", Market.SPOT, 10.0, 30.0, 192, 2048.0)


def _unavailable(
    at: float, lasts_s: float, *, kind: FaultKind = _KIND, from_preemption: bool = False
) -> UnavailableOffer:
    o = OFFER
    return UnavailableOffer(
        o.cloud, at + lasts_s, kind, at, o.region, o.zone, o.instance_type, o.market, from_preemption=from_preemption
    )


_TIMES = st.lists(st.tuples(st.floats(0.0, 90.0), st.sampled_from([30.0, 60.0, 600.0])), min_size=1, max_size=60)


@given(_TIMES)
def test_unavailable_offers__preserve_failed_tries_and_expiry(arrivals: list[tuple[float, float]]) -> None:
    starts = accumulate(pause for pause, _ in arrivals)
    every = [_unavailable(at, lasts_s) for at, (_, lasts_s) in zip(starts, arrivals, strict=True)]
    remembered = UnavailableOffers()
    for unavailable in every:
        remembered.add(unavailable)
    kept, now = list(remembered), every[-1].at
    tries = failed_tries(OFFER, every, now, kind=_KIND)
    assert failed_tries(OFFER, kept, now, kind=_KIND) == tries
    assert len(kept) <= 3 * tries
    assert set(kept) <= set(every)
    assert max(r.until for r in kept) >= max(r.until for r in every) - 1.0
    assert max(r.at for r in kept) >= max(r.at for r in every) - 1.0


def test_unavailable_offers__merge_concurrent_failures() -> None:
    remembered = UnavailableOffers()
    added = sum(remembered.add(_unavailable(1000.0 + i / 1000, 60.0)) for i in range(10_000))
    assert len(list(remembered)) <= 3
    assert added <= 11


def test_unavailable_offers__keep_different_kinds_apart() -> None:
    remembered = UnavailableOffers()
    different = [_unavailable(1.0, 60.0), _unavailable(1.0, 60.0, from_preemption=True)]
    different.append(_unavailable(1.0, 60.0, kind=FaultKind.AVOID_REGION))
    assert [remembered.add(unavailable) for unavailable in different] == [True] * 3
    assert not remembered.is_new(different[0])
    assert set(remembered) == set(different)


def test_unavailable_offers__drop_expired() -> None:
    remembered = UnavailableOffers()
    first, second = _unavailable(0.0, 60.0), _unavailable(100.0, 60.0)
    remembered.add(first)
    remembered.add(second)
    remembered.drop_expired(60.0)
    assert list(remembered) == [second]
    remembered.drop_expired(160.0)
    assert list(remembered) == []
    assert remembered.add(_unavailable(161.0, 60.0))


def _scopes(offer: Offer) -> list[UnavailableOffer]:
    """Unavailable offers that leave each possible set of fields open."""
    fields = (offer.region, offer.zone, offer.instance_type, offer.market)
    return [
        UnavailableOffer(offer.cloud, 60.0, _KIND, 0.0, *scope)
        for scope in product(*((value, None) for value in fields))  # type: ignore[arg-type]
    ]


_MARKET = [
    Offer(cloud, region, f"{region}-a", instance_type, market, 1.0, 3.0, 8, 61.0)
    for cloud, region, instance_type, market in product(("aws", "gcp"), ("east", "west"), ("v", "a"), Market)
]


@given(st.lists(st.sampled_from([one for offer in _MARKET for one in _scopes(offer)]), max_size=12))
def test_unavailability_index__finds_all_that_cover_an_offer(known: list[UnavailableOffer]) -> None:
    index = UnavailabilityIndex(known)
    for offer in _MARKET:
        assert Counter(index.covering(offer)) == Counter(one for one in known if one.covers(offer))
