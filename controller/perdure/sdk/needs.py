"""What a task's resources mean to the recovery engine."""

from __future__ import annotations

import math

from perdure.recovery.job import Recovery
from perdure.recovery.market import Offer
from perdure.recovery.needs import Amount, Need
from perdure.sdk import accelerators, deadlines
from perdure.sdk.resources import Alternatives, Resources


def needs(resources: Alternatives | Resources) -> tuple[Need, ...]:
    """One need for each alternative and each of its accelerators.

    Ranks count from 0 without gaps: they rise along what the user put in order (`ordered:`, then a list of
    accelerators), and are the same where price decides (`any_of:`, a set of accelerators).
    """
    alternatives = Alternatives.of(resources)
    placed: list[tuple[tuple[int, int], Resources, accelerators.Choice | None]] = []
    for index, option in enumerate(alternatives):
        choices = accelerators.choices(_canonical(option)) or (None,)
        in_order = accelerators.in_order(_canonical(option))
        for place, choice in enumerate(choices):
            order = (index if alternatives.ordered else 0, place if in_order else 0)
            placed.append((order, option, choice))
    ranks = {order: rank for rank, order in enumerate(sorted({order for order, _, _ in placed}))}
    return tuple(_need(option, choice, ranks[order]) for order, option, choice in placed)


def recovery(resources: Alternatives | Resources, *, launched_at: float = 0.0) -> Recovery:
    """`job_recovery`, which all alternatives share. A deadline without a date counts from `launched_at`."""
    given = next(iter(Alternatives.of(resources))).job_recovery or {}
    assert isinstance(given, dict)
    deadline, work = given.get("deadline"), given.get("work")
    return Recovery(
        strategy=given.get("strategy", "CHEAPEST"),
        max_restarts_on_errors=given.get("max_restarts_on_errors", 0),
        recover_on_exit_codes=frozenset(given.get("recover_on_exit_codes", ())),
        deadline_at=None if deadline is None else deadlines.moment(deadline, launched_at=launched_at),
        work_s=None if work is None else deadlines.seconds(work),
        patience=given.get("patience", Recovery.patience),
        move_cost=given.get("move_cost", Recovery.move_cost),
    )


def names_strategy(resources: Alternatives | Resources) -> bool:
    """Whether the user chose one, or a deadline, which implies one."""
    given = next(iter(Alternatives.of(resources))).job_recovery
    return isinstance(given, dict) and "strategy" in given


def gpus_per_node(resources: Alternatives | Resources, offer: Offer | None = None) -> int:
    """Accelerators of one node, a fraction counted as one: those of `offer`, or of the first alternative without it."""
    if offer is not None:
        return math.ceil(offer.accelerators[1]) if offer.accelerators else 0
    first = needs(resources)[0]
    return math.ceil(first.accelerators[1]) if first.accelerators else 0


def _need(option: Resources, accelerator: accelerators.Choice | None, rank: int) -> Need:
    return Need(
        cloud=option.cloud,
        region=option.region,
        zone=option.zone,
        instance_type=option.instance_type,
        cpus=_amount(option.cpus),
        memory_gib=_amount(option.memory),
        accelerators=accelerator,
        use_spot=option.use_spot,
        max_price_per_hour=option.max_hourly_cost,
        rank=rank,
    )


def _amount(text: object) -> Amount | None:
    if text is None:
        return None
    return Amount(float(str(text).rstrip("+")), at_least=str(text).endswith("+"))


def _canonical(option: Resources) -> accelerators.Accelerators | None:
    assert not isinstance(option.accelerators, str)
    return option.accelerators
