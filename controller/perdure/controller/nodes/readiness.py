"""What nodes report of the replicas of services that run on them: the newest report of each connected node.

In memory alone: a node sends its newest report again when it connects.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from perdure.controller.nodes.connection import Connection
from perdure.controller.nodes.frames import ReadinessFrame
from perdure.controller.runtime.clock import TimeScale
from perdure.controller.runtime.keys import AttemptKey
from perdure.controller.store.records.agent_connections import Place
from perdure.recovery.market.services.replicas import Probe


@dataclass(frozen=True)
class _Node:
    connection: Connection
    revision: int
    loop: asyncio.AbstractEventLoop


class NodeReadiness:
    """`now`: the controller's clock. `time_scale`: from there to the wall clock, by which nodes measure."""

    def __init__(self, now: Callable[[], float], time_scale: TimeScale) -> None:
        self._now = now
        self._speed = time_scale.speed
        self._newest: dict[AttemptKey, Probe] = {}
        self._nodes: dict[AttemptKey, _Node] = {}  # those that can run another revision of their spec
        #: Called with the id of a job whose readiness has changed. On the event loop.
        self.on_change: Callable[[int], None] = lambda _job_id: None

    def on_report(self, place: Place, frame: ReadinessFrame) -> None:
        """Keep the report of a node. On the event loop."""
        failing_since = None if frame.ready else self._since(frame.failing_s)
        running_since = self._since(frame.running_s)
        self._newest[place[0]] = Probe(
            frame.ready, failing_since, frame.message, frame.revision, running_since, frame.has_ended
        )
        self.on_change(place[0][0])

    def _since(self, seconds: float | None) -> float | None:
        return None if seconds is None else self._now() - seconds * self._speed

    def on_hello(self, connection: Connection, revision: int | None) -> None:
        """A node of a replica has connected, which runs this revision of its spec. On the event loop."""
        key = connection.place[0]
        before = self._nodes.pop(key, None)
        if before is not None and before.revision != revision:
            self._newest.pop(key, None)  # of another program
        if revision is not None:
            self._nodes[key] = _Node(connection, revision, asyncio.get_running_loop())

    def revisions(self) -> dict[AttemptKey, int]:
        """What the nodes run that are connected here, and can run another revision. From any thread."""
        return {key: node.revision for key, node in list(self._nodes.items())}

    def push_revision(self, key: AttemptKey, revision: int) -> None:
        """Have the connected node of a replica run another revision. From any thread. Repeatable."""
        node = self._nodes.get(key)
        if node is not None and not node.loop.is_closed():
            node.loop.call_soon_threadsafe(_send, node.connection, {"type": "revise", "revision": revision})

    def forget(self, place: Place) -> None:
        """The node is disconnected: nothing is known of it."""
        self._nodes.pop(place[0], None)
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


def _send(connection: Connection, message: dict[str, Any]) -> None:
    with contextlib.suppress(RuntimeError):  # it has stopped reading: its connection ends
        connection.send(message)
