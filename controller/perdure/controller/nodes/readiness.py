"""What nodes report of the replicas of services that run on them: the newest report of each connected node.

In memory alone: a node sends its newest report again when it connects.
"""

from __future__ import annotations

from collections.abc import Callable

from perdure.controller.nodes.frames import ReadinessFrame
from perdure.controller.runtime.clock import TimeScale
from perdure.controller.runtime.keys import AttemptKey
from perdure.controller.store.records.agent_connections import Place
from perdure.recovery.market.services.replicas import Probe


class NodeReadiness:
    """`now`: the controller's clock. `time_scale`: from there to the wall clock, by which nodes measure."""

    def __init__(self, now: Callable[[], float], time_scale: TimeScale) -> None:
        self._now = now
        self._speed = time_scale.speed
        self._newest: dict[AttemptKey, Probe] = {}
        #: Called with the id of a job whose readiness has changed. On the event loop.
        self.on_change: Callable[[int], None] = lambda _job_id: None

    def on_report(self, place: Place, frame: ReadinessFrame) -> None:
        """Keep the report of a node. On the event loop."""
        failing_s = frame.failing_s
        since = None if frame.ready or failing_s is None else self._now() - failing_s * self._speed
        self._newest[place[0]] = Probe(frame.ready, since, frame.message)
        self.on_change(place[0][0])

    def forget(self, place: Place) -> None:
        """The node is disconnected: nothing is known of it."""
        if self._newest.pop(place[0], None) is not None:
            self.on_change(place[0][0])

    def all(self) -> dict[AttemptKey, Probe]:
        """The newest report of each node that is connected here. From any thread."""
        return dict(self._newest)

    def has_report(self, job_id: int) -> bool:
        """Whether a node of the job is connected here and has reported. From any thread."""
        return any(key[0] == job_id for key in list(self._newest))

    def newest(self, key: AttemptKey) -> Probe | None:
        """The newest report of an attempt; None if its node is not connected, or has not reported. From any thread."""
        return self._newest.get(key)
