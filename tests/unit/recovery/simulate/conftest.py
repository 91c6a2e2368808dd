"""A function that makes zones, for each test."""

from __future__ import annotations

import pytest

from unit.recovery.simulate.markets import MakeZone, make_zone


@pytest.fixture
def zone() -> MakeZone:
    return make_zone
