"""Converts a task's resources to the types of the recovery engine."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from perdure.recovery.job import Recovery
from perdure.recovery.market.requirements import Amount, MachineRequirement
from perdure.recovery.market.view import Offer
from perdure.sdk.resources import Alternatives, Resources
from perdure.sdk.spec import accelerators
from perdure.sdk.spec.values import deadlines


@dataclass(frozen=True)
class Candidate:
    """One alternative of a task's resources, with one of its accelerators and the image of one region."""

    option: Resources
    image_id: str | None  # None: the cloud's default
    requirement: MachineRequirement


def candidates(resources: Alternatives | Resources) -> tuple[Candidate, ...]:
    """One for each alternative, each of its accelerators, and each region that `image_id` names.

    Ranks count from 0 without gaps. They rise with the user's order (`ordered:`, then a list of accelerators), and are
    equal where the price decides (`any_of:`, a set of accelerators). Each GPU that has the memory of an amount such as
    `80GB+` is an accelerator.
    """
    alternatives = Alternatives.from_resources(resources)
    placed: list[tuple[tuple[int, int], Resources, accelerators.Choice | None]] = []
    for index, option in enumerate(alternatives):
        choices = accelerators.choices(_canonical(option)) or (None,)
        is_ordered = accelerators.is_ordered(_canonical(option))
        for place, choice in enumerate(choices):
            order = (index if alternatives.ordered else 0, place if is_ordered else 0)
            placed += [(order, option, one) for one in (accelerators.with_memory(choice) if choice else (None,))]
    ranks = {order: rank for rank, order in enumerate(sorted({order for order, _, _ in placed}))}
    return tuple(
        Candidate(option, image_id, _machine_requirement(option, region, choice, ranks[order]))
        for order, option, choice in placed
        for region, image_id in _images(option)
    )


def count_candidates(resources: Alternatives | Resources) -> int:
    """How many `candidates` there are, at low cost; an amount of memory counts as one accelerator."""
    return sum(
        max(1, len(_canonical(option) or ())) * (len(option.image_id) if isinstance(option.image_id, dict) else 1)
        for option in Alternatives.from_resources(resources)
    )


def machine_requirements(resources: Alternatives | Resources) -> tuple[MachineRequirement, ...]:
    """The requirements of the `candidates`."""
    return tuple(candidate.requirement for candidate in candidates(resources))


def recovery(resources: Alternatives | Resources, *, launched_at: float = 0.0) -> Recovery:
    """`job_recovery`, which is the same in all alternatives. A deadline without a date counts from `launched_at`."""
    given = next(iter(Alternatives.from_resources(resources))).job_recovery or {}
    assert isinstance(given, dict)
    deadline, work = given.get("deadline"), given.get("work")
    durations = {
        name: deadlines.seconds(given[name])
        for name in ("keep_on_failure", "stuck_after", "restart_when_stuck", "max_duration")
        if name in given
    }
    return Recovery(
        strategy=given.get("strategy", "CHEAPEST"),
        max_restarts_on_errors=given.get("max_restarts_on_errors", 0),
        recover_on_exit_codes=frozenset(given.get("recover_on_exit_codes", ())),
        deadline_at=None if deadline is None else deadlines.moment(deadline, launched_at=launched_at),
        work_s=None if work is None else deadlines.seconds(work),
        on_time=given.get("on_time", Recovery.on_time),
        patience=given.get("patience", Recovery.patience),
        move_cost=given.get("move_cost", Recovery.move_cost),
        keep_on_failure_s=durations.get("keep_on_failure", 0.0),
        stuck_after_s=durations.get("stuck_after"),
        restart_when_stuck_s=durations.get("restart_when_stuck"),
        max_duration_s=durations.get("max_duration"),
        max_cost=given.get("max_cost"),
    )


def chooses_strategy(resources: Alternatives | Resources) -> bool:
    """Whether the task names a strategy, or a deadline, which implies one."""
    given = next(iter(Alternatives.from_resources(resources))).job_recovery
    return isinstance(given, dict) and "strategy" in given


def gpus_per_node(resources: Alternatives | Resources, offer: Offer | None = None) -> int:
    """The accelerators of one node of `offer`, or else of the first alternative. A fraction counts as one."""
    if offer is not None:
        return math.ceil(offer.accelerators[1]) if offer.accelerators else 0
    first = machine_requirements(resources)[0]
    return math.ceil(first.accelerators[1]) if first.accelerators else 0


def _images(option: Resources) -> Iterator[tuple[str | None, str | None]]:
    """(region, image) for each region that the alternative admits: it has no image in the others."""
    if not isinstance(option.image_id, dict):
        yield option.region, option.image_id
        return
    for region, image_id in option.image_id.items():
        if option.region is None or option.region.lower() == region.lower():
            yield region, image_id


def _machine_requirement(
    option: Resources, region: str | None, accelerator: accelerators.Choice | None, rank: int
) -> MachineRequirement:
    return MachineRequirement(
        cloud=option.cloud,
        region=region,
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
