"""Which offers fit a task's needs, and, when none does, what a person should change.

Names of clouds, regions, zones, instance types and accelerators are compared without regard to case.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from functools import lru_cache
from typing import Literal

from perdure.recovery.market import Market, MarketView, Offer
from perdure.recovery.needs import Amount, Need

_MOST_LISTED = 3
_SPOT = Market.SPOT


# Where an offer can fall short of a need, in the words of the task's YAML.
_Aspect = Literal[
    "cloud", "region", "zone", "instance_type", "use_spot", "accelerators", "cpus", "memory", "max_hourly_cost"
]


def misfits(need: Need, offer: Offer) -> tuple[str, ...]:
    """Why `offer` does not fit `need`, one phrase per aspect; empty when it fits."""
    return tuple(_phrase(aspect, need, offer) for aspect in _aspects_amiss(need, offer))


def fits(need: Need, offer: Offer) -> bool:
    return next(_aspects_amiss(need, offer), None) is None


def fitting(needs: Sequence[Need], offers: Iterable[Offer]) -> list[tuple[int, Offer]]:
    """Every offer that fits one of `needs`, with the lowest rank that it fits.

    Ordered by rank, then price, then size (the smallest that suffices first), then name.
    """
    return list(_fitting(tuple(needs), _This(offers if isinstance(offers, tuple) else tuple(offers))))


class _This:
    """A price list as a key: by identity, since comparing thousands of offers takes as long as matching them."""

    def __init__(self, offers: tuple[Offer, ...]) -> None:
        self.offers = offers

    def __hash__(self) -> int:
        return id(self.offers)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _This) and other.offers is self.offers


@lru_cache(maxsize=64)  # few jobs ask for different machines, and a price list lasts for many decisions
def _fitting(needs: tuple[Need, ...], market: _This) -> tuple[tuple[int, Offer], ...]:
    by_rank = sorted(needs, key=lambda need: need.rank)
    ranked = ((_rank(by_rank, offer), offer) for offer in market.offers)
    return tuple(sorted(((rank, offer) for rank, offer in ranked if rank is not None), key=_order))


def _rank(by_rank: Sequence[Need], offer: Offer) -> int | None:
    for need in by_rank:
        if fits(need, offer):
            return need.rank
    return None


def _order(ranked: tuple[int, Offer]) -> tuple[object, ...]:
    rank, o = ranked
    return rank, o.price_per_hour, o.vcpus, o.memory_gib, o.cloud, o.region, o.zone, o.instance_type, o.market


def why_nothing_fits(needs: Sequence[Need], market: MarketView) -> tuple[str, ...]:
    """For people: one line per alternative that names the nearest thing that exists, then one per cloud left out."""
    lines = [_why(need, market) for need in needs]
    if market.disabled and any(n.cloud is None for n in needs):
        lines.append(f"not looked at, since they can not be used: {', '.join(sorted(market.disabled))}")
    return tuple(dict.fromkeys(lines))


# --- one offer against one need ---------------------------------------------------------------------------------------


def _aspects_amiss(need: Need, offer: Offer) -> Iterator[_Aspect]:
    """Lazily, the most telling first: most offers fail at once, and policies look at thousands."""
    if need.use_spot != (offer.market is _SPOT):
        yield "use_spot"
    if not _accelerators_fit(need, offer):
        yield "accelerators"
    if need.cloud is not None and not _same(need.cloud, offer.cloud):
        yield "cloud"
    if need.region is not None and not _same(need.region, offer.region):
        yield "region"
    if need.zone is not None and not _same(need.zone, offer.zone):
        yield "zone"
    if need.instance_type is not None and not _same(need.instance_type, offer.instance_type):
        yield "instance_type"
    if need.cpus is not None and not need.cpus.admits(offer.vcpus):
        yield "cpus"
    if need.memory_gib is not None and not need.memory_gib.admits(offer.memory_gib):
        yield "memory"
    if need.max_price_per_hour is not None and offer.price_per_hour > need.max_price_per_hour:
        yield "max_hourly_cost"


def _accelerators_fit(need: Need, offer: Offer) -> bool:
    """Name and count exactly as asked. Who asks for none gets none, unless the instance type was named."""
    if need.accelerators is None:
        return offer.accelerators is None or need.instance_type is not None
    if offer.accelerators is None:
        return False
    return need.accelerators[1] == offer.accelerators[1] and _same(need.accelerators[0], offer.accelerators[0])


def _same(one: str, other: str) -> bool:
    return one == other or one.lower() == other.lower()


def _phrase(aspect: _Aspect, need: Need, offer: Offer) -> str:
    match aspect:
        case "cloud" | "region" | "zone" | "instance_type":
            return f"{aspect} is {getattr(offer, aspect)}, not {getattr(need, aspect)}"
        case "use_spot":
            return f"is {offer.market}, not {need.market}"
        case "accelerators":
            return f"has {_accelerators(offer.accelerators)}, not {_accelerators(need.accelerators)}"
        case "cpus":
            return f"has {offer.vcpus:g} vCPUs, not {need.cpus}"
        case "memory":
            return f"has {offer.memory_gib:g} GiB of memory, not {need.memory_gib}"
        case "max_hourly_cost":
            return f"costs {_usd(offer.price_per_hour)} an hour, above max_hourly_cost {need.max_price_per_hour:g}"


def _accelerators(accelerators: tuple[str, float] | None) -> str:
    return f"{accelerators[0]}:{accelerators[1]:g}" if accelerators else "no accelerators"


# --- what a person should change --------------------------------------------------------------------------------------


def _why(need: Need, market: MarketView) -> str:
    disabled = next((c for c in market.disabled if need.cloud is not None and _same(c, need.cloud)), None)
    if disabled is not None:
        return _disabled(disabled, market)
    if not market.offers:
        return "no enabled cloud has anything to sell"
    return _unknown_name(need, market.offers) or _nearest(need, market.offers)


def _disabled(cloud: str, market: MarketView) -> str:
    return f"{cloud} can not be used: {market.disabled[cloud]}"


def _unknown_name(need: Need, offers: Sequence[Offer]) -> str | None:
    """What to say of a name that nobody knows: it is most likely misspelt, and nothing else is worth saying then."""
    clouds = _names(o.cloud for o in offers)
    if need.cloud is not None and need.cloud.lower() not in clouds:
        return f"no cloud called {need.cloud} is enabled{_suggestion(need.cloud, clouds)}"
    of_cloud = [o for o in offers if need.cloud is None or _same(o.cloud, need.cloud)]
    who = f"{need.cloud} has no" if need.cloud else "no enabled cloud has any"
    for aspect in ("region", "zone", "instance_type"):
        wanted: str | None = getattr(need, aspect)
        if wanted is None:
            continue
        known = _names(getattr(o, aspect) for o in of_cloud)
        if wanted.lower() not in known:
            owners = _names(o.cloud for o in offers if _same(getattr(o, aspect), wanted))
            hint = f"; {_some(owners.values())} has one" if owners else _suggestion(wanted, known)
            return f"{who} {aspect.replace('_', ' ')} called {wanted}{hint}"
    sold = _names(o.accelerators[0] for o in offers if o.accelerators)
    if need.accelerators is not None and need.accelerators[0].lower() not in sold:
        name = need.accelerators[0]
        return f"no enabled cloud sells an accelerator called {name}{_suggestion(name, sold)}"
    return None


def _names(names: Iterable[str]) -> dict[str, str]:
    """Names by their lower case, in order."""
    return {name.lower(): name for name in sorted(names)}


def _suggestion(wanted: str, known: dict[str, str]) -> str:
    low = wanted.lower()
    close = [k for k in known if k.startswith(low)] or get_close_matches(low, known, n=_MOST_LISTED, cutoff=0.8)
    if close:
        return f"; did you mean {' or '.join(known[k] for k in close[:_MOST_LISTED])}?"
    return f"; there is {_some(known.values())}" if known else ""


def _some(names: Iterable[str]) -> str:
    """The first few of `names`, and how many more there are."""
    unique = list(dict.fromkeys(names))
    more = f" and {len(unique) - _MOST_LISTED} more" if len(unique) > _MOST_LISTED else ""
    return ", ".join(unique[:_MOST_LISTED]) + more


def _nearest(need: Need, offers: Sequence[Offer]) -> str:
    """What the offers that come closest lack."""
    amiss = sorted(((_distance(need, o), o) for o in offers), key=_order)
    least = amiss[0][0]
    closest = [offer for distance, offer in amiss if distance == least]
    if least > 1:
        offer = closest[0]
        return f"{_wanted(need)}: no offer fits; closest: {offer.key} {' and '.join(misfits(need, offer))}"
    by_aspect: dict[_Aspect, list[Offer]] = {}
    for offer in closest:
        by_aspect.setdefault(next(_aspects_amiss(need, offer)), []).append(offer)
    return f"{_wanted(need)}: no offer fits; " + "; ".join(_hint(a, need, found) for a, found in by_aspect.items())


def _distance(need: Need, offer: Offer) -> int:
    """How many aspects are amiss. Another kind of machine is further away than another amount of the same."""
    amiss = list(_aspects_amiss(need, offer))
    kinds = [a[0].lower() if a else None for a in (need.accelerators, offer.accelerators)]
    other_kind = "instance_type" in amiss or ("accelerators" in amiss and kinds[0] != kinds[1])
    return len(amiss) + int(other_kind)


def _wanted(need: Need) -> str:
    what = [_accelerators(need.accelerators)] if need.accelerators else []
    what += [need.instance_type] if need.instance_type else []
    what += [f"cpus {need.cpus}"] if need.cpus else []
    what += [f"memory {need.memory_gib}"] if need.memory_gib else []
    where = "/".join(place for place in (need.cloud, need.region, need.zone) if place)
    return " ".join([*(what or ["any machine"]), need.market.value, *([f"in {where}"] if where else [])])


def _hint(aspect: _Aspect, need: Need, found: Sequence[Offer]) -> str:
    """What to change so that `found`, amiss in `aspect` alone and cheapest first, would fit."""
    cheapest = _usd(found[0].price_per_hour)
    if aspect == "use_spot":
        return (
            f"it is sold {found[0].market} only, from {cheapest} an hour: set use_spot to {not need.use_spot}".lower()
        )
    if aspect == "max_hourly_cost":
        return f"the cheapest costs {cheapest} an hour, above max_hourly_cost"
    if aspect == "cpus" and need.cpus is not None:
        return _amount_hint(aspect, need.cpus, {o.vcpus for o in found})
    if aspect == "memory" and need.memory_gib is not None:
        return _amount_hint(aspect, need.memory_gib, {o.memory_gib for o in found})
    if aspect == "accelerators" and need.accelerators is not None:
        wanted = need.accelerators[1]
        nearest = sorted(found, key=lambda o: abs(o.accelerators[1] - wanted) if o.accelerators else 0)
        return "closest: " + _some(f"{_accelerators(o.accelerators)} in {o.cloud}/{o.region}" for o in nearest)
    return f"it is sold in {_some(f'{o.cloud}/{o.region}/{o.zone}' for o in found)}"


def _usd(price: float) -> str:
    return f"${price:.2f}" if price >= 0.1 else f"${price:.4f}"


def _amount_hint(what: str, wanted: Amount, sold: set[float]) -> str:
    below = max((v for v in sold if v < wanted.value), default=None)
    above = min((v for v in sold if v > wanted.value), default=None)
    if above is None:
        return f"the most there is of {what}: {below:g}"
    nearest = " and ".join(f"{v:g}" for v in (below, above) if v is not None)
    verb = "are" if below is not None else "is"
    return f"the nearest {what} to {wanted} exactly {verb} {nearest}; did you mean {wanted}+?"
