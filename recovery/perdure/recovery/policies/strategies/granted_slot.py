"""QUEUED: a job of a cluster waits for its turn in the cluster's queue, and runs nowhere else."""

from __future__ import annotations

from perdure.recovery.job import TaskView
from perdure.recovery.market.slot_queue import SLOT_CLOUD
from perdure.recovery.market.view import MarketView
from perdure.recovery.policies.decisions import Choice, Place, Wait
from perdure.recovery.policies.placement import REEVALUATE_S

STRATEGY = "QUEUED"


def granted_slot(_task: TaskView, market: MarketView, now: float) -> Choice:
    """The slot that the queue has granted to this job; else a wait, which a `SlotGranted` event ends."""
    for offer in market.offers:
        if offer.cloud == SLOT_CLOUD:
            return Place(offer)
    return Wait(now + REEVALUATE_S, ("it waits in the queue of its cluster",))
