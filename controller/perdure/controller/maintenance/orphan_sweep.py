"""The sweep: garbage collection of machines. Lists the cloud first, then compares it with the database.

A machine of this installation without a live attempt is terminated; if a cluster keeps its disk, it is stopped. If
the database has no launch of it, which happens only after an older copy was put back, it is named first and terminated
by the next sweep. A live attempt whose machine
is missing, or is ending, is described, which becomes an event. Because the cloud is listed first, a machine that is
launched meanwhile never counts as an orphan. Nothing is concluded about a region that does not answer; the others are
swept.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import structlog
from sqlalchemy import Engine

from perdure.controller.clouds.base.partial_listing import list_known
from perdure.controller.clouds.base.protocol import Cloud, Instance, InstanceState, Stoppable
from perdure.controller.nodes.unrecorded_machines import UnrecordedMachines
from perdure.controller.runtime.failpoints import failpoint
from perdure.controller.runtime.keys import AttemptKey
from perdure.controller.store.clusters import cluster_disks
from perdure.controller.store.records import intents, jobs
from perdure.recovery.job import AttemptView, JobView
from perdure.recovery.statuses import AttemptState

log = structlog.get_logger(__name__)

INTERVAL_S = 15.0


@dataclass(frozen=True)
class OrphanSweep:
    """Sweeps the machines of this installation."""

    clouds: Mapping[str, Cloud]
    controller: str  # the installation's id, with which its machines are tagged
    database: Engine
    views: Callable[[], list[JobView]]  # the jobs of this controller
    request_describe: Callable[[AttemptKey], object]  # the result comes back to the reconciler as an event
    unknown: UnrecordedMachines = field(default_factory=UnrecordedMachines)
    _idle: set[tuple[str, str]] = field(default_factory=set)  # kept machines that ran for nobody at the last sweep

    def run(self) -> int:
        """Sweep every usable cloud. Returns how many orphans it tried to terminate. Raises what the database raises."""
        orphans = 0
        for name, cloud in self.clouds.items():
            if cloud.unusable() is not None:
                continue
            try:
                listed, failures = list_known(cloud, self.controller)
            except Exception as error:  # noqa: BLE001 - without a list nothing is known of this cloud
                log.warning("sweep.list_failed", cloud=name, error=cloud.classify(error).message)
                continue
            for region, failure in failures.items():
                message = cloud.classify(failure).message
                log.warning("sweep.list_failed", cloud=name, region=region, error=message)
            failpoint("sweep.listed")
            views = self.views()
            orphans += self._terminate_orphans(cloud, listed)
            known = {i.id for i in listed if i.state not in (InstanceState.ENDING, InstanceState.STOPPED)}
            self._describe_missing(name, views, known, failures.keys())
        return orphans

    def _terminate_orphans(self, cloud: Cloud, listed: Sequence[Instance]) -> int:
        with self.database.connect() as conn:  # the attempts of any controller
            live = jobs.filter_live(conn, {_key(i) for i in listed})
            tokens = intents.launch_tokens(conn, {i.owner.job_id for i in listed})
            kept = cluster_disks.kept(conn)
        self._stop_idle(cloud, [i for i in listed if (cloud.name, i.id) in kept and _key(i) not in live])
        listed = [i for i in listed if (cloud.name, i.id) not in kept]
        unknown = {i.id for i in listed if tokens.get(_key(i)) != i.owner.token}
        orphans = [i for i in listed if i.id in unknown or _key(i) not in live]
        for instance in orphans:
            if instance.id in unknown and self.unknown.name(_key(instance), cloud=cloud.name, instance=instance.id):
                continue  # the next sweep terminates it
            log.warning("sweep.orphan", cloud=cloud.name, instance=instance.id, attempt=_key(instance))
            try:
                failpoint("orphan.terminating")
                cloud.terminate(instance.region, [instance.id])
                failpoint("orphan.terminated")
            except Exception as error:  # noqa: BLE001 - the next sweep tries again
                log.warning("sweep.terminate_failed", instance=instance.id, error=cloud.classify(error).message)
        return len(orphans)

    def _stop_idle(self, cloud: Cloud, listed: Sequence[Instance]) -> None:
        """Stop the machines whose disks are kept, and which run without an attempt: somebody else has started them.

        At the second sweep only, and if the cloud still says so when asked for the machine alone: one that was started
        for an attempt shows its new owner late, and later in lists.
        Also those that are off and not STOPPED: Azure bills them until they are deallocated.
        """
        on = {(cloud.name, i.id): i for i in listed if i.state not in (InstanceState.STOPPED, InstanceState.GONE)}
        known = {key for key in self._idle if key[0] == cloud.name}
        self._idle.difference_update(known)
        self._idle.update(on)
        for key in known & on.keys():
            try:
                now = cloud.describe(on[key].region, [on[key].id])
                if isinstance(cloud, Stoppable) and [_key(one) for one in now] == [_key(on[key])]:
                    log.warning("sweep.idle", cloud=cloud.name, instance=on[key].id, attempt=_key(on[key]))
                    cloud.stop(on[key].region, [on[key].id])
            except Exception as error:  # noqa: BLE001 - the next sweep tries again
                log.warning("sweep.stop_failed", instance=on[key].id, error=cloud.classify(error).message)

    def _describe_missing(
        self, cloud: str, views: list[JobView], listed: set[str], silent_regions: Collection[str]
    ) -> None:
        for job in views:
            for task in job.tasks:
                for attempt in task.attempts:
                    if attempt.offer.cloud != cloud or attempt.offer.region in silent_regions:
                        continue
                    if _is_missing(attempt, listed):
                        self.request_describe((job.id, task.index, attempt.generation))


def _key(instance: Instance) -> AttemptKey:
    return (instance.owner.job_id, instance.owner.task, instance.owner.generation)


def _is_missing(attempt: AttemptView, listed: set[str]) -> bool:
    if attempt.state in (AttemptState.REQUESTED, AttemptState.GONE) or attempt.terminating:
        return False
    return any(n.instance_id not in listed for n in attempt.nodes if n.instance_id and n.gone_reason is None)
