"""The strategies by name."""

from __future__ import annotations

import pytest

from perdure.recovery.policies.registry import (
    FALLBACK_STRATEGY,
    STRATEGIES,
    UnknownStrategy,
    get_policy,
    policy_or_default,
)


def test_get_policy__ignores_case_and_rejects_unknown_names() -> None:
    assert get_policy("eager_next_region") is get_policy("EAGER_NEXT_REGION")
    assert FALLBACK_STRATEGY in STRATEGIES
    with pytest.raises(UnknownStrategy, match="'FASTEST'; choose one of CHEAPEST, FAILOVER, EAGER_NEXT_REGION"):
        get_policy("FASTEST")


def test_policy_or_default__is_cheapest_for_unknown_names() -> None:
    assert policy_or_default("SPREAD") is get_policy("SPREAD")
    for name in ("FASTEST", "DEADLINE without anything"):
        assert policy_or_default(name) is get_policy("CHEAPEST")
