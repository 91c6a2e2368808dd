"""A controller core in one thread: real store, reconciler and executor on a manual clock, over the fake cloud."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Engine

from perdure.controller.clouds.fake import FakeCloud
from perdure.controller.execute.call_on_thread import CallOnThread
from perdure.controller.execute.call_types import CallFeedback, CloudCall, IntentOutcome, RetryLater
from perdure.controller.execute.cloud_actions import CloudActions
from perdure.controller.execute.console_output import ConsoleRecorder
from perdure.controller.execute.dispatcher import Dispatcher
from perdure.controller.reconcile.inbox import ReconcilerInbox
from perdure.controller.reconcile.intent_builder import IntentBuilder
from perdure.controller.reconcile.loop import Reconciler
from perdure.controller.reconcile.market_state import MarketState, load_market
from perdure.controller.reconcile.reports.job_metrics import JobMetrics
from perdure.controller.reconcile.reports.notification_outbox import NotificationOutbox
from perdure.controller.reconcile.reports.reports import DecisionReports
from perdure.controller.reconcile.work_items import JobEvent, complete
from perdure.controller.runtime.clock import ManualClock
from perdure.controller.runtime.config.notify_config import NotifyConfig
from perdure.controller.runtime.metrics.daemon_metrics import DaemonMetrics
from perdure.controller.runtime.security.keyring import Keyring
from perdure.controller.store.clusters import home_rescues
from perdure.controller.store.engine.batch_writer import WriteBatch
from perdure.controller.store.engine.database import open_database
from perdure.controller.store.queries import job_listing as queries
from perdure.controller.store.records import job_claims, jobs
from perdure.controller.store.records.intents import Intent
from perdure.controller.store.records.job_claims import Claim
from perdure.controller.store.records.jobs import NewTask
from perdure.recovery import events
from perdure.recovery.directive import Target
from perdure.recovery.job import JobView, TaskView, Timeouts
from perdure.recovery.market.requirements import Amount, MachineRequirement
from perdure.recovery.statuses import NodePhase


@dataclass
class InlineCalls:
    """Makes a call at once, in the caller's thread."""

    run: Callable[[CloudCall], CallFeedback]

    def submit(self, call: CloudCall, /) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(self.run(call))
        return done


class NoBuckets:
    def prepare(self, intent: Intent) -> IntentOutcome | RetryLater:
        return IntentOutcome("ready", events.StorageReady(intent.task))

    def remove(self, intent: Intent) -> IntentOutcome | RetryLater:
        return IntentOutcome("removed", events.Tick())


@dataclass(frozen=True)
class Controller:
    """The parts of one controller process that decide and act."""

    market: MarketState
    inbox: ReconcilerInbox
    executor: CloudActions
    run: CallOnThread
    dispatcher: Dispatcher
    reconciler: Reconciler

    def settle(self) -> None:
        """Handle everything that is queued or due."""
        while self.reconciler.run_once(block=False):
            pass


@dataclass
class World:
    """One controller at a time, on a database and a fake cloud that outlive it."""

    url: str
    clock: ManualClock = field(default_factory=ManualClock)
    timeouts: Timeouts = field(default_factory=Timeouts)
    directives: list[tuple[tuple[int, int, int], Target]] = field(default_factory=list)  # all that were pushed
    has_lease: bool = True
    forward: Callable[[JobEvent], None] = complete  # of events for jobs of other controllers
    max_machines: dict[str, int] = field(default_factory=dict)
    notify: NotifyConfig | None = None
    opens_ports: frozenset[str] = frozenset()  # the clouds that open ports of clusters
    stoppable: frozenset[str] = frozenset()  # the clouds that keep the disks of clusters
    keep_disks: bool = True
    console: ConsoleRecorder | None = None  # of machines that never called

    def __post_init__(self) -> None:
        self.cloud = FakeCloud(self.clock)
        self.database: Engine = open_database(self.url)
        self.owner = "one"
        self.current = self.controller(self.owner)

    def controller(self, owner: str) -> Controller:
        """A controller process on this world's database and cloud, with nothing in its memory."""
        clouds = {"fake": self.cloud}
        market = load_market(clouds, self.clock, self.database)
        executor = CloudActions(
            clouds=clouds,
            keyring=Keyring(b"k" * 32, "user"),
            storage=NoBuckets(),
            clock=self.clock,
            endpoint="http://127.0.0.1:1",
            artifacts={"agent": "0" * 64},
            unavailable=market.unavailable_offers,
            max_machines=self.max_machines,
            rescue_of=home_rescues.reader(self.database),
            live=jobs.live_reader(self.database),
            console=self.console,
        )
        outbox = NotificationOutbox(self.notify, "test") if self.notify else None
        reports = DecisionReports(JobMetrics(DaemonMetrics(), self.clock), outbox)
        inbox = ReconcilerInbox(self.database, self.clock, market, reports=reports)
        run = CallOnThread(executor, inbox.on_result, lambda: self.has_lease)
        dispatcher = Dispatcher(InlineCalls(run), inbox.on_result, self.clock)
        reconciler = Reconciler(
            inbox=inbox,
            dispatcher=dispatcher,
            database=self.database,
            clock=self.clock,
            market=market,
            timeouts=self.timeouts,
            intent_builder=IntentBuilder(
                "test", opens_ports=self.opens_ports, stoppable=self.stoppable, keep_disks=self.keep_disks
            ),
            forward=self._forward,
            on_directive=lambda key, directive: self.directives.append((key, directive.target)),
        )
        return Controller(market, inbox, executor, run, dispatcher, reconciler)

    def _forward(self, event: JobEvent) -> None:
        self.forward(event)

    @property
    def market(self) -> MarketState:
        return self.current.market

    @property
    def inbox(self) -> ReconcilerInbox:
        return self.current.inbox

    @property
    def dispatcher(self) -> Dispatcher:
        return self.current.dispatcher

    @property
    def reconciler(self) -> Reconciler:
        return self.current.reconciler

    def submit(
        self,
        *,
        nodes: int = 1,
        tasks: int = 1,
        spec: dict[str, Any] | None = None,
        need: MachineRequirement = MachineRequirement(cpus=Amount(4)),  # noqa: B008 - frozen
        or_need: Sequence[MachineRequirement] = (),
        job: Mapping[str, Any] | None = None,
        **changes: Any,
    ) -> int:
        """`job`: columns of its row. `or_need`: alternatives to `need`."""
        now = self.clock.now()
        views = [
            TaskView(i, (need, *or_need), num_nodes=nodes, wake_at=now if i == 0 else None, **changes)
            for i in range(tasks)
        ]
        new = [NewTask(v, f"t{v.index}", {}, {"resources": "cpus=4"} | (spec or {}), None) for v in views]
        with self.database.begin() as conn:
            columns = {"name": "job", "user": "", "priority": 0, "num_tasks": tasks, "submitted_at": now}
            (job_id,) = jobs.insert_batch(conn, columns | {"idempotency_key": None, "owner": self.owner, **(job or {})})
            writes = WriteBatch(conn)
            jobs.add_tasks(writes, new, {job_id: [f"sky-managed-x_job_{job_id}-{i}" for i in range(tasks)]})
            writes.flush()
        self.inbox.adopt([Claim(job_id, self.owner, 1)])
        self.settle()
        return job_id

    def settle(self) -> None:
        """Handle everything that is queued or due."""
        self.current.settle()

    def pass_time(self, seconds: float, step_s: float = 1.0) -> None:
        end = self.clock.now() + seconds
        while self.clock.now() < end:
            self.clock.advance(min(step_s, end - self.clock.now()))
            self.settle()

    def deliver(self, job_id: int, event: events.Event) -> None:
        self.inbox.post(job_id, event)
        self.settle()

    def report(self, job_id: int, phase: NodePhase, *, generation: int = 1, rank: int = 0, **kw: Any) -> None:
        self.deliver(job_id, events.NodeReported(0, generation, rank, phase, **kw))

    def run(self, job_id: int, generation: int = 1, nodes: int = 1) -> None:
        for phase in (NodePhase.BOOTED, NodePhase.READY, NodePhase.RUNNING):
            for rank in range(nodes):
                self.report(job_id, phase, generation=generation, rank=rank)

    def restart(self, owner: str = "two") -> None:
        """Kill the controller, and have another take over its jobs."""
        self.owner = owner
        with self.database.begin() as conn:
            claimed = job_claims.claim(conn, owner, self.clock.now(), limit=1000, take_all=True)
        self.current = self.controller(owner)
        self.inbox.adopt(claimed)
        self.settle()

    def view(self, job_id: int) -> JobView:
        with self.database.connect() as conn:
            return jobs.load(conn, [job_id])[job_id]

    def job(self, job_id: int) -> dict[str, Any]:
        with self.database.connect() as conn:
            return queries.describe(conn, [job_id], self.clock.now())[0]

    def kinds(self, job_id: int) -> list[str]:
        with self.database.connect() as conn:
            return [e["kind"] for e in queries.timeline(conn, job_id)]

    def timeline(self, job_id: int, kind: str) -> list[dict[str, Any]]:
        """The entries of one kind, oldest first."""
        with self.database.connect() as conn:
            return [e for e in queries.timeline(conn, job_id) if e["kind"] == kind]

    def living(self) -> list[str]:
        return [i.id for i in self.cloud.list_owned("test")]

    def post(self, event: JobEvent) -> None:
        self.inbox.submit(event)
        self.settle()
