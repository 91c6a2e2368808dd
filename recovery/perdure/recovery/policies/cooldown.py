"""How long an offer that said no, or took a machine back, is left alone: the refusals that say so.

Two rules keep refusals from doing harm. One that the request itself brought about (`GIVE_UP`) concerns that job alone:
do not show it to the policies of another. One that follows a preemption is soft: see `EARLY_RETRY_S`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter

from perdure.recovery.market import FaultKind, Offer, Refusal
from perdure.recovery.reasons import Reason

# A zone that took a machine back and has room again loses it within half an hour in 46 to 60 of 100 cases.
PREEMPTION_COOLDOWN_S = 1800.0

# When nothing else is left, a zone that took a machine back is tried again after this long: it may have room again
# (23 to 56 of 100 had after 10 minutes), and waiting for the rest of the cool-down would earn nothing.
EARLY_RETRY_S = 60.0

_AT = attrgetter("at")

# Refusals older than this do not lengthen the next one.
_REMEMBERED_S = 4 * 3600.0


@dataclass(frozen=True)
class Cooldown:
    """Doubles from `first_s` to `most_s` with every refusal that follows an earlier one's end."""

    first_s: float
    most_s: float


COOLDOWNS: dict[FaultKind, Cooldown] = {
    FaultKind.AVOID_ZONE: Cooldown(first_s=180, most_s=600),
    FaultKind.AVOID_REGION: Cooldown(first_s=1800, most_s=3600),
    FaultKind.AVOID_CLOUD: Cooldown(first_s=3600, most_s=3600),
    FaultKind.RETRY_LATER: Cooldown(first_s=15, most_s=240),
    FaultKind.FIND_OUT: Cooldown(first_s=15, most_s=240),
    FaultKind.GIVE_UP: Cooldown(first_s=24 * 3600, most_s=24 * 3600),  # policies never come back to it anyway
}


def preemption_refusal(offer: Offer, now: float, *, cooldown_s: float = PREEMPTION_COOLDOWN_S) -> Refusal:
    """`offer` just took a machine back (or its machine went away): its zone, type and market cool down."""
    return Refusal(
        cloud=offer.cloud,
        region=offer.region,
        zone=offer.zone,
        instance_type=offer.instance_type,
        market=offer.market,
        kind=FaultKind.AVOID_ZONE,
        at=now,
        until=now + cooldown_s,
        message="took a machine back",
        from_preemption=True,
    )


def launch_refusal(
    offer: Offer,
    now: float,
    *,
    kind: FaultKind,
    reason: Reason = Reason.NO_CAPACITY,
    earlier: Iterable[Refusal] = (),
    retry_after_s: float | None = None,
    whole_region: bool = False,
    whole_cloud: bool = False,
    any_market: bool = False,
    any_instance_type: bool = False,
    code: str = "",
    message: str = "",
) -> Refusal:
    """A launch of `offer` failed for good, and no machine is left of it.

    `retry_after_s` is the cloud's own word and is taken as it is; without one the table decides, longer each time that
    `earlier` refusals have run out in vain. Broken credentials make the cloud unusable for this job: that is `GIVE_UP`.
    """
    broken = reason is Reason.BAD_CREDENTIALS
    kind = FaultKind.GIVE_UP if broken else kind
    whole_cloud = whole_cloud or broken or kind is FaultKind.AVOID_CLOUD
    whole_region = whole_region or whole_cloud or kind is FaultKind.AVOID_REGION
    avoid_s = retry_after_s if retry_after_s is not None else cooldown_s(kind, repeats(offer, earlier, now, kind=kind))
    return Refusal(
        cloud=offer.cloud,
        region=None if whole_cloud else offer.region,
        zone=None if whole_region else offer.zone,
        instance_type=None if any_instance_type or broken else offer.instance_type,
        market=None if any_market or broken else offer.market,
        kind=kind,
        at=now,
        until=now + avoid_s,
        code=code,
        message=message,
    )


def cooldown_s(kind: FaultKind, earlier: int) -> float:
    """Seconds to avoid what was refused after `earlier` refusals of the same kind in vain."""
    table = COOLDOWNS[kind]
    return min(table.most_s, table.first_s * 2.0 ** min(earlier, 32))


def repeats(offer: Offer, refusals: Iterable[Refusal], now: float, *, kind: FaultKind) -> int:
    """How often `offer` was tried in vain lately: refusals of one kind, those that ran side by side counted once."""
    since, key = now - _REMEMBERED_S, offer.key
    alike = [
        r
        for r in refusals
        if r.at > since and r.kind is kind and not r.from_preemption and (r.exact == key or r.covers(offer))
    ]
    alike.sort(key=_AT)
    count, until = 0, 0.0
    for refusal in alike:
        if refusal.at >= until:
            count, until = count + 1, refusal.until
    return count
