"""What `perdure check --deep` reports: whether a cloud would accept launches as they are made. It buys nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, runtime_checkable

from perdure.controller.clouds.base.account_checks import Finding, Severity, parallel
from perdure.controller.clouds.base.protocol import Bootstrap, Fault, LaunchRequest, Owner
from perdure.recovery.market.view import Offer

SUBJECT = "launches"
_CONTROLLER = "perdure-check"  # no controller has this id


@runtime_checkable
class RehearsesLaunches(Protocol):
    """A cloud that can check a launch without making it."""

    def rehearse(self) -> Sequence[Finding]:
        """Check a launch in each region and market, with the configured network, image and role. Does not raise."""
        ...


def sample_offers(offers: Iterable[Offer]) -> list[Offer]:
    """The cheapest offer of each region and market, without and with accelerators: these need different images."""
    cheapest: dict[tuple[object, ...], Offer] = {}
    for offer in offers:
        kind = (offer.region, offer.market, offer.accelerators is None)
        if kind not in cheapest or offer.price_per_hour < cheapest[kind].price_per_hour:
            cheapest[kind] = offer
    return list(cheapest.values())


def request_for(offer: Offer) -> LaunchRequest:
    """A launch of one machine of the offer, for nobody."""
    owner = Owner(_CONTROLLER, 0, 0, 0, "perdure-check")
    return LaunchRequest(owner, offer, 1, Bootstrap("https://check", "", {"agent": "0" * 64}), "perdure-check")


def rehearse(
    offers: Sequence[Offer], attempt: Callable[[Offer], object], classify: Callable[[Exception], Fault]
) -> list[Finding]:
    """One finding for all offers that the cloud would launch, and one for each that it rejects.

    `attempt`: raises the cloud's error for an offer that it would not launch.
    """

    def check_one(offer: Offer) -> list[Finding]:
        try:
            attempt(offer)
        except Exception as error:  # noqa: BLE001 - a rejection is a finding
            fault = classify(error)
            what = f"{offer.region}, {offer.market.value}, {offer.instance_type}"
            return [Finding(SUBJECT, Severity.WARNING, f"{what}: {fault.code}: {fault.message}")]
        return []

    rejected = parallel(check_one, offers)
    if len(rejected) == len(offers):  # nothing can be launched
        return [Finding(SUBJECT, Severity.ERROR, one.text, one.fix) for one in rejected]
    accepted = f"{len(offers) - len(rejected)} of {len(offers)} rehearsed launches are accepted"
    return [Finding(SUBJECT, Severity.OK, accepted), *rejected]
