"""What the loss of an attempt's machines says of their offer, and for whom it counts.

A node is a stranger: it may report a notice that no cloud sent, or disconnect at will. So a loss counts for the node's
own job alone until the cloud confirms it (`AttemptView.loss_confirmed`): by a notice from its own queue, or because it
reports that the machine is gone. Then it counts for every job.
"""

from __future__ import annotations

from perdure.recovery.actions import Action, AvoidOffer, RecordObservation
from perdure.recovery.frozen import replace
from perdure.recovery.job import AttemptView
from perdure.recovery.market.cooldown import unavailable_after_preemption
from perdure.recovery.market.history import OfferObservation
from perdure.recovery.reasons import PREEMPTIONS, Reason

# After a loss for one of these reasons, the offer cools down.
COOLDOWN_REASONS = {
    Reason.PREEMPTED,
    Reason.PREEMPTION_NOTICE,
    Reason.MACHINE_CRASHED,
    Reason.UNREACHABLE,
    Reason.BOOT_TIMEOUT,
}


def evidence_of_loss(attempt: AttemptView, reason: Reason, now: float) -> list[Action]:
    """What the loss of `attempt` for `reason` says of its offer, as far as is known now."""
    if reason not in COOLDOWN_REASONS:
        return []
    return _evidence(attempt, now, confirmed=attempt.loss_confirmed, preempted=reason in PREEMPTIONS)


def confirm_loss(attempt: AttemptView, now: float, out: list[Action], *, preempted: bool) -> AttemptView:
    """`attempt` as the cloud confirms its loss. If that has counted for its own job so far, now it counts for all.

    `preempted`: the cloud took a machine back; otherwise one failed.
    """
    if attempt.loss_confirmed:
        return attempt
    if not attempt.is_wanted and attempt.reason in COOLDOWN_REASONS:
        preempted = preempted or attempt.reason in PREEMPTIONS
        out.extend(_evidence(attempt, now, confirmed=True, preempted=preempted))
    return replace(attempt, loss_confirmed=True)


def _evidence(attempt: AttemptView, now: float, *, confirmed: bool, preempted: bool) -> list[Action]:
    evidence: list[Action] = [AvoidOffer(unavailable_after_preemption(attempt.offer, now, unconfirmed=not confirmed))]
    if preempted:
        observation = OfferObservation(attempt.offer.key, now, available=False, held_since=attempt.booted_at)
        evidence.append(RecordObservation(observation, unconfirmed=not confirmed))
    return evidence
