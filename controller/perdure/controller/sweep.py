"""The sweep: the cloud is listed first, then what we believe is compared with it.

A machine of ours with no live attempt is terminated; a live attempt whose machine is not there, or is on its way out,
becomes an event.
Listing first means that a machine bought in the meantime is never taken for an orphan.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import structlog

from perdure.controller.clouds.base import Cloud, Instance, InstanceState
from perdure.controller.crashpoints import reach
from perdure.controller.keyring import AttemptKey
from perdure.recovery.job import AttemptView, JobView
from perdure.recovery.statuses import AttemptState

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Sweep:
    """`views`: the jobs of this daemon. `known`: those of some attempts that are live, in anybody's hands. `look`: have
    an attempt's machines looked up; what is found comes back as an event."""

    clouds: Mapping[str, Cloud]
    controller: str
    views: Callable[[], list[JobView]]
    known: Callable[[Collection[AttemptKey]], Collection[AttemptKey]]
    look: Callable[[AttemptKey], None]

    def run(self) -> int:
        """One sweep over every usable cloud. Returns how many orphans were told to end."""
        ended = 0
        for name, cloud in self.clouds.items():
            if cloud.unusable() is not None:
                continue
            try:
                listed = cloud.list_owned(self.controller)
            except Exception as error:  # noqa: BLE001 - no list, no verdict
                log.warning("sweep.list_failed", cloud=name, error=cloud.classify(error).message)
                continue
            reach("sweep.listed")
            views = self.views()
            ended += self._end_orphans(cloud, listed)
            self._look_up_missing(name, views, {i.id for i in listed if i.state is not InstanceState.ENDING})
        return ended

    def _end_orphans(self, cloud: Cloud, listed: Sequence[Instance]) -> int:
        known = self.known({_key(i) for i in listed})
        orphans = [i for i in listed if _key(i) not in known]
        for instance in orphans:
            log.warning("sweep.orphan", cloud=cloud.name, instance=instance.id, attempt=_key(instance))
            try:
                reach("orphan.ending")
                cloud.terminate(instance.region, [instance.id])
                reach("orphan.ended")
            except Exception as error:  # noqa: BLE001 - the next sweep tries again
                log.warning("sweep.terminate_failed", instance=instance.id, error=cloud.classify(error).message)
        return len(orphans)

    def _look_up_missing(self, cloud: str, views: list[JobView], listed: set[str]) -> None:
        for job in views:
            for task in job.tasks:
                for attempt in task.attempts:
                    if attempt.offer.cloud == cloud and _misses(attempt, listed):
                        self.look((job.id, task.index, attempt.generation))


def _key(instance: Instance) -> AttemptKey:
    return (instance.owner.job_id, instance.owner.task, instance.owner.generation)


def _misses(attempt: AttemptView, listed: set[str]) -> bool:
    if attempt.state in (AttemptState.REQUESTED, AttemptState.GONE) or attempt.terminating:
        return False
    return any(n.instance_id not in listed for n in attempt.nodes if n.instance_id and n.gone is None)
