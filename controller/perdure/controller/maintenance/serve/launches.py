"""Submits the jobs of replicas, which are rows already.

Those that shall be spread are launched one after another, each once the zone of the one before is known: all at once,
they would choose the same one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from perdure.controller.maintenance.serve.reader import ReadReplica, ReadService
from perdure.controller.maintenance.serve.shared_state import ServiceSharing
from perdure.controller.maintenance.serve.timeline import ServiceTimeline
from perdure.controller.store.services import records
from perdure.controller.submit.errors import RequestRejected
from perdure.controller.submit.serve.services import ServiceRequests
from perdure.recovery.market.services.replicas import ReplicaStatus

PLACED_WITHIN_S = 5.0
"""A spread replica that has no zone for so long waits for capacity, and holds up no other."""


class ReplicaLaunches:
    """Of one controller."""

    def __init__(
        self, requests: Callable[[], ServiceRequests], sharing: ServiceSharing, timeline: ServiceTimeline
    ) -> None:
        self._requests = requests
        self._sharing = sharing
        self._timeline = timeline
        self._placing: dict[int, tuple[int, float]] = {}  # service → the spread replica launched last, and when

    def launch_missing(self, service: ReadService, now: float, jobs: set[int]) -> None:
        """Submit the jobs of the replicas that have none, and add them to `jobs`.

        Raises what the database raises, and ServiceLost.
        """
        zones = [one.view.zone for one in service.replicas if one.view.is_spot and one.view.zone]
        for one in self._due(service, now):
            row, version = one.stored.row, service.versions[one.stored.row.version]
            try:
                job_id = self._requests().launch_replica(
                    service.row, version, row.number, is_spot=row.is_spot, taken_zones=zones
                )
            except RequestRejected as error:
                self._give_up(service, one, str(error), now)
            else:
                jobs.add(job_id)
                if row.is_spot and service.view.spec.policy.spreads:
                    self._placing[service.row.id] = (row.number, now)

    def _due(self, service: ReadService, now: float) -> Sequence[ReadReplica]:
        missing = [one for one in service.replicas if one.stored.row.job_id is None and one.view.retired_as is None]
        if not service.view.spec.policy.spreads:
            return missing
        next_one = None if self._is_placing(service, now) else next((one for one in missing if one.view.is_spot), None)
        return [one for one in missing if one is next_one or not one.view.is_spot]

    def _is_placing(self, service: ReadService, now: float) -> bool:
        number, since = self._placing.get(service.row.id, (0, now))
        last = next((one.view for one in service.replicas if one.view.number == number), None)
        return last is not None and last.zone is None and not last.is_ending and now - since < PLACED_WITHIN_S

    def _give_up(self, service: ReadService, one: ReadReplica, why: str, now: float) -> None:
        status = ReplicaStatus.FAILED_PROVISION
        columns = {"retired_at": now, "retired_as": str(status), "message": why}
        with self._sharing.writing(service.row.id) as conn:
            records.change_replica(conn, service.row.id, one.view.number, **columns)
            self._timeline.record_end(conn, service, one.view, status, why, now)
