"""What the API handlers use of a running daemon. Built in `daemon`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from sqlalchemy import Engine

from perdure.controller.api.access.registry import AccessRegistry
from perdure.controller.api.serve.services import Services
from perdure.controller.clouds.base.protocol import Cloud
from perdure.controller.maintenance.backup_schedule import BackupSchedule
from perdure.controller.maintenance.notify.sender import NotificationSender
from perdure.controller.maintenance.offer_probes import Prober
from perdure.controller.maintenance.stream_activity import StreamActivity
from perdure.controller.nodes.node_spec import NodeSpecBuilder
from perdure.controller.nodes.session import NodeSessions
from perdure.controller.nodes.unrecorded_machines import UnrecordedMachines
from perdure.controller.peers.peer_messages import InboxReader
from perdure.controller.reconcile.inbox import ReconcilerInbox
from perdure.controller.reconcile.loop_watchdog import Watchdog
from perdure.controller.runtime.clock import Clock, TimeScale
from perdure.controller.runtime.config.oidc_config import OidcConfig
from perdure.controller.runtime.config.settings import Settings
from perdure.controller.runtime.metrics.daemon_metrics import DaemonMetrics
from perdure.controller.runtime.security.keyring import Keyring
from perdure.controller.store.blobs import BlobStore
from perdure.controller.store.logs.followers import JobUpdates
from perdure.controller.store.logs.protocol import LogStore
from perdure.controller.store.queries.counts import TaskCounter
from perdure.controller.submit.batching import SubmissionBatcher
from perdure.controller.submit.cluster.clusters import ClusterService
from perdure.controller.submit.compiler import Compiler
from perdure.controller.submit.schedules import ScheduleService
from perdure.controller.submit.service import SubmissionService


@dataclass(frozen=True)
class ApiContext:
    """The parts of the daemon that handle API calls."""

    settings: Settings
    clock: Clock
    keyring: Keyring
    database: Engine
    clouds: Mapping[str, Cloud]  # name → cloud
    inbox: ReconcilerInbox
    sessions: NodeSessions  # of the nodes that are connected to this daemon
    job_updates: JobUpdates  # wakes the requests that follow a job
    peer_inbox: InboxReader  # messages of other controllers, and cancels
    logs: LogStore
    node_specs: NodeSpecBuilder
    compiler: Compiler
    submissions: SubmissionService
    submission_batcher: SubmissionBatcher
    cluster_service: ClusterService
    blobs: BlobStore  # uploads of users, and the files that nodes run, by sha256
    counts: TaskCounter  # of tasks by status
    controller_id: str  # the same for all controllers on one database
    started_at: float
    time_scale: TimeScale  # from `clock` to the wall clock
    prober: Prober | None  # None unless config.yaml enables probes
    endpoint: str  # the address that users and nodes call
    request_stop: Callable[[], None]  # ends the daemon; jobs go on
    has_lease: Callable[[], bool]  # whether the daemon may act on its jobs
    watchdog: Watchdog  # whether the daemon keeps up with its jobs
    #: The tokens of named users.
    access: AccessRegistry = field(default_factory=AccessRegistry)
    #: What `/metrics` returns.
    metrics: DaemonMetrics = field(default_factory=DaemonMetrics)
    #: None in simulations.
    services: Services | None = None
    #: None in tests that send nothing.
    notifications: NotificationSender | None = None
    #: None in tests that schedule nothing.
    schedules: ScheduleService | None = None
    #: None unless config.yaml has a provider for signing in.
    oidc: OidcConfig | None = None
    #: None unless config.yaml enables backups.
    backups: BackupSchedule | None = None
    #: What users do on machines through streams.
    stream_activity: StreamActivity = field(default_factory=StreamActivity)
    #: Machines that the database does not know.
    unknown_machines: UnrecordedMachines = field(default_factory=UnrecordedMachines)
    #: (job id, task index) → why the task's launch is held back; None if it is not.
    launch_blocked_reason: Callable[[int, int], str | None] = lambda _job_id, _task: None
    #: How many events and messages could not be recorded, and were set aside.
    count_set_aside: Callable[[], int] = lambda: 0
