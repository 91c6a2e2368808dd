"""The plan of a launch that no offer fits."""

from __future__ import annotations

import pytest

from perdure.controller.submit.errors import RequestRejected
from perdure.controller.submit.plan import _offers_in_order
from perdure.recovery.job import TaskView
from perdure.recovery.market.requirements import Amount, MachineRequirement
from perdure.recovery.market.view import Market, MarketView, Offer

LOCAL, AWS = (
    Offer(cloud, "r", "z", "t", Market.ON_DEMAND, 1.0, 1.0, 8, 32, accelerators)
    for cloud, accelerators in (("local", None), ("aws", ("V100", 1.0)))
)


def rejection(requirement: MachineRequirement, *offers: Offer) -> str:
    with pytest.raises(RequestRejected) as caught:
        _offers_in_order(TaskView(0, (requirement,)), MarketView(offers), now=0.0)
    return f"{caught.value}; {caught.value.fix}"


def test_plan__tells_how_the_local_cloud_simulates_accelerators() -> None:
    fix = "set `local: {accelerators: {A100: 8}}` in config.yaml, then run: perdure controller stop"
    wanted = ("A100", 8.0)
    assert fix in rejection(MachineRequirement(accelerators=wanted), LOCAL)
    assert fix in rejection(MachineRequirement(cloud="local", accelerators=wanted), LOCAL, AWS)
    assert "perdure check" in rejection(MachineRequirement(accelerators=wanted), LOCAL, AWS)
    assert "--infra" not in rejection(MachineRequirement(accelerators=wanted), LOCAL)
    elsewhere = rejection(MachineRequirement(cloud="nebius", accelerators=wanted), LOCAL)
    assert elsewhere.endswith(f"{fix}; then launch it with --infra local")
    half = rejection(MachineRequirement(accelerators=("A100", 0.5)), LOCAL)
    assert "{A100: 1}" in half, "config.yaml takes whole numbers"


def test_plan__does_not_ask_for_a_setting_that_is_set() -> None:
    simulated = Offer("local", "r", "z", "t", Market.ON_DEMAND, 1.0, 1.0, 8, 32, ("A100", 8.0))
    wanted = MachineRequirement(cpus=Amount(2), accelerators=("A100", 8.0))
    text = rejection(wanted, LOCAL, simulated)
    assert "set `local" not in text
    assert "perdure check" in text


def test_plan__names_this_computer_if_the_named_cloud_sells_nothing() -> None:
    fix = "to try the task on this computer, add: --infra local"
    assert fix in rejection(MachineRequirement(cloud="aws"), LOCAL)
    assert fix not in rejection(MachineRequirement(cloud="aws", accelerators=("H100", 1.0)), LOCAL, AWS)
    assert fix not in rejection(MachineRequirement(cpus=Amount(999)), LOCAL)


def test_plan__says_once_that_no_offer_fits() -> None:
    assert rejection(MachineRequirement(cpus=Amount(999)), LOCAL).count("no offer fits") == 1
    assert rejection(MachineRequirement(cloud="mars"), LOCAL).startswith("no offer fits: ")
