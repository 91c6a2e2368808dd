"""How long an offer is avoided after a failed launch or a preemption.

The clouds' faults give the kind of a failed launch. The controller's intent executor and `rules.context` call this
module. `policies.placement` enforces what it returns.

Two rules keep this from doing harm. A failure that the request itself caused (`GIVE_UP`) concerns only its own job: do
not show it to the policies of other jobs. A preemption is only a soft obstacle: see `EARLY_RETRY_S`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import isfinite
from operator import attrgetter

from perdure.recovery.market.unavailable import FaultKind, UnavailableOffer
from perdure.recovery.market.view import Offer
from perdure.recovery.reasons import Reason

# A zone that has capacity again after a preemption loses it within half an hour in 46 to 60 % of cases.
PREEMPTION_COOLDOWN_S = 1800.0

# If no other offer is left, a preempted one is tried again after this long: 23 to 56 % of zones had capacity again
# after 10 minutes, and waiting for the rest of the cool-down would gain nothing.
EARLY_RETRY_S = 60.0

_AT = attrgetter("at")

# Failures older than this do not lengthen the next cool-down.
_REMEMBERED_S = 4 * 3600.0

# Times are epoch seconds, whose differences are rounded.
_ROUNDING_S = 0.001
# No cool-down doubles more often before it is at its maximum.
_MAX_DOUBLINGS = 8


@dataclass(frozen=True)
class Cooldown:
    """Doubles from `initial_s` up to `max_s` with every failure that follows an expired cool-down."""

    initial_s: float
    max_s: float


COOLDOWNS: dict[FaultKind, Cooldown] = {
    FaultKind.AVOID_ZONE: Cooldown(initial_s=180, max_s=600),
    FaultKind.AVOID_REGION: Cooldown(initial_s=1800, max_s=3600),
    FaultKind.AVOID_CLOUD: Cooldown(initial_s=3600, max_s=3600),
    FaultKind.RETRY_LATER: Cooldown(initial_s=15, max_s=240),
    FaultKind.AMBIGUOUS: Cooldown(initial_s=15, max_s=240),
    FaultKind.GIVE_UP: Cooldown(initial_s=24 * 3600, max_s=24 * 3600),  # policies never retry it anyway
}


def unavailable_after_preemption(
    offer: Offer, now: float, *, cooldown_s: float = PREEMPTION_COOLDOWN_S, unconfirmed: bool = False
) -> UnavailableOffer:
    """A machine of `offer` was just preempted, or was lost: its zone, instance type and market cool down.

    `unconfirmed`: a node alone reports it, so only its own job avoids the offer.
    """
    return UnavailableOffer(
        cloud=offer.cloud,
        region=offer.region,
        zone=offer.zone,
        instance_type=offer.instance_type,
        market=offer.market,
        kind=FaultKind.AVOID_ZONE,
        at=now,
        until=now + cooldown_s,
        message="a machine was preempted there",
        from_preemption=True,
        unconfirmed=unconfirmed,
    )


def unavailable_after_launch(
    offer: Offer,
    now: float,
    *,
    kind: FaultKind,
    reason: Reason = Reason.NO_CAPACITY,
    earlier: Iterable[UnavailableOffer] = (),
    retry_after_s: float | None = None,
    whole_region: bool = False,
    whole_cloud: bool = False,
    any_market: bool = False,
    any_instance_type: bool = False,
    code: str = "",
    message: str = "",
) -> UnavailableOffer:
    """A launch of `offer` failed for good, and no machine is left of it.

    `retry_after_s`: the time to wait that the cloud named, used unchanged. Without a finite one, `COOLDOWNS` decides:
    the more tries have failed according to `earlier` (see `failed_tries`), the longer. Broken credentials make the
    cloud unusable for this job, so their kind is `GIVE_UP`.
    """
    broken = reason is Reason.BAD_CREDENTIALS
    kind = FaultKind.GIVE_UP if broken else kind
    whole_cloud = whole_cloud or broken or kind is FaultKind.AVOID_CLOUD
    whole_region = whole_region or whole_cloud or kind is FaultKind.AVOID_REGION
    if retry_after_s is None or not isfinite(retry_after_s):
        retry_after_s = cooldown_s(kind, failed_tries(offer, earlier, now, kind=kind))
    return UnavailableOffer(
        cloud=offer.cloud,
        region=None if whole_cloud else offer.region,
        zone=None if whole_region else offer.zone,
        instance_type=None if any_instance_type or broken else offer.instance_type,
        market=None if any_market or broken else offer.market,
        kind=kind,
        at=now,
        until=now + retry_after_s,
        code=code,
        message=message,
    )


def cooldown_s(kind: FaultKind, earlier: int) -> float:
    """Seconds to avoid an offer after `earlier` failures of the same kind."""
    table = COOLDOWNS[kind]
    return min(table.max_s, table.initial_s * 2.0 ** min(earlier, 32))


def has_default_cooldown(unavailable: UnavailableOffer) -> bool:
    """Whether `unavailable` is avoided for as long as `cooldown_s` says, rather than for a time that its cause has of
    its own: hours for what a zone does not sell at all, or the time that the cloud named."""
    duration, table = unavailable.until - unavailable.at, COOLDOWNS[unavailable.kind]
    if duration > table.max_s + _ROUNDING_S:
        return False
    return any(abs(duration - cooldown_s(unavailable.kind, tries)) < _ROUNDING_S for tries in range(_MAX_DOUBLINGS))


def failed_tries(offer: Offer, failures: Iterable[UnavailableOffer], now: float, *, kind: FaultKind) -> int:
    """How often `offer` failed recently with `kind`. Failures while an earlier one was in force count as one."""
    since, key = now - _REMEMBERED_S, offer.key
    alike = [
        u
        for u in failures
        if u.at > since and u.kind is kind and not u.from_preemption and (u.exact == key or u.covers(offer))
    ]
    alike.sort(key=_AT)
    count, until = 0, 0.0
    for failure in alike:
        if failure.at >= until:
            count, until = count + 1, failure.until
    return count
