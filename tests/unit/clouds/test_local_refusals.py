"""What the local cloud's codes mean."""

from __future__ import annotations

import pytest

from perdure.controller.clouds.local.refusals import CODES, LocalRefusal, classify
from perdure.recovery.market import FaultKind, Market
from perdure.recovery.reasons import Reason


@pytest.mark.parametrize("code", CODES)
def test_every_code_has_a_meaning_and_a_text(code: str) -> None:
    fault = classify(LocalRefusal(code, zone="z"))
    assert fault.code == code
    assert fault.kind is not FaultKind.FIND_OUT
    assert CODES[code].text in fault.message
    assert fault.whole_region == (fault.kind is FaultKind.AVOID_REGION)
    assert fault.whole_cloud == (fault.kind is FaultKind.AVOID_CLOUD)


def test_one_market_may_be_refused_alone() -> None:
    assert not classify(LocalRefusal("InsufficientInstanceCapacity", market=Market.SPOT)).any_market
    assert classify(LocalRefusal("InsufficientInstanceCapacity")).any_market


def test_what_it_is_not_sure_of_may_have_happened() -> None:
    assert classify(OSError(28, "No space left on device")).kind is FaultKind.FIND_OUT


@pytest.mark.parametrize(
    ("code", "kind", "reason"),
    [
        ("InsufficientInstanceCapacity", FaultKind.AVOID_ZONE, Reason.NO_CAPACITY),
        ("MaxSpotInstanceCountExceeded", FaultKind.AVOID_REGION, Reason.QUOTA),
        ("UnauthorizedOperation", FaultKind.AVOID_CLOUD, Reason.BAD_CREDENTIALS),
        ("RequestLimitExceeded", FaultKind.RETRY_LATER, Reason.THROTTLED),
        ("InvalidParameterValue", FaultKind.GIVE_UP, Reason.BAD_REQUEST),
    ],
)
def test_one_of_each_kind(code: str, kind: FaultKind, reason: Reason) -> None:
    fault = classify(LocalRefusal(code))
    assert (fault.kind, fault.reason) == (kind, reason)
