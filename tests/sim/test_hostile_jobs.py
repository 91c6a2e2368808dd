"""Histories with a job that sends false notices from each of its machines, alone and beside other faults."""

from __future__ import annotations

from typing import Any

import pytest

from faultworld.history import run
from faultworld.scenario import scenario_of
from perdure.controller.reconcile.loop import Reconciler
from perdure.recovery.rules.machine_loss import evidence

COUNT = 24
OTHERS = ("preempt", "notice", "crash", "disconnect", "kill")


@pytest.mark.slow
@pytest.mark.parametrize("kinds", [("false-notices",), ("false-notices", *OTHERS)], ids=["alone", "with-others"])
@pytest.mark.timeout(900)
def test_false_notices__cost_no_other_job_its_offers(kinds: tuple[str, ...]) -> None:
    sent = 0
    for seed in range(COUNT):
        history = run(scenario_of(seed, kinds=kinds))
        assert history.violation is None, f"seed {seed}: {history.violation}"
        sent += history.trace.count("sends a false notice")
    assert sent > COUNT / 2


def first_violation(kinds: tuple[str, ...]) -> str:
    histories = (run(scenario_of(seed, kinds=kinds)) for seed in range(COUNT))
    return next((str(h.violation) for h in histories if h.violation is not None), "")


@pytest.mark.timeout(900)
def test_invariant__reveals_a_notice_that_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    real = evidence._evidence

    def believe(attempt: Any, now: float, **more: bool) -> Any:
        return real(attempt, now, **more | {"confirmed": True})

    monkeypatch.setattr(evidence, "_evidence", believe)
    assert "though no cloud has taken a machine" in first_violation(("false-notices",))


@pytest.mark.timeout(900)
def test_invariant__reveals_recoveries_without_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    unlimited = Reconciler.__init__

    def without_limit(self: Reconciler, **more: Any) -> None:
        unlimited(self, **more, recoveries_per_hour=None)

    monkeypatch.setattr(Reconciler, "__init__", without_limit)
    assert "attempts in an hour" in first_violation(("false-notices",))
