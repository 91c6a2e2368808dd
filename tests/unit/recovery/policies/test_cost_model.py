"""The cost model's limits."""

from __future__ import annotations

import pytest

from perdure.recovery.job import Recovery, TaskView
from perdure.recovery.market.history import History
from perdure.recovery.market.requirements import MachineRequirement
from perdure.recovery.market.view import Market, Offer
from perdure.recovery.policies.cost_model import CostModel

SPOT = Offer("aws", "east", "e1", "v", Market.SPOT, 1.0, 3.0, 8, 61)


def test_costs__of_endless_work_are_those_of_one_life() -> None:
    """A workload may report as many steps as a machine word holds, which takes longer than anything lasts."""
    task = TaskView(0, (MachineRequirement(),), recovery=Recovery(work_s=2.0**63 * 10))
    costs = CostModel(task, History(), 0.0)
    assert costs.stay_s(SPOT) == pytest.approx(History().life_s(SPOT.key, 0.0))
    assert costs.hourly_cost(SPOT) < costs.total_cost(SPOT) * 2
