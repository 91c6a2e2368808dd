"""The components of a simulated controller: the real ones, wired as in `Daemon`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from faultworld.buckets import BucketStoreClient
from faultworld.clouds import CloudClient
from faultworld.clusters.components import ClusterTicks, SimulatedQueue, cancel_jobs
from faultworld.threads import BlockingFuture, Event, Lock, SingleThreadExecutor, WorkerPools
from perdure.controller.api.context import ApiContext
from perdure.controller.buckets.service import StorageService
from perdure.controller.clouds.slot_cloud import SlotCloud
from perdure.controller.execute.call_on_thread import CallOnThread
from perdure.controller.execute.cloud_actions import CloudActions
from perdure.controller.execute.dispatcher import Dispatcher
from perdure.controller.maintenance.cluster_upkeep import ClusterUpkeep
from perdure.controller.maintenance.orphan_sweep import OrphanSweep
from perdure.controller.nodes.connection_records import ConnectionRecords
from perdure.controller.nodes.host_slots import HostSlots
from perdure.controller.nodes.node_spec import NodeSpecBuilder
from perdure.controller.nodes.session import NodeSessions
from perdure.controller.peers.cooperation import PeerCooperation
from perdure.controller.peers.lease import Lease
from perdure.controller.peers.ownership import JobOwnership
from perdure.controller.peers.peer_messages import InboxReader, Outbox
from perdure.controller.peers.wake_signal import WakeSignal
from perdure.controller.reconcile.inbox import ReconcilerInbox
from perdure.controller.reconcile.intent_builder import IntentBuilder
from perdure.controller.reconcile.loop import Reconciler
from perdure.controller.reconcile.loop_watchdog import Watchdog
from perdure.controller.reconcile.market_state import MarketState, load_market
from perdure.controller.reconcile.work_items import complete
from perdure.controller.runtime.clock import REAL_TIME
from perdure.controller.runtime.config.settings import Settings
from perdure.controller.runtime.keys import AttemptKey
from perdure.controller.runtime.security.keyring import Keyring
from perdure.controller.store.blobs import DirectoryBlobs
from perdure.controller.store.clusters import home_rescues
from perdure.controller.store.logs.file_logs import FileLogStore
from perdure.controller.store.logs.followers import JobUpdates
from perdure.controller.store.logs.sql_logs import SqlLogStore
from perdure.controller.store.queries.counts import TaskCounter
from perdure.controller.store.records import jobs
from perdure.controller.store.records.job_claims import Claim
from perdure.controller.submit.batching import SubmissionBatcher, accept_and_adopt, accept_one
from perdure.controller.submit.cluster.clusters import ClusterService
from perdure.controller.submit.compiler import Compiler
from perdure.controller.submit.service import SubmissionService
from perdure.recovery.job import JobView, Timeouts
from perdure.recovery.market.slot_queue import SLOT_CLOUD

if TYPE_CHECKING:
    from faultworld.process import Process

CONTROLLER = "sim"
TIMEOUTS = Timeouts(boot_timeout_s=90.0, node_timeout_s=60.0, drain_timeout_s=15.0, unsatisfiable_retry_s=60.0)
KEYRING = Keyring(b"k" * 32, "user")
DIGESTS = {"agent": "0" * 64}
LEASE_S = 15.0
_HEARTBEAT_INTERVAL_S = 5.0
# How long a call of a cloud takes at most: one of a worker, and one of the sweep.
_MAX_CALL_S, _MAX_SWEEP_CALL_S = 0.2, 2.0


# Events are recorded one by one, in threes, or all that wait at once.
_BATCH_SIZES = (1, 3, 64)


class _Inbox(ReconcilerInbox):
    """The inbox, for which callers wait on virtual time."""

    def __init__(self, process: Process, market: MarketState) -> None:
        super().__init__(process.database, process.clock, market)
        self._process = process

    def adopt(self, claims: Sequence[Claim], views: Mapping[int, JobView] | None = None) -> Any:  # for a Future
        return BlockingFuture(self._process.threads, super().adopt(claims, views))

    def recheck(self) -> Any:  # for a Future
        return BlockingFuture(self._process.threads, super().recheck())


class Components:
    """The components of one process. `peers` is None for a controller that is alone. Raises errors of the database."""

    def __init__(self, process: Process, home: Path, *, alone: bool) -> None:
        self._process = process
        world, clock, database = process.world, process.clock, process.database
        monotonic = world.scheduler.now
        self.lease = Lease(database, clock, alone=alone, duration_s=LEASE_S, monotonic=monotonic)
        self.lease.owner = f"owner-{process.number}"
        self.lease.start("http://sim")
        clouds: Any = {name: CloudClient(c, process, _MAX_CALL_S) for name, c in world.clouds.items()}
        slow: Any = {name: CloudClient(c, process, _MAX_SWEEP_CALL_S) for name, c in world.clouds.items()}
        market = load_market(clouds, clock, database)
        storage = StorageService(
            {"local": BucketStoreClient(process)}, database, self.lease.owner, home.joinpath, clock
        )
        self.logs: FileLogStore | SqlLogStore = FileLogStore(home) if alone else SqlLogStore(database)
        self.inbox = inbox = _Inbox(process, market)
        self.queue: SimulatedQueue | None = None
        if has_clusters := bool(world.scenario.clusters):
            queue = self.queue = SimulatedQueue(process, market, inbox, self._refresh_slots)
            slots = SlotCloud(database, clock, queue.host_changed)
            clouds[SLOT_CLOUD] = slow[SLOT_CLOUD] = slots
        presence, job_updates = ConnectionRecords(database, clock, self.lease.owner), JobUpdates()
        self.sessions = NodeSessions(
            inbox, self.logs, presence, clock=clock, heartbeat_interval_s=_HEARTBEAT_INTERVAL_S,
            node_timeout_s=TIMEOUTS.node_timeout_s, monotonic=monotonic, on_log=job_updates.publish_log,
            host_slots=HostSlots(database, clock, KEYRING) if has_clusters else None,
        )  # fmt: skip
        executor = CloudActions(
            clouds, KEYRING, storage, clock, "http://sim", DIGESTS, market.unavailable_offers,
            rescue_of=home_rescues.reader(database), live=jobs.live_reader(database),
        )  # fmt: skip
        run = CallOnThread(executor, self._deliver_result, self.lease.is_held)
        self.dispatcher = Dispatcher(WorkerPools(process, 0.3, run), self._deliver_result, clock)
        outbox = None if alone else self._outbox()
        self.reconciler = Reconciler(
            inbox=inbox, dispatcher=self.dispatcher, database=database, clock=clock, market=market, timeouts=TIMEOUTS,
            intent_builder=IntentBuilder(CONTROLLER, stoppable=frozenset(world.clouds), keep_disks=True),
            forward=outbox.forward if outbox else complete,
            on_directive=self.sessions.push_directive, on_job_changed=partial(_publish_job, job_updates, self.queue),
            batch_size=_BATCH_SIZES[(world.scenario.seed + process.number) % len(_BATCH_SIZES)],
        )  # fmt: skip
        self.watchdog = Watchdog(inbox.queue, clock, monotonic=monotonic)
        self.ownership = JobOwnership(self.lease, inbox)
        self.ownership._lock = Lock(process.threads)  # type: ignore[assignment]
        signal = WakeSignal(Event(process.threads))  # type: ignore[arg-type]
        self.peer_inbox = InboxReader(database, self.lease.owner, inbox.submit, monotonic, signal.wake)
        self.peers = self._peers(outbox, signal, presence, market, job_updates) if outbox else None
        self.sweep = OrphanSweep(slow, CONTROLLER, database, inbox.owned_views, inbox.request_describe)
        self.node_specs = NodeSpecBuilder(KEYRING, storage, DIGESTS, TIMEOUTS)
        compiler = Compiler(KEYRING, market, storage)
        submissions = SubmissionService(database, clock, compiler, self.lease.owner, lambda _digest, _now: True)
        self.accept_all = partial(accept_and_adopt, submissions, inbox, lambda _job_id: None)
        cluster_service = ClusterService(
            database, clock, KEYRING, partial(accept_one, self.accept_all), cancel_jobs(process, TIMEOUTS),
            self.queue.job_added if self.queue else lambda _job_id, _cluster_id: None,
        )  # fmt: skip
        self.cluster_ticks = ClusterTicks(process, self, ClusterUpkeep(database, clock, cluster_service))
        self.api_context = ApiContext(
            settings=Settings(home, timeouts=TIMEOUTS), clock=clock, keyring=KEYRING, database=database, clouds=clouds,
            inbox=inbox, sessions=self.sessions, job_updates=job_updates, peer_inbox=self.peer_inbox,
            logs=self.logs, node_specs=self.node_specs,
            blobs=DirectoryBlobs(home, home), controller_id=CONTROLLER, started_at=clock.now(),
            compiler=compiler, submissions=submissions,
            submission_batcher=SubmissionBatcher(self.accept_all, inbox.backlog),
            endpoint="http://sim", request_stop=lambda: None, has_lease=self.lease.is_held, watchdog=self.watchdog,
            time_scale=REAL_TIME, prober=None, counts=TaskCounter(),
            cluster_service=cluster_service,
        )  # fmt: skip

    def _refresh_slots(self, host: AttemptKey) -> None:
        self.sessions.refresh_slots(host)

    def _outbox(self) -> Outbox:
        outbox: Any = Outbox(self._process.database, self._process.clock)
        outbox._thread, outbox._ended = SingleThreadExecutor(self._process, 0.02), Event(self._process.threads)
        return outbox  # type: ignore[no-any-return]

    def _peers(
        self,
        outbox: Outbox,
        signal: WakeSignal,
        presence: ConnectionRecords,
        market: MarketState,
        job_updates: JobUpdates,
    ) -> PeerCooperation:
        process = self._process
        peers = PeerCooperation(
            database=process.database, presence=presence, inbox=self.inbox, sessions=self.sessions,
            ownership=self.ownership, market=market, updates=job_updates, peer_inbox=self.peer_inbox, outbox=outbox,
            signal=signal, monotonic=process.world.scheduler.now,
        )  # fmt: skip
        watcher: Any = peers._watcher
        watcher._ended = Event(process.threads)
        return peers

    def _deliver_result(self, result: Any) -> None:
        self._process.within(0.2, self.sessions.on_result, result)


def _publish_job(job_updates: JobUpdates, queue: SimulatedQueue | None, job_id: int) -> None:
    job_updates.publish_job(job_id)
    if queue is not None:
        queue.job_changed(job_id)
