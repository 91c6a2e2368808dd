"""The machines of clusters that are stopped instead of terminated, and started again for the next attempt.

Part of `cloud_actions`, whose rules hold here: nothing sleeps or writes to the database.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import structlog

from perdure.controller.clouds.base.protocol import (
    VISIBLE_WITHIN_S,
    Cloud,
    Fault,
    Instance,
    InstanceState,
    LaunchRequest,
    Stoppable,
    StoppedMachineLost,
)
from perdure.controller.execute.call_types import IntentOutcome, Lifetimes, RetryLater
from perdure.controller.execute.machine_ids import MachineIds
from perdure.controller.runtime.clock import Clock
from perdure.controller.runtime.failpoints import failpoint
from perdure.controller.runtime.keys import AttemptKey
from perdure.controller.store.clusters.cluster_disks import KeptDisks, StopRefused
from perdure.controller.store.clusters.home_rescues import HomeRescue
from perdure.controller.store.records.intents import Intent
from perdure.recovery import events
from perdure.recovery.market.unavailable import FaultKind
from perdure.recovery.market.view import Offer
from perdure.recovery.reasons import Reason

log = structlog.get_logger(__name__)

# Between two looks at machines that are to be started again, and are still stopping.
_STOPPING_POLL_S = 0.5
# Machines that are stopping for longer are asked once more to stop.
_STOPPING_S = 60.0
_OFF_POLL_S = 5.0
# For so long a cloud may refuse to stop machines before they are ended, with their disks: they would run for ever.
_STOP_REFUSED_S = 60.0
_RESCUE_POLL_S = 5.0
_SILENT_POLL_S = 30.0
_ON = (InstanceState.PENDING, InstanceState.RUNNING)


@dataclass(frozen=True)
class StoppedMachines:
    """Stops the machines of an attempt, and starts them for another one. `rescue_of`, `live`: see `CloudActions`."""

    clock: Clock
    speed: float  # of `clock`, relative to real time, in which clouds live
    rescue_of: Callable[[int, int, int], HomeRescue | None]
    live: Callable[[Collection[AttemptKey]], Collection[AttemptKey]]

    def start(
        self, intent: Intent, cloud: Cloud, request: LaunchRequest, ids: Sequence[str], tries: int
    ) -> Sequence[Instance] | RetryLater | Fault:
        """Start the machines whose disks a cluster has kept. A Fault, and nothing has changed, if a disk is lost.

        Those of an earlier attempt are awaited until it has stopped them. Machines that run for nobody, because
        somebody has started them in the cloud's console, are stopped first: an agent begins anew at a boot.
        """
        described = cloud.describe(request.offer.region, ids)
        settled = (InstanceState.STOPPED, InstanceState.GONE)
        busy = [one for one in described if one.state not in settled and one.owner.token != request.owner.token]
        if busy:
            return self._stop_first(intent, cloud, request, busy, tries)
        there = {one.id for one in described if one.state is not InstanceState.GONE}
        try:
            if lost := [id for id in ids if id not in there]:
                raise StoppedMachineLost(", ".join(f"{id} (node {ids.index(id)})" for id in lost))
            if not isinstance(cloud, Stoppable):
                raise StoppedMachineLost(f"{cloud.name} starts no machines")
            failpoint("disk.starting")
            started = cloud.start(request, ids)
            failpoint("disk.started")
        except StoppedMachineLost as error:
            log.warning("disks.lost", cloud=cloud.name, job=request.owner.job_id, instances=list(ids), error=str(error))
            return _disk_lost(request, str(error), others=len(there))
        return started

    def _stop_first(
        self, intent: Intent, cloud: Cloud, request: LaunchRequest, busy: Sequence[Instance], tries: int
    ) -> RetryLater:
        """Machines that are to be started belong to another attempt, or to nobody, and are not stopped.

        An attempt that lives stops its own, once its nodes have saved.
        """
        # An earlier try may have started them, which the cloud may show late.
        is_settled = not tries or self.clock.now() - intent.created_at > VISIBLE_WITHIN_S * self.speed
        live, age_s = self.live({attempt_of(one) for one in busy}), self.clock.now() - intent.created_at
        idle = [one for one in busy if attempt_of(one) not in live]
        running = sorted(one.id for one in idle if one.state in _ON)
        if idle and not running and age_s > _STOPPING_S * self.speed and isinstance(cloud, Stoppable):
            # On Azure, a machine whose guest was shut down is billed, and cannot be started, until it is deallocated.
            cloud.stop(request.offer.region, [one.id for one in idle])
            return RetryLater(_OFF_POLL_S)
        if not running or not is_settled or not isinstance(cloud, Stoppable):
            return RetryLater(_STOPPING_POLL_S, attempted=False)
        log.warning("disks.in_use", cloud=cloud.name, job=request.owner.job_id, instances=running)
        cloud.stop(request.offer.region, running)
        text = f"{', '.join(running)} was started by somebody else: it is stopped first, and then started for this job"
        return RetryLater(_STOPPING_POLL_S, text)

    def stop(
        self, intent: Intent, cloud: Cloud, offer: Offer, machines: MachineIds, tries: int
    ) -> IntentOutcome | RetryLater | str | None:
        """Stop the machines instead, so that their disks are kept. Otherwise why they cannot be, if there are any.

        If some of them are gone, the disks of the others are kept: a start says what is lost.
        """
        is_new, request = self._is_new(machines), intent.request
        # A start whose result is unknown may have started the machines that it was to start.
        ids = [id for _, id in sorted(machines.known)] or request["resumes"] or []
        described = cloud.describe(offer.region, ids)
        if not isinstance(cloud, Stoppable) or not ids:
            return None
        there = [one for one in described if one.state is not InstanceState.GONE]
        unseen = {*ids} - {one.id for one in described}
        gone = {*ids} - {one.id for one in there} - (unseen if is_new else set())
        if len(gone) == len(ids):
            return f"no disk is kept, because the machines are gone: {', '.join(sorted(gone))}"
        if any(one.state in _ON and attempt_of(one) != intent.attempt_key for one in there):
            # Another attempt has started them since, unless the cloud does not show yet that this one has.
            taken_over = events.AttemptGone(intent.task, intent.generation)
            return RetryLater(1.0) if is_new else IntentOutcome("taken over", taken_over)
        if len(there) + len(gone) == len(ids) and all(one.state is InstanceState.STOPPED for one in there):
            price = cloud.disk_price_per_hour(offer, request["disk_gib"], request["disk_tier"])
            kept = KeptDisks(tuple(ids), request["offer"], price, frozenset(gone))
            stopped = events.AttemptGone(intent.task, intent.generation)
            text = f"the disks of the other machines are kept; gone: {', '.join(sorted(gone))}" if gone else None
            # A start that the cloud refused has not run them: their last run is another attempt's, and billed to it.
            own = [one for one in described if attempt_of(one) == intent.attempt_key]
            return IntentOutcome("stopped", stopped, error=text, lifetimes=lifetimes(own), disks=kept)
        try:
            failpoint("disk.stopping")
            cloud.stop(offer.region, [one.id for one in there] or ids)
            failpoint("disk.stopped")
        except Exception as error:
            fault = cloud.classify(error)
            is_overdue = self.clock.now() - intent.created_at > _STOP_REFUSED_S * self.speed
            is_definite = fault.kind not in (FaultKind.AMBIGUOUS, FaultKind.RETRY_LATER)
            # A guest that has powered itself off is ENDING on Azure, and billed, until it is deallocated.
            if not (is_definite and is_overdue and any(one.state is not InstanceState.STOPPED for one in there)):
                raise
            why = f"no disk is kept, because {cloud.name} does not stop the machines: {fault.code}: {fault.message}"
            return self._rescue_homes(intent, len(ids), why)
        return RetryLater(min(5.0, 0.05 * 2.0 ** min(tries, 7)))

    def _rescue_homes(self, intent: Intent, num_nodes: int, why: str) -> RetryLater | str:
        """Have the machines, whose disks cannot be kept, save their homes. Returns why they may be ended then."""
        rescue = self.rescue_of(intent.request["cluster_id"], intent.job_id, intent.generation)
        is_silent = intent.request.get("is_silent", False)
        if rescue is None:
            then = (
                "nothing on them answers that could save what is on their disks: they run, and cost, until a stop "
                "succeeds, or `perdure down` ends them"
                if is_silent
                else "the home folders are saved to a bucket before the machines end"
            )
            refused = StopRefused(intent.job_id, intent.generation, num_nodes)
            return RetryLater(_RESCUE_POLL_S, f"{why}; {then}", disks=refused)
        if (outcome := rescue.outcome(self.clock.now())) is None:
            return RetryLater(_RESCUE_POLL_S)
        if is_silent and rescue.is_needed and not rescue.saved:
            return RetryLater(_SILENT_POLL_S)
        return f"{why}; {outcome}"

    def _is_new(self, machines: MachineIds) -> bool:
        since = machines.since
        return since is not None and self.clock.now() - since < VISIBLE_WITHIN_S * self.speed


def _disk_lost(request: LaunchRequest, machines: str, *, others: int) -> Fault:
    name = request.name.removeprefix("perdure-").rsplit("-", 3)[0]
    kept = "1 other disk is" if others == 1 else f"{others} other disks are"
    rest = (
        f"; {kept} kept: `perdure start {name} --discard-disks` starts it on new machines, and deletes these"
        if others
        else f". The next `perdure start {name}` is on new machines"
    )
    text = f"a disk is lost, with all that was on it, because its machine is gone: {machines}{rest}"
    return Fault(FaultKind.GIVE_UP, Reason.BAD_REQUEST, "disk_lost", text)


def attempt_of(instance: Instance) -> AttemptKey:
    """The attempt that a machine belongs to."""
    return (instance.owner.job_id, instance.owner.task, instance.owner.generation)


def lifetimes(instances: Sequence[Instance]) -> Lifetimes:
    """When machines were launched and ended, by rank."""
    return {i.rank: (i.launched_at, i.ended_at) for i in instances}
