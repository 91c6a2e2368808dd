"""How every policy picks an offer: which offers may be tried now, and which of them comes first.

The policies call it; `rules.next_attempt` (`choose`) and `rules.migrate` (`reconsider`) call the policies. A policy
only adds which offers to try last, or what an offer costs. Fit, rank, price and unavailable offers are treated alike by
all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import inf
from operator import attrgetter, itemgetter
from typing import NamedTuple

from perdure.recovery.job import TaskView
from perdure.recovery.market.cooldown import EARLY_RETRY_S
from perdure.recovery.market.fit import explain_no_fit, fitting_offers
from perdure.recovery.market.requirements import MachineRequirement
from perdure.recovery.market.unavailability_index import UnavailabilityIndex
from perdure.recovery.market.unavailable import FaultKind, UnavailableOffer
from perdure.recovery.market.view import MarketView, Offer
from perdure.recovery.policies.decisions import Choice, Place, Unsatisfiable, Wait

# The longest wait before a policy looks again: prices change, and other jobs observe offers.
REEVALUATE_S = 600.0
_MAX_LINES = 20

_GIVE_UP = FaultKind.GIVE_UP

# Among offers of one rank, those with the smaller value are tried first.
Reluctance = Callable[[Offer], tuple[float, ...]]

# What an offer costs per hour of work, never below its price. Among offers of one rank, the least is tried first.
Cost = Callable[[Offer], float]


class _Avoided(NamedTuple):
    """An offer that fits, and the reasons to avoid it: at least one."""

    offer: Offer
    reasons: Sequence[UnavailableOffer]


def choose(
    task: TaskView,
    market: MarketView,
    now: float,
    reluctance: Reluctance | None = None,
    *,
    cost: Cost | None = None,
    requirements: tuple[MachineRequirement, ...] | None = None,
    fit: list[tuple[int, Offer]] | None = None,
) -> Choice:
    """The first of the offers that may be tried now, by round, rank, and then either `cost` or `reluctance` and price.

    `requirements`: if given, these replace the task's own. `fit`: if given, only these are considered, of all offers
    that fit; ordered like those of `fitting_offers`.

    *Round*: in a search (consecutive failed launches) no offer is tried twice before every other available one has been
    tried once. So neither a short cool-down nor a slow cloud can make a cheap offer starve the rest.
    """
    requirements = task.requirements if requirements is None else requirements
    fit = fitting_offers(requirements, market.offers) if fit is None else fit
    if not fit:
        return Unsatisfiable(explain_no_fit(requirements, market))
    index = UnavailabilityIndex(_in_force(market.unavailable, task.consecutive_refusals, now))
    if reluctance is not None:
        offer = _least_reluctant(fit, index, reluctance)
        if offer is not None:
            return Place(offer)
        fit.sort(key=lambda ranked: (ranked[0], reluctance(ranked[1])))
    avoided: list[_Avoided] = []
    best = first_available(fit, index, cost, avoided)
    return Place(best) if best else _least_avoided(avoided, now)


def first_available(
    fit: Iterable[tuple[int, Offer]], index: UnavailabilityIndex, cost: Cost | None, avoided: list[_Avoided]
) -> Offer | None:
    """The best available offer of `fit`, which is sorted by rank and price. Those passed over go to `avoided`."""
    best, best_rank, least = None, 0, inf
    for rank, offer in fit:
        if best is not None and (rank > best_rank or offer.price_per_hour >= least):
            break  # the rest have higher prices, and no offer costs less than its price
        reasons = index.covering(offer)
        if reasons:
            avoided.append(_Avoided(offer, reasons))
            continue
        if cost is None:
            return offer
        if (costs := cost(offer)) < least:
            best, best_rank, least = offer, rank, costs
    return best


def _least_reluctant(
    fit: Iterable[tuple[int, Offer]], index: UnavailabilityIndex, reluctance: Reluctance
) -> Offer | None:
    """The available offer of least rank and reluctance in `fit`, which is sorted by rank and price."""
    best, best_rank, least = None, 0, tuple[float, ...]()
    for rank, offer in fit:
        if best is not None and rank > best_rank:
            break
        if index.covering(offer):
            continue
        reluctant = reluctance(offer)
        if not any(reluctant):
            return offer
        if best is None or reluctant < least:
            best, best_rank, least = offer, rank, reluctant
    return best


def _in_force(unavailable: Iterable[UnavailableOffer], consecutive_refusals: int, now: float) -> list[UnavailableOffer]:
    """Those that have not expired, those that never expire, and those of this search, expired or not.

    The latest `consecutive_refusals` failures count as this search's: another job's failures are as good as its own.
    """
    began = inf
    if consecutive_refusals:
        latest = sorted([u.at for u in unavailable if not u.from_preemption])[-consecutive_refusals:]
        began = latest[0] if latest else inf
    return [u for u in unavailable if u.until > now or u.kind is _GIVE_UP or (u.at >= began and not u.from_preemption)]


def _least_avoided(avoided: Sequence[_Avoided], now: float) -> Choice:
    """The choice if all are avoided: of those whose cool-down is over, the one tried longest ago; else a wait."""
    left = [a for a in avoided if not any([u.kind is _GIVE_UP for u in a.reasons])]
    if not left:
        return Unsatisfiable(_why_given_up(avoided), request_at_fault=True)
    ready = [a for a in left if _available_at(a) <= now]
    early = [] if ready else [(_early_retry_at(a), a) for a in left]
    ready = ready or [a for at, a in early if at <= now]
    if ready:
        return Place(min(ready, key=_last_tried_at).offer)
    soonest = min(at for at, _ in early)
    return Wait(min(soonest, now + REEVALUATE_S), _why_avoided(early, now))


def _available_at(avoided: _Avoided) -> float:
    return max([u.until for u in avoided.reasons])


def _early_retry_at(avoided: _Avoided) -> float:
    """Like `_available_at`, but a preemption counts for a minute only. Used before a task would have to wait."""
    return max([min(u.until, u.at + EARLY_RETRY_S) if u.from_preemption else u.until for u in avoided.reasons])


def _last_tried_at(avoided: _Avoided) -> float:
    return max([u.at for u in avoided.reasons if not u.from_preemption], default=-inf)


# --- explanations for users -------------------------------------------------------------------------------------------


def _why_avoided(avoided: Sequence[tuple[float, _Avoided]], now: float) -> tuple[str, ...]:
    """`avoided`: until when, and which offer."""
    first = sorted(avoided, key=itemgetter(0))[:_MAX_LINES]
    lines = [f"{a.offer.name}: avoided for {at - now:.0f} s: {_explain(_last_to_expire(a))}" for at, a in first]
    if len(avoided) > len(first):
        lines.append(f"and {len(avoided) - len(first)} more")
    return tuple(lines)


def _why_given_up(avoided: Sequence[_Avoided]) -> tuple[str, ...]:
    """The clouds' error messages, each once."""
    messages = [(a.offer.cloud, _explain(u)) for a in avoided for u in a.reasons if u.kind is FaultKind.GIVE_UP]
    return tuple(f"{cloud}: {message}" for cloud, message in dict.fromkeys(messages))


def _last_to_expire(avoided: _Avoided) -> UnavailableOffer:
    return max(avoided.reasons, key=attrgetter("until"))


def _explain(unavailable: UnavailableOffer) -> str:
    return ": ".join(part for part in (unavailable.code, unavailable.message) if part) or unavailable.kind.value
