"""How every strategy chooses: which offers may be tried now, and which of them is first.

A strategy only says which offers it would rather keep for last; fit, rank, price and refusals are treated alike by all.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from math import inf
from operator import attrgetter, itemgetter
from typing import NamedTuple

from perdure.recovery.job import TaskView
from perdure.recovery.market import FaultKind, MarketView, Offer, OfferKey, Refusal
from perdure.recovery.matching import fitting, why_nothing_fits
from perdure.recovery.needs import Need
from perdure.recovery.policies.choice import Choice, Never, Place, Wait
from perdure.recovery.policies.cooldown import EARLY_RETRY_S

# Prices move and other jobs learn: a longer wait is cut short to look again.
LOOK_AGAIN_S = 600.0
_MOST_LINES = 20

_GIVE_UP = FaultKind.GIVE_UP

# Offers for which this is greater are tried later, among those of one rank.
Reluctance = Callable[[Offer], tuple[bool, ...]]

# What an offer really costs per hour of work: never below its price. The least is tried first, among those of one rank.
Worth = Callable[[Offer], float]


class _Avoided(NamedTuple):
    """An offer that fits, and what stands against it: one refusal at least."""

    offer: Offer
    refusals: Sequence[Refusal]


def choose(
    task: TaskView,
    market: MarketView,
    now: float,
    reluctance: Reluctance | None = None,
    *,
    worth: Worth | None = None,
    needs: tuple[Need, ...] | None = None,
) -> Choice:
    """The first of the offers that may be tried now: by turn, rank, `reluctance`, price; or by turn, rank and `worth`.
    `needs`: instead of all of the task's.

    *Turn*: within one search (launches refused in a row) no offer is tried twice before every other one that is free
    was tried once, so neither a short refusal nor a slow cloud can make a cheap offer starve the rest.
    """
    needs = task.needs if needs is None else needs
    fit = fitting(needs, market.offers)
    if not fit:
        return Never(why_nothing_fits(needs, market))
    index = RefusalIndex(_standing(market.refusals, task.refused_in_a_row, now))
    if reluctance is not None:
        willing = _least_reluctant(fit, index, reluctance)
        if willing is not None:
            return Place(willing)
        fit.sort(key=lambda ranked: (ranked[0], reluctance(ranked[1])))
    avoided: list[_Avoided] = []
    best = first_free(fit, index, worth, avoided)
    return Place(best) if best else _least_bad(avoided, now)


def first_free(
    fit: Iterable[tuple[int, Offer]], index: RefusalIndex, worth: Worth | None, avoided: list[_Avoided]
) -> Offer | None:
    """Of `fit`, in order of rank and price, the best against which nothing stands; `avoided` gets those passed over."""
    best, best_rank, least = None, 0, inf
    for rank, offer in fit:
        if best is not None and (rank > best_rank or offer.price_per_hour >= least):
            break  # ordered by price, and no offer is worth more than its price says
        refusals = index.covering(offer)
        if refusals:
            avoided.append(_Avoided(offer, refusals))
            continue
        if worth is None:
            return offer
        if (costs := worth(offer)) < least:
            best, best_rank, least = offer, rank, costs
    return best


def _least_reluctant(fit: Iterable[tuple[int, Offer]], index: RefusalIndex, reluctance: Reluctance) -> Offer | None:
    """Of `fit`, in order of rank and price, the first of least rank and reluctance against which nothing stands."""
    best, best_rank, least = None, 0, tuple[bool, ...]()
    for rank, offer in fit:
        if best is not None and rank > best_rank:
            break
        if index.covering(offer):
            continue
        kept_for_last = reluctance(offer)
        if not any(kept_for_last):
            return offer
        if best is None or kept_for_last < least:
            best, best_rank, least = offer, rank, kept_for_last
    return best


def _standing(refusals: Iterable[Refusal], refused_in_a_row: int, now: float) -> list[Refusal]:
    """The refusals that count: those in force, those without end, and those of this search, run out or not.

    This search's are taken to be the latest `refused_in_a_row`: another job's refusals are as good as one's own.
    """
    began = inf
    if refused_in_a_row:
        turns = sorted([r.at for r in refusals if not r.from_preemption])[-refused_in_a_row:]
        began = turns[0] if turns else inf
    return [r for r in refusals if r.until > now or r.kind is _GIVE_UP or (r.at >= began and not r.from_preemption)]


def _least_bad(avoided: Sequence[_Avoided], now: float) -> Choice:
    """When something stands against every offer: whose turn it is among those that are free again, else a wait."""
    left = [a for a in avoided if not any([r.kind is _GIVE_UP for r in a.refusals])]
    if not left:
        return Never(_why_given_up(avoided), is_request=True)
    ready = [a for a in left if _free_at(a) <= now]
    early = [] if ready else [(_early_at(a), a) for a in left]
    ready = ready or [a for at, a in early if at <= now]
    if ready:
        return Place(min(ready, key=_last_turn).offer)
    soonest = min(at for at, _ in early)
    return Wait(min(soonest, now + LOOK_AGAIN_S), _why_avoided(early, now))


def _free_at(avoided: _Avoided) -> float:
    return max([r.until for r in avoided.refusals])


def _early_at(avoided: _Avoided) -> float:
    """Like `_free_at`, but a preemption counts for a minute only: the last resort before idling."""
    return max([min(r.until, r.at + EARLY_RETRY_S) if r.from_preemption else r.until for r in avoided.refusals])


def _last_turn(avoided: _Avoided) -> float:
    return max([r.at for r in avoided.refusals if not r.from_preemption], default=-inf)


# --- for people -------------------------------------------------------------------------------------------------------


def _why_avoided(avoided: Sequence[tuple[float, _Avoided]], now: float) -> tuple[str, ...]:
    """`avoided`: until when, and what."""
    first = sorted(avoided, key=itemgetter(0))[:_MOST_LINES]
    lines = [f"{a.offer.name}: avoided for {at - now:.0f} s: {_said(_longest(a))}" for at, a in first]
    if len(avoided) > len(first):
        lines.append(f"and {len(avoided) - len(first)} more")
    return tuple(lines)


def _why_given_up(avoided: Sequence[_Avoided]) -> tuple[str, ...]:
    """What the clouds said, once for each thing said."""
    said = [(c.offer.cloud, _said(r)) for c in avoided for r in c.refusals if r.kind is FaultKind.GIVE_UP]
    return tuple(f"{cloud}: {text}" for cloud, text in dict.fromkeys(said))


def _longest(avoided: _Avoided) -> Refusal:
    return max(avoided.refusals, key=attrgetter("until"))


def _said(refusal: Refusal) -> str:
    return ": ".join(part for part in (refusal.code, refusal.message) if part) or refusal.kind.value


# --- all refusals -----------------------------------------------------------------------------------------------------


class RefusalIndex:
    """Finds the refusals that cover an offer without looking at all of them.

    Refusals that leave the same fields open are kept in one table, by the fields that they name.
    """

    def __init__(self, refusals: Iterable[Refusal]) -> None:
        shapes: dict[tuple[int, ...], dict[Hashable, list[Refusal]]] = {}
        exact: dict[OfferKey, list[Refusal]] = {}
        for r in refusals:
            if (key := r.exact) is not None:
                if key in exact:
                    exact[key].append(r)
                else:
                    exact[key] = [r]
                continue
            scope = (r.cloud, r.region, r.zone, r.instance_type, r.market)
            named = tuple([i for i, field in enumerate(scope) if field is not None])
            shapes.setdefault(named, {}).setdefault(itemgetter(*named)(scope), []).append(r)
        self._exact = exact
        self._tables = [(itemgetter(*named), table) for named, table in shapes.items()] if shapes else []

    def covering(self, offer: Offer) -> list[Refusal]:
        """As `[r for r in refusals if r.covers(offer)]`, in no particular order."""
        key = offer.key
        exact = self._exact.get(key, [])
        if not self._tables:
            return exact
        return [*exact, *(r for fields, table in self._tables for r in table.get(fields(key), ()))]
