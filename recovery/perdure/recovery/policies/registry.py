"""The strategies that `job_recovery` can name. `unnamed_strategy` chooses for a task that names none."""

from __future__ import annotations

from functools import cache

from perdure.recovery.policies.ablation import PARTS, ablate
from perdure.recovery.policies.decisions import NeverMoves, Policy
from perdure.recovery.policies.strategies.cheapest import cheapest
from perdure.recovery.policies.strategies.deadline import DeadlinePolicy
from perdure.recovery.policies.strategies.eager_next_region import eager_next_region
from perdure.recovery.policies.strategies.failover import failover
from perdure.recovery.policies.strategies.granted_slot import STRATEGY as QUEUED
from perdure.recovery.policies.strategies.granted_slot import granted_slot
from perdure.recovery.policies.strategies.spread import spread
from perdure.recovery.policies.strategies.value import ValuePolicy

# The strategy of a task that names none, unless `default_strategy` finds that enough is known for VALUE.
FALLBACK_STRATEGY = "CHEAPEST"

STRATEGIES: dict[str, str] = {
    "CHEAPEST": "the cheapest offer; one that was preempted is avoided for half an hour",
    "FAILOVER": "the region where the task ran first, then the others; cheapest first",
    "EAGER_NEXT_REGION": "after a preemption, other regions first and the same zone last; cheapest first",
    "SPREAD": "avoids zones that were recently preempted or used; cheapest first",
    "VALUE": "the least cost per unit of progress, including losses; moves when a cheaper offer pays for the move",
    "DEADLINE": "meets the deadline at the least cost: spot, with on-demand as the safety net",
}

_POLICIES: dict[str, Policy] = {
    "CHEAPEST": NeverMoves(cheapest),
    "FAILOVER": NeverMoves(failover),
    "EAGER_NEXT_REGION": NeverMoves(eager_next_region),
    "SPREAD": NeverMoves(spread),
    "VALUE": ValuePolicy(),
    "DEADLINE": DeadlinePolicy(),
    QUEUED: NeverMoves(granted_slot),  # of the jobs of clusters: no user can name it
}


class UnknownStrategy(LookupError):
    """No strategy has this name; the message lists those that exist."""


def get_policy(name: str) -> Policy:
    """The policy of that name, whatever its case. "DEADLINE without reserve" is that policy without one of its `PARTS`.

    Raises `UnknownStrategy`.
    """
    policy = _POLICIES.get(name) or _POLICIES.get(name.upper()) or _ablated_policy(name)
    if policy is None:
        raise UnknownStrategy(f"no recovery strategy is called {name!r}; choose one of {', '.join(STRATEGIES)}")
    return policy


def policy_or_default(name: str) -> Policy:
    """The policy of that name, or CHEAPEST: a stored task may name a strategy that this version does not have."""
    try:
        return get_policy(name)
    except UnknownStrategy:
        return _POLICIES[FALLBACK_STRATEGY]


@cache
def _ablated_policy(name: str) -> Policy | None:
    whole, _, part = name.partition(" without ")
    if not part or whole.upper() not in _POLICIES:
        return None
    policy = ablate(_POLICIES[whole.upper()], part)
    if policy is None:
        raise UnknownStrategy(f"{whole} has no part called {part!r}; choose one of {', '.join(PARTS)}")
    return policy
