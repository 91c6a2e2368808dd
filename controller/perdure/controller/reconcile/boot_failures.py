"""Holds a cloud whose machines never call: each would be paid for until its time to boot is over, without end."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from perdure.controller.clouds.reachability import NEVER_CALLED
from perdure.controller.runtime.keys import AttemptKey
from perdure.recovery.job import AttemptView, JobView
from perdure.recovery.market.unavailable import FaultKind, UnavailableOffer
from perdure.recovery.reasons import Reason
from perdure.recovery.statuses import NodePhase

MAX_FAILURES = 3
HOLD_S = 3600.0


class BootFailures:
    """Counts the attempts in a row, of all jobs, whose machines never called. Belongs to the reconcile thread.

    `remote`: the clouds that this concerns. `endpoint`: what their machines call.
    """

    def __init__(self, remote: Collection[str] = (), endpoint: str = "") -> None:
        self._remote = remote
        self._endpoint = endpoint
        self._failed: dict[str, list[AttemptKey]] = {}  # cloud → its attempts since a machine last called

    def observe(self, before: JobView, after: JobView, now: float) -> list[UnavailableOffer]:
        """The clouds that have to be held because of what changed in the job. Repeatable.

        After the hold one machine may try; if it does not call either, the cloud is held again.
        """
        held = []
        for key, attempt in _changed(before, after):
            cloud = attempt.offer.cloud
            if cloud not in self._remote:
                continue
            if any(node.phase is not NodePhase.NOT_CONNECTED for node in attempt.nodes):
                self._failed.pop(cloud, None)
            elif attempt.reason is Reason.BOOT_TIMEOUT:
                failed = self._failed.setdefault(cloud, [])
                if key not in failed:
                    failed.append(key)
                del failed[:-MAX_FAILURES]
                if len(failed) == MAX_FAILURES:
                    held.append(self._hold(cloud, now, of_one_job=len({job for job, *_ in failed}) == 1))
        return held

    def _hold(self, cloud: str, now: float, *, of_one_job: bool) -> UnavailableOffer:
        """One job's machines hold the cloud for that job alone: its image may be what does not boot."""
        message = (
            f"{MAX_FAILURES} machines in a row never called {self._endpoint}; no more are bought there for "
            f"{HOLD_S / 60:.0f} minutes. Check that the URL leads to this controller from the cloud's network, that no "
            "firewall is in between, and that the image has Python 3.9 or newer"
        )
        return UnavailableOffer(
            cloud, now + HOLD_S, FaultKind.AVOID_CLOUD, now, code=NEVER_CALLED, message=message, unconfirmed=of_one_job
        )


def _changed(before: JobView, after: JobView) -> Iterator[tuple[AttemptKey, AttemptView]]:
    """The attempts whose end or whose nodes' calls are new."""
    for old, new in zip(before.tasks, after.tasks, strict=True):
        known = {attempt.generation: attempt for attempt in old.attempts}
        for attempt in new.attempts:
            if attempt != known.get(attempt.generation):
                yield (after.id, new.index, attempt.generation), attempt
