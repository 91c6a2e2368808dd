"""The strategies that `job_recovery` can name."""

from __future__ import annotations

from functools import cache

from perdure.recovery.policies.cheapest import cheapest
from perdure.recovery.policies.choice import Policy, Steadfast
from perdure.recovery.policies.deadline import Deadline
from perdure.recovery.policies.eager_next_region import eager_next_region
from perdure.recovery.policies.failover import failover
from perdure.recovery.policies.parts import PARTS, without
from perdure.recovery.policies.spread import spread
from perdure.recovery.policies.value import Value

DEFAULT = "CHEAPEST"

STRATEGIES: dict[str, str] = {
    "CHEAPEST": "wherever it is cheapest now; an offer that took a machine back is left alone for half an hour",
    "FAILOVER": "the region where the task ran first, then the others, by price",
    "EAGER_NEXT_REGION": "after a preemption another region first, the same zone last",
    "SPREAD": "away from zones that took machines or were used lately, then by price",
    "VALUE": "the least cost per unit of progress, losses counted in; moves to what is cheaper when that pays",
    "DEADLINE": "in time for certain, at the least cost that this allows: spot, with on-demand as the safety net",
}

_POLICIES: dict[str, Policy] = {
    "CHEAPEST": Steadfast(cheapest),
    "FAILOVER": Steadfast(failover),
    "EAGER_NEXT_REGION": Steadfast(eager_next_region),
    "SPREAD": Steadfast(spread),
    "VALUE": Value(),
    "DEADLINE": Deadline(),
}


class UnknownStrategy(LookupError):
    """No strategy has this name; the message lists those that exist."""


def policy(name: str) -> Policy:
    """The policy of that name, whatever its case; "DEADLINE without reserve" is one short of one of its `PARTS`.

    Raises `UnknownStrategy`.
    """
    found = _POLICIES.get(name) or _POLICIES.get(name.upper()) or _short_of_a_part(name)
    if found is None:
        raise UnknownStrategy(f"no recovery strategy is called {name!r}; choose one of {', '.join(STRATEGIES)}")
    return found


@cache
def _short_of_a_part(name: str) -> Policy | None:
    whole, _, part = name.partition(" without ")
    if not part or whole.upper() not in _POLICIES:
        return None
    found = without(_POLICIES[whole.upper()], part)
    if found is None:
        raise UnknownStrategy(f"{whole} has no part called {part!r}; choose one of {', '.join(PARTS)}")
    return found
