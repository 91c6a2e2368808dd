"""The faults of the local cloud's codes."""

from __future__ import annotations

import pytest

from perdure.controller.clouds.local.launch_errors import CODES, LocalCloudError, classify
from perdure.recovery.market.unavailable import FaultKind
from perdure.recovery.market.view import Market
from perdure.recovery.reasons import Reason


@pytest.mark.parametrize("code", CODES)
def test_codes__have_a_meaning_and_a_text(code: str) -> None:
    fault = classify(LocalCloudError(code, zone="z"))
    assert fault.code == code
    assert fault.kind is not FaultKind.AMBIGUOUS
    assert CODES[code].text in fault.message
    assert fault.whole_region == (fault.kind is FaultKind.AVOID_REGION)
    assert fault.whole_cloud == (fault.kind is FaultKind.AVOID_CLOUD)


def test_classify__may_concern_one_market() -> None:
    assert not classify(LocalCloudError("InsufficientInstanceCapacity", market=Market.SPOT)).any_market
    assert classify(LocalCloudError("InsufficientInstanceCapacity")).any_market


def test_classify__treats_an_unknown_error_as_ambiguous() -> None:
    assert classify(OSError(28, "No space left on device")).kind is FaultKind.AMBIGUOUS


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
def test_codes__cover_every_kind(code: str, kind: FaultKind, reason: Reason) -> None:
    fault = classify(LocalCloudError(code))
    assert (fault.kind, fault.reason) == (kind, reason)
