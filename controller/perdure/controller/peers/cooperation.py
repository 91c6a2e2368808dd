"""Wires up cooperation with the other daemons: `peer_messages`, scans of `anti_entropy`, and the `watcher`."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence

from sqlalchemy import Engine

from perdure.controller.nodes.connection_records import ConnectionRecords
from perdure.controller.nodes.session import NodeSessions
from perdure.controller.peers.anti_entropy import Resync
from perdure.controller.peers.ownership import JobOwnership
from perdure.controller.peers.peer_messages import InboxReader, Outbox
from perdure.controller.peers.wake_signal import WakeSignal
from perdure.controller.peers.watcher import PeerWatcher
from perdure.controller.reconcile.inbox import ReconcilerInbox
from perdure.controller.reconcile.market_state import MarketState
from perdure.controller.store.engine.pg_notify import Topic
from perdure.controller.store.logs.followers import JobUpdates
from perdure.controller.store.records import peer_messages


class PeerCooperation:
    """Forwards events of other daemons' jobs to their owners, and receives those of this daemon's jobs."""

    def __init__(
        self,
        *,
        database: Engine,
        presence: ConnectionRecords,
        inbox: ReconcilerInbox,
        sessions: NodeSessions,
        ownership: JobOwnership,
        market: MarketState,
        updates: JobUpdates,
        peer_inbox: InboxReader,
        outbox: Outbox,
        signal: WakeSignal,
        monotonic: Callable[[], float] = time.monotonic,
        is_own_process: Callable[[int], bool] = lambda _process_id: False,
    ) -> None:
        self._database = database
        self._inbox = inbox
        self._sessions = sessions
        self._ownership = ownership
        self._market = market
        self._updates = updates
        self._outbox = outbox
        self._signal = signal
        self._resync = Resync(database, inbox, sessions, presence, monotonic)
        self._watcher = PeerWatcher(signal, peer_inbox.poll, self._scan, self._full_scan, monotonic, is_own_process)

    def start(self, url: str) -> None:
        self._watcher.start(url, self._on_notification)

    def stop(self) -> None:
        self._watcher.stop()
        self._outbox.close()

    def _scan(self, jobs: Collection[int]) -> None:
        own = {job_id for job_id in jobs if self._inbox.view(job_id) is not None}
        self._resync.resync_nodes(set(jobs) - own)
        self._resync.report_silent(own)

    def _full_scan(self) -> None:
        self._resync.resync_nodes()
        self._resync.report_silent()
        with self._database.begin() as conn:
            self._market.load(conn)
            peer_messages.delete_for_finalized_jobs(conn)

    def _on_notification(self, topic: Topic, jobs: Sequence[int]) -> None:
        if topic is Topic.LOG:  # frequent, and handled in the same way for jobs of any owner
            for job_id in jobs:
                self._updates.publish_log(job_id)
            return
        own = [job_id for job_id in jobs if self._inbox.view(job_id) is not None]
        self._wake_services(topic, jobs)
        match topic:
            case Topic.JOB:
                for job_id in jobs:
                    self._updates.publish_job(job_id)
                if len(own) < len(jobs):
                    self._signal.wake(set(jobs) - set(own))
            case Topic.MESSAGE:
                if own:
                    self._signal.wake()
            case Topic.NODE_LOST:
                if own:
                    self._signal.wake(own)
            case Topic.CLAIM:
                self._ownership.tick()

    def _wake_services(self, topic: Topic, jobs: Sequence[int]) -> None:
        """The jobs may be replicas, whose nodes are connected to another daemon."""
        if topic in (Topic.JOB, Topic.NODE_LOST):
            for job_id in jobs:
                self._sessions.readiness.on_change(job_id)
