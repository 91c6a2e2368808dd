"""Amounts of `perdure users set-budget`."""

from __future__ import annotations

import pytest

from perdure.cli.controller import users
from unit.cli.commands import RunPerdure


@pytest.mark.parametrize(("amount", "text"), [(0.0000001, "0.0000001"), (500.0, "500"), (2.5, "2.5"), (0.0, "0")])
def test_plain__has_no_exponent(amount: float, text: str) -> None:
    assert users._plain(amount) == text


def test_set_budget__of_a_negative_amount_says_so(perdure: RunPerdure) -> None:
    result = perdure("users", "set-budget", "alice", "-5")
    assert result.exit_code == 2
    assert "'-5' is not an amount" in result.stderr
