"""The parts of a simulated controller that only clusters need: the real ones, wired as in `Daemon`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from sqlalchemy.exc import DBAPIError

from faultworld.threads import Lock
from perdure.controller.maintenance.cluster_upkeep import ClusterUpkeep
from perdure.controller.peers import peer_messages
from perdure.controller.reconcile.inbox import ReconcilerInbox
from perdure.controller.reconcile.market_state import MarketState
from perdure.controller.reconcile.slot_grants import SlotGrants
from perdure.controller.runtime.keys import AttemptKey
from perdure.recovery.events import CancelRequested
from perdure.recovery.job import Timeouts

if TYPE_CHECKING:
    from faultworld.components import Components
    from faultworld.process import Process

# Rarer than in a daemon: it makes a history cheaper to simulate, and what is due is found as well.
_QUEUE_INTERVAL_S, _WATCH_INTERVAL_S, _POLL_INTERVAL_S = 4.0, 4.0, 2.0


class SimulatedQueue(SlotGrants):
    """The queues of clusters, whose thread is one of the process."""

    def __init__(
        self, process: Process, market: MarketState, inbox: ReconcilerInbox, refresh: Callable[[AttemptKey], None]
    ) -> None:
        super().__init__(process.database, process.clock, market, inbox, refresh)
        self._process = process
        self._turn = Lock(process.threads)
        self._is_scheduled = False

    def wake(self, cluster_id: int) -> None:
        self._dirty.add(cluster_id)
        if not self._is_scheduled:
            self._is_scheduled = True
            self._process.within(0.05, self._on_wake)

    def _on_wake(self) -> None:
        self._is_scheduled = False
        self.look(everything=False)

    def look(self, *, everything: bool) -> None:
        with self._turn:
            try:
                self.evaluate(everything=everything)
            except DBAPIError:
                return


class ClusterTicks:
    """What a controller does periodically for clusters."""

    def __init__(self, process: Process, components: Components, watch: ClusterUpkeep) -> None:
        self._process, self._components, self._watch = process, components, watch
        self._is_watching = False

    def start(self) -> None:
        self._process.within(_QUEUE_INTERVAL_S, self._queue)
        self._process.within(_WATCH_INTERVAL_S, self._tick)
        if self._process.alone:
            self._process.within(_POLL_INTERVAL_S, self._poll)

    def _queue(self) -> None:
        self._process.after(_QUEUE_INTERVAL_S, self._queue)
        assert self._components.queue is not None
        self._components.queue.look(everything=True)

    def _tick(self) -> None:
        self._process.after(_WATCH_INTERVAL_S, self._tick)
        if not self._is_watching:
            self._is_watching = True
            try:
                self._watch.tick()
            finally:
                self._is_watching = False

    def _poll(self) -> None:
        self._process.after(_POLL_INTERVAL_S, self._poll)
        try:
            self._components.peer_inbox.poll_and_clean()
        except DBAPIError:
            return


def cancel_jobs(process: Process, timeouts: Timeouts) -> Callable[[Sequence[int], float | None], None]:
    """Cancels jobs as `Daemon` does."""

    def cancel(job_ids: Sequence[int], grace_s: float | None) -> None:
        event = CancelRequested(timeouts.drain_timeout_s if grace_s is None else grace_s)
        with process.database.begin() as conn:
            peer_messages.send_to_owners(conn, job_ids, event, process.clock.now())
        components: Any = process.components
        try:
            components.peer_inbox.poll()
        except DBAPIError:
            return

    return cancel
