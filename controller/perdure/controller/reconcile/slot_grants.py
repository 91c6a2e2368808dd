"""Grants slots of clusters to the jobs that come first in their queues, as `recovery.market.slot_queue` decides.

Every controller computes the same grants from the database, and offers its own jobs theirs. A grant is a hint: what
holds is the slot that `clouds.slot_cloud` takes in a transaction when the job is launched. So nothing is lost when a
controller dies between the two, and a grant that is out of date is refused and made again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import structlog
from sqlalchemy import Connection, Engine, Row

from perdure.controller.clouds.slot_cloud import slot_offer
from perdure.controller.reconcile.inbox import ReconcilerInbox
from perdure.controller.reconcile.market_state import MarketState
from perdure.controller.runtime.clock import Clock
from perdure.controller.runtime.failpoints import failpoint
from perdure.controller.runtime.keys import AttemptKey
from perdure.controller.store.engine.database import UNAVAILABLE
from perdure.controller.store.records import cluster_slots, clusters
from perdure.recovery import events
from perdure.recovery.market.slot_queue import startable

log = structlog.get_logger(__name__)

INTERVAL_S = 1.0
"""How often every queue is evaluated, of real time: what wakes it earlier is a hint that may be lost."""
REFRESH_S = 30.0
"""How often the nodes of a host are sent their slots, in case that they did not get them when these changed."""


class SlotGrants:
    """A thread of a controller. `refresh_slots`: sends the nodes of a host's attempt the slots that they must run."""

    def __init__(
        self,
        database: Engine,
        clock: Clock,
        market: MarketState,
        inbox: ReconcilerInbox,
        refresh_slots: Callable[[AttemptKey], None],
    ) -> None:
        self._database = database
        self._clock = clock
        self._market = market
        self._inbox = inbox
        self._refresh_slots = refresh_slots
        self._cluster_of: dict[int, int] = {}  # the jobs of clusters that need work, also those that hold machines
        self._dirty: set[int] = set()
        #: Host → its slots when they were last sent, and when that was.
        self._refreshed: dict[AttemptKey, tuple[object, float]] = {}
        self._lock = threading.Lock()
        self._woken = threading.Event()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="cluster-queue", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped = True
        self._woken.set()
        if self._thread.is_alive():
            self._thread.join()

    def job_changed(self, job_id: int) -> None:
        """Evaluate the queue that a job belongs to, if it belongs to one. From any thread."""
        if (cluster_id := self._cluster_of.get(job_id)) is not None:
            self.wake(cluster_id)

    def job_added(self, job_id: int, cluster_id: int) -> None:
        """Evaluate the queue of a cluster that has a new job. From any thread."""
        self._cluster_of[job_id] = cluster_id
        self.wake(cluster_id)

    def host_changed(self, host: AttemptKey) -> None:
        """Send the nodes of a host's attempt the slots that they must run. From any thread."""
        self._refresh_slots(host)
        self.job_changed(host[0])

    def wake(self, cluster_id: int) -> None:
        """Evaluate the queue of a cluster now. From any thread."""
        with self._lock:
            self._dirty.add(cluster_id)
        self._woken.set()

    def _run(self) -> None:
        evaluate_all_at = 0.0
        while not self._stopped:
            self._woken.wait(max(0.0, evaluate_all_at - time.monotonic()))
            self._woken.clear()
            if self._stopped:
                return
            # However many hints arrive: a queue whose own hint was lost waits no longer than this.
            if everything := time.monotonic() >= evaluate_all_at:
                evaluate_all_at = time.monotonic() + INTERVAL_S
            try:
                self.evaluate(everything=everything)
            except UNAVAILABLE as error:
                log.warning("database.unavailable", error=str(error))
            except Exception:  # a bug must not end the thread, on which every queue depends
                log.exception("queue.failed")

    def evaluate(self, *, everything: bool) -> None:
        """Grant slots in the queues that have changed, or in all of them. Raises what the database raises.

        Then the queues that have changed are evaluated the next time.
        """
        with self._lock:
            wanted, self._dirty = set(self._dirty), set()
        try:
            with self._database.connect() as conn:
                if everything:
                    self._cluster_of = {row.id: row.cluster_id for row in clusters.unfinalized(conn)}
                    wanted |= set(self._cluster_of.values())
                    self._refreshed = {key: sent for key, sent in self._refreshed.items() if key[0] in self._cluster_of}
                granted = [grant for cluster_id in sorted(wanted) for grant in self._try_evaluate(conn, cluster_id)]
        except UNAVAILABLE:
            with self._lock:
                self._dirty |= wanted
            raise
        for job_id in granted:
            failpoint("slot.granted")
            self._inbox.post(job_id, events.SlotGranted(0))

    def _try_evaluate(self, conn: Connection, cluster_id: int) -> list[int]:
        """`_evaluate`, but a bug costs this queue alone."""
        try:
            return self._evaluate(conn, cluster_id)
        except UNAVAILABLE:
            raise
        except Exception:
            log.exception("queue.failed", cluster_id=cluster_id)
            return []

    def _evaluate(self, conn: Connection, cluster_id: int) -> list[int]:
        """The jobs that wait for the slot that they are granted now."""
        waiting = clusters.waiting_jobs(conn, cluster_id)
        cluster, host = clusters.get(conn, cluster_id), clusters.hosts(conn, [cluster_id]).get(cluster_id)
        attempt = host.running if host else None
        if cluster is None or host is None or attempt is None:
            for job, _ in waiting:
                self._market.grant(job.id, None)
            return []
        held = cluster_slots.held(conn, cluster_id)
        self._refresh((host.job_id, 0, attempt.generation), cluster, held)
        # A job that is launching counts by its slots once it has them, and until then by its place in the queue.
        have_slots = {row.job_id for row in held if row.stop_at is None}
        queue = {job.id: job for job, waits in waiting if waits or job.id not in have_slots}
        now, rooms = self._clock.now(), attempt.rooms()
        running = cluster_slots.as_running(held, clusters.ends_by(conn, {row.job_id for row in held}, now))
        starts = {start.job_id for start in startable(rooms, running, list(queue.values()), now)}
        accelerator = attempt.offer["accelerators"][0] if attempt.offer.get("accelerators") else None
        for job in queue.values():
            slot = slot_offer(cluster_id, cluster.name, job.demand, accelerator) if job.id in starts else None
            self._market.grant(job.id, slot)
        return [job.id for job, waits in waiting if waits and job.id in starts]

    def _refresh(self, host: AttemptKey, cluster: Row[Any], held: Sequence[Row[Any]]) -> None:
        """Send a host's nodes their slots if these have changed, also by another controller, or after a while."""
        slots = frozenset((row.job_id, row.task_index, row.generation, row.rank, row.stop_at) for row in held)
        state, now = (slots, cluster.autostop_s, cluster.active_at), self._clock.now()
        known = self._refreshed.get(host)
        if known is None or known[0] != state or now - known[1] >= REFRESH_S:
            self._refreshed[host] = (state, now)
            self._refresh_slots(host)
