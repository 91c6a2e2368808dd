"""Which offers fit a task's requirements, and what the user should change if none does.

Names of clouds, regions, zones, instance types and accelerators are compared case-insensitively.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from functools import lru_cache
from typing import Literal

from perdure.recovery.market.requirements import Amount, MachineRequirement
from perdure.recovery.market.view import Market, MarketView, Offer

_MAX_LISTED = 3
_MAX_EXPLAINED = 50  # alternatives: each is compared with every offer
_UNKNOWN_ACCELERATOR = "no enabled cloud offers an accelerator called "
_SPOT = Market.SPOT

# The aspects in which an offer can differ from a requirement, named as in the task's YAML.
_Aspect = Literal[
    "cloud", "region", "zone", "instance_type", "use_spot", "accelerators", "cpus", "memory", "max_hourly_cost"
]


def mismatches(requirement: MachineRequirement, offer: Offer) -> tuple[str, ...]:
    """Why `offer` does not fit `requirement`, one phrase per aspect; empty if it fits."""
    return tuple(_phrase(aspect, requirement, offer) for aspect in _mismatched_aspects(requirement, offer))


def fits(requirement: MachineRequirement, offer: Offer) -> bool:
    """Whether `offer` meets all of `requirement`."""
    return next(_mismatched_aspects(requirement, offer), None) is None


def fitting_offers(requirements: Sequence[MachineRequirement], offers: Iterable[Offer]) -> list[tuple[int, Offer]]:
    """Every offer that fits one of `requirements`, with the lowest rank of those that it fits.

    Ordered by rank, then price, then size (the smallest first), then name.
    """
    return list(_fitting(tuple(requirements), _PriceList(offers if isinstance(offers, tuple) else tuple(offers))))


def fitted_requirement(requirements: Sequence[MachineRequirement], offer: Offer) -> int | None:
    """The index of the requirement that `offer` was chosen for, the first by rank; None if there is none.

    If none fits, the market and the price do not count: a policy may choose on-demand machines for any of them.
    """
    by_rank = sorted(enumerate(requirements), key=lambda entry: entry[1].rank)
    aspects = [(index, set(_mismatched_aspects(requirement, offer))) for index, requirement in by_rank]
    for tolerated in (set(), {"use_spot", "max_hourly_cost"}):
        for index, mismatched in aspects:
            if mismatched <= tolerated:
                return index
    return None


class _PriceList:
    """A price list as a cache key, compared by identity: comparing all offers costs as much as matching them."""

    def __init__(self, offers: tuple[Offer, ...]) -> None:
        self.offers = offers

    def __hash__(self) -> int:
        return id(self.offers)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _PriceList) and other.offers is self.offers


@lru_cache(maxsize=64)  # most jobs share their requirements, and a price list lasts for many decisions
def _fitting(requirements: tuple[MachineRequirement, ...], price_list: _PriceList) -> tuple[tuple[int, Offer], ...]:
    by_rank = sorted(requirements, key=lambda requirement: requirement.rank)
    ranked = ((_rank(by_rank, offer), offer) for offer in price_list.offers)
    return tuple(sorted(((rank, offer) for rank, offer in ranked if rank is not None), key=_order))


def _rank(by_rank: Sequence[MachineRequirement], offer: Offer) -> int | None:
    for requirement in by_rank:
        if fits(requirement, offer):
            return requirement.rank
    return None


def _order(ranked: tuple[int, Offer]) -> tuple[object, ...]:
    rank, o = ranked
    return rank, o.price_per_hour, o.vcpus, o.memory_gib, o.cloud, o.region, o.zone, o.instance_type, o.market


def explain_no_fit(requirements: Sequence[MachineRequirement], market: MarketView) -> tuple[str, ...]:
    """For users: one line per alternative that names the nearest offer, then those about clouds that are disabled or
    could not be asked."""
    lines = [_explain(requirement, market) for requirement in requirements[:_MAX_EXPLAINED]]
    if len(requirements) > _MAX_EXPLAINED:
        lines.append(f"none of {len(requirements) - _MAX_EXPLAINED} more alternatives fits")
    if market.disabled and any(n.cloud is None for n in requirements):
        lines.append(f"not considered, because they cannot be used: {', '.join(sorted(market.disabled))}")
    for cloud, why in sorted(market.unconfirmed.items()):
        if any(n.cloud is None or _same(n.cloud, cloud) for n in requirements):
            lines.append(why)
    return tuple(dict.fromkeys(_merge_unknown_accelerators(lines)))


def _merge_unknown_accelerators(lines: Sequence[str]) -> Iterator[str]:
    """`lines` with one in place of all that name an unknown accelerator: an amount of memory selects many."""
    unknown = [line for line in lines if line.startswith(_UNKNOWN_ACCELERATOR)]
    for line in lines:
        if len(unknown) <= _MAX_LISTED or line not in unknown:
            yield line
        elif line == unknown[0]:
            names = _shortened(one.removeprefix(_UNKNOWN_ACCELERATOR).partition(";")[0] for one in unknown)
            yield f"{_UNKNOWN_ACCELERATOR}{names}"


# --- one offer against one requirement --------------------------------------------------------------------------------


def _mismatched_aspects(requirement: MachineRequirement, offer: Offer) -> Iterator[_Aspect]:
    """Lazily, the most selective first: most offers differ in one of the first two, and policies check thousands."""
    if requirement.use_spot != (offer.market is _SPOT):
        yield "use_spot"
    if not _accelerators_fit(requirement, offer):
        yield "accelerators"
    if requirement.cloud is not None and not _same(requirement.cloud, offer.cloud):
        yield "cloud"
    if requirement.region is not None and not _same(requirement.region, offer.region):
        yield "region"
    if requirement.zone is not None and not _same(requirement.zone, offer.zone):
        yield "zone"
    if requirement.instance_type is not None and not _same(requirement.instance_type, offer.instance_type):
        yield "instance_type"
    if requirement.cpus is not None and not requirement.cpus.admits(offer.vcpus):
        yield "cpus"
    if requirement.memory_gib is not None and not requirement.memory_gib.admits(offer.memory_gib):
        yield "memory"
    if requirement.max_price_per_hour is not None and offer.price_per_hour > requirement.max_price_per_hour:
        yield "max_hourly_cost"


def _accelerators_fit(requirement: MachineRequirement, offer: Offer) -> bool:
    """Name and count must be equal. A requirement without any accepts some only if it names the instance type."""
    if requirement.accelerators is None:
        return offer.accelerators is None or requirement.instance_type is not None
    if offer.accelerators is None:
        return False
    return requirement.accelerators[1] == offer.accelerators[1] and _same(
        requirement.accelerators[0], offer.accelerators[0]
    )


def _same(one: str, other: str) -> bool:
    return one == other or one.lower() == other.lower()


def _phrase(aspect: _Aspect, requirement: MachineRequirement, offer: Offer) -> str:
    match aspect:
        case "cloud" | "region" | "zone" | "instance_type":
            return f"{aspect} is {getattr(offer, aspect)}, not {getattr(requirement, aspect)}"
        case "use_spot":
            return f"is {offer.market}, not {requirement.market}"
        case "accelerators":
            return f"has {_accelerators(offer.accelerators)}, not {_accelerators(requirement.accelerators)}"
        case "cpus":
            return f"has {offer.vcpus:g} vCPUs, not {requirement.cpus}"
        case "memory":
            return f"has {offer.memory_gib:g} GiB of memory, not {requirement.memory_gib}"
        case "max_hourly_cost":
            return (
                f"costs {_usd(offer.price_per_hour)} an hour, above max_hourly_cost {requirement.max_price_per_hour:g}"
            )


def _accelerators(accelerators: tuple[str, float] | None) -> str:
    return f"{accelerators[0]}:{accelerators[1]:g}" if accelerators else "no accelerators"


# --- what the user should change --------------------------------------------------------------------------------------


def _explain(requirement: MachineRequirement, market: MarketView) -> str:
    disabled = next((c for c in market.disabled if requirement.cloud is not None and _same(c, requirement.cloud)), None)
    if disabled is not None:
        return f"{disabled} cannot be used: {market.disabled[disabled]}"
    if not market.offers:
        return "no enabled cloud offers any machine"
    return _unknown_name(requirement, market.offers) or _nearest(requirement, market.offers)


def _unknown_name(requirement: MachineRequirement, offers: Sequence[Offer]) -> str | None:
    """The explanation for a name that no cloud uses, most likely a misspelling; None if all names are known."""
    clouds = _names(o.cloud for o in offers)
    if requirement.cloud is not None and requirement.cloud.lower() not in clouds:
        return f"no cloud called {requirement.cloud} is enabled{_suggestion(requirement.cloud, clouds)}"
    of_cloud = [o for o in offers if requirement.cloud is None or _same(o.cloud, requirement.cloud)]
    subject = f"{requirement.cloud} has no" if requirement.cloud else "no enabled cloud has any"
    for aspect in ("region", "zone", "instance_type"):
        wanted: str | None = getattr(requirement, aspect)
        if wanted is None:
            continue
        known = _names(getattr(o, aspect) for o in of_cloud)
        if wanted.lower() not in known:
            owners = _names(o.cloud for o in offers if _same(getattr(o, aspect), wanted))
            hint = f"; {_shortened(owners.values())} has one" if owners else _suggestion(wanted, known)
            return f"{subject} {aspect.replace('_', ' ')} called {wanted}{hint}"
    offered = _names(o.accelerators[0] for o in offers if o.accelerators)
    if requirement.accelerators is not None and requirement.accelerators[0].lower() not in offered:
        name = requirement.accelerators[0]
        return f"{_UNKNOWN_ACCELERATOR}{name}{_suggestion(name, offered)}"
    return None


def _names(names: Iterable[str]) -> dict[str, str]:
    """Names by their lower case, in order."""
    return {name.lower(): name for name in sorted(names)}


def _suggestion(wanted: str, known: dict[str, str]) -> str:
    low = wanted.lower()
    close = [k for k in known if k.startswith(low)] or get_close_matches(low, known, n=_MAX_LISTED, cutoff=0.8)
    if close:
        return f"; did you mean {' or '.join(known[k] for k in close[:_MAX_LISTED])}?"
    return f"; available: {_shortened(known.values())}" if known else ""


def _shortened(names: Iterable[str]) -> str:
    """The first few of `names`, and how many more there are."""
    unique = list(dict.fromkeys(names))
    more = f" and {len(unique) - _MAX_LISTED} more" if len(unique) > _MAX_LISTED else ""
    return ", ".join(unique[:_MAX_LISTED]) + more


def _nearest(requirement: MachineRequirement, offers: Sequence[Offer]) -> str:
    """How the closest offers differ from `requirement`."""
    ranked = sorted(((_distance(requirement, o), o) for o in offers), key=_order)
    least = ranked[0][0]
    closest = [offer for distance, offer in ranked if distance == least]
    if least > 1:
        differences = " and ".join(mismatches(requirement, closest[0]))
        return f"{_describe(requirement)}: no offer fits; closest: {closest[0].key} {differences}"
    by_aspect: dict[_Aspect, list[Offer]] = {}
    for offer in closest:
        by_aspect.setdefault(next(_mismatched_aspects(requirement, offer)), []).append(offer)
    hints = [_hint(aspect, requirement, alike) for aspect, alike in by_aspect.items()]
    return f"{_describe(requirement)}: no offer fits; " + "; ".join(hints)


def _distance(requirement: MachineRequirement, offer: Offer) -> int:
    """The number of mismatched aspects; one more for another kind of machine than for another amount of the same."""
    aspects = list(_mismatched_aspects(requirement, offer))
    kinds = [a[0].lower() if a else None for a in (requirement.accelerators, offer.accelerators)]
    other_kind = "instance_type" in aspects or ("accelerators" in aspects and kinds[0] != kinds[1])
    return len(aspects) + int(other_kind)


def _describe(requirement: MachineRequirement) -> str:
    what = [_accelerators(requirement.accelerators)] if requirement.accelerators else []
    what += [requirement.instance_type] if requirement.instance_type else []
    what += [f"cpus {requirement.cpus}"] if requirement.cpus else []
    what += [f"memory {requirement.memory_gib}"] if requirement.memory_gib else []
    where = "/".join(place for place in (requirement.cloud, requirement.region, requirement.zone) if place)
    return " ".join([*(what or ["any machine"]), requirement.market.value, *([f"in {where}"] if where else [])])


def _hint(aspect: _Aspect, requirement: MachineRequirement, offers: Sequence[Offer]) -> str:
    """What to change so that `offers`, which differ in `aspect` alone and are sorted by price, would fit."""
    cheapest = _usd(offers[0].price_per_hour)
    if aspect == "use_spot":
        use_spot = str(not requirement.use_spot).lower()
        return f"it is offered {offers[0].market} only, from {cheapest} an hour: set use_spot to {use_spot}"
    if aspect == "max_hourly_cost":
        return f"the cheapest costs {cheapest} an hour, above max_hourly_cost"
    if aspect == "cpus" and requirement.cpus is not None:
        return _amount_hint(aspect, requirement.cpus, {o.vcpus for o in offers})
    if aspect == "memory" and requirement.memory_gib is not None:
        return _amount_hint(aspect, requirement.memory_gib, {o.memory_gib for o in offers})
    if aspect == "accelerators" and requirement.accelerators is not None:
        wanted = requirement.accelerators[1]
        nearest = sorted(offers, key=lambda o: abs(o.accelerators[1] - wanted) if o.accelerators else 0)
        return "closest: " + _shortened(f"{_accelerators(o.accelerators)} in {o.cloud}/{o.region}" for o in nearest)
    return f"it is offered in {_shortened(f'{o.cloud}/{o.region}/{o.zone}' for o in offers)}"


def _usd(price: float) -> str:
    return f"${price:.2f}" if price >= 0.1 else f"${price:.4f}"


def _amount_hint(aspect: _Aspect, wanted: Amount, offered: set[float]) -> str:
    below = max((v for v in offered if v < wanted.value), default=None)
    above = min((v for v in offered if v > wanted.value), default=None)
    if above is None:
        return f"the largest value of {aspect} is {below:g}"
    nearest = f"value of {aspect} is {above:g}" if below is None else f"values of {aspect} are {below:g} and {above:g}"
    return f"the nearest {nearest}; did you mean {wanted}+?"
