"""Builds the controller from its parts, runs it, and shuts it down. Jobs go on when it ends."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from functools import partial

import structlog

from perdure.controller.api.access.registry import REFRESH_S, AccessRegistry
from perdure.controller.api.app import application
from perdure.controller.api.context import ApiContext
from perdure.controller.api.serve.services import build_services
from perdure.controller.api.server.http import Server
from perdure.controller.api.server.listen_socket import open_listen_socket
from perdure.controller.buckets.configured import build_storage
from perdure.controller.clouds.base.protocol import Cloud
from perdure.controller.clouds.bootstrap.artifacts import PUBLISH_INTERVAL_S, build_artifacts, publish_artifacts
from perdure.controller.clouds.pricing.sql_cache import SqlOfferCache
from perdure.controller.clouds.reachability import remote_clouds, report_unreachable
from perdure.controller.clouds.registry import buckets_on_node, build_clouds, opens_ports, stoppable, time_speed
from perdure.controller.clouds.slot_cloud import SlotCloud
from perdure.controller.execute.pipeline import build_pipeline
from perdure.controller.execute.worker_pool import USAGE_INTERVAL_S
from perdure.controller.maintenance import (
    backup_schedule,
    budgets,
    cluster_homes,
    cluster_upkeep,
    history_expiry,
    node_metrics_writer,
    offer_probes,
    orphan_sweep,
)
from perdure.controller.maintenance.gauges import register_gauges
from perdure.controller.maintenance.job_changes import publish_job
from perdure.controller.maintenance.notify.callback_channel import CallbackChannel
from perdure.controller.maintenance.notify.channels import build_channels
from perdure.controller.maintenance.notify.sender import NotificationSender
from perdure.controller.maintenance.periodic_jobs import PeriodicJobs
from perdure.controller.maintenance.serve.timeline import ServiceTimeline
from perdure.controller.nodes.connection_records import ConnectionRecords
from perdure.controller.nodes.host_slots import HostSlots
from perdure.controller.nodes.io_batches import Batched
from perdure.controller.nodes.node_spec import NodeSpecBuilder
from perdure.controller.nodes.notice_queue_consumer import NoticeQueueConsumers
from perdure.controller.nodes.session import NodeSessions
from perdure.controller.nodes.unrecorded_machines import UnrecordedMachines
from perdure.controller.peers import membership
from perdure.controller.peers.cancellation import JobCancellation
from perdure.controller.peers.home import database_check, watermark
from perdure.controller.peers.ownership import JobOwnership
from perdure.controller.peers.peer_messages import POLL_INTERVAL_S, InboxReader, Outbox
from perdure.controller.peers.time_scale import scale_timeouts
from perdure.controller.peers.wake_signal import WakeSignal
from perdure.controller.reconcile import loop_watchdog
from perdure.controller.reconcile.boot_failures import BootFailures
from perdure.controller.reconcile.inbox import ReconcilerInbox
from perdure.controller.reconcile.intent_builder import IntentBuilder
from perdure.controller.reconcile.loop import Reconciler
from perdure.controller.reconcile.market_state import load_market
from perdure.controller.reconcile.reports.job_metrics import JobMetrics
from perdure.controller.reconcile.reports.notification_outbox import NotificationOutbox
from perdure.controller.reconcile.reports.reports import DecisionReports
from perdure.controller.reconcile.slot_grants import SlotGrants
from perdure.controller.reconcile.work_items import complete
from perdure.controller.runtime import endpoint_file
from perdure.controller.runtime.clock import Clock
from perdure.controller.runtime.config.clusters_config import read_clusters_config
from perdure.controller.runtime.config.config_file import ConfigFile
from perdure.controller.runtime.config.listen import is_loopback
from perdure.controller.runtime.config.notify_config import CALLBACK, read_notify_config
from perdure.controller.runtime.config.oidc_config import read_oidc_config
from perdure.controller.runtime.config.settings import Settings
from perdure.controller.runtime.metrics.daemon_metrics import DaemonMetrics
from perdure.controller.runtime.metrics.event_loop import EventLoopLag
from perdure.controller.runtime.metrics.process_stats import register_process_stats
from perdure.controller.runtime.security.tls import load_tls
from perdure.controller.store.blobs import SqlBlobs, open_blobs, path_or_error
from perdure.controller.store.engine import statement_times
from perdure.controller.store.engine.database import open_database
from perdure.controller.store.logs.bounded_logs import BoundedLogs, DiskReserve
from perdure.controller.store.logs.followers import JobUpdates
from perdure.controller.store.logs.open_logs import open_logs
from perdure.controller.store.logs.sql_logs import SqlLogStore
from perdure.controller.store.queries.counts import RENEW_S, TaskCounter
from perdure.controller.submit import schedules
from perdure.controller.submit.batching import SubmissionBatcher, accept_and_adopt, accept_one
from perdure.controller.submit.cluster.clusters import ClusterService
from perdure.controller.submit.compiler import Compiler
from perdure.controller.submit.schedules import ScheduleService
from perdure.controller.submit.service import SubmissionService
from perdure.recovery.market.slot_queue import SLOT_CLOUD

log = structlog.get_logger(__name__)


class Daemon:
    """One controller process: its parts, wired in the order in which they depend on each other."""

    def __init__(self, settings: Settings, wall_clock: Clock) -> None:
        self.settings = settings
        alone, bounds = settings.is_single_controller, settings.bounds
        self._tls = tls = load_tls(settings.listen, host=settings.host, clock=wall_clock)
        self.database = database = open_database(settings.database_address)
        self._metrics = metrics = DaemonMetrics()
        statement_times.measure(database, metrics.database_seconds, metrics.database_errors)
        with database.connect() as conn:
            database_check.check(settings, conn)
        self.socket = open_listen_socket(settings, database)
        self._address = f"{'https' if tls else 'http'}://{settings.host}:{self.socket.getsockname()[1]}"
        endpoint = settings.advertise or self._address  # perhaps the URL of a load balancer
        speed = time_speed(settings.sections, settings.home)
        self._member = member = membership.join(settings, wall_clock, database, self._address, tls, speed=speed)
        clock, time_scale, keyring = member.clock, member.time_scale, member.keyring

        artifact_folder = (settings.local_home or settings.home) / "artifacts"
        self._blobs = blobs = open_blobs(settings.home / "uploads", artifact_folder, database, clock, shared=not alone)
        self._logs = open_logs(settings.home, database, member.owner, shared=not alone)
        reserve = DiskReserve(settings.home, bounds.disk_reserve_bytes) if alone else None
        logs = BoundedLogs(self._logs, max_bytes=bounds.max_log_bytes, reserve=reserve)
        self._artifacts = build_artifacts(artifact_folder)
        digests = {name: artifact.digest for name, artifact in self._artifacts.items()}
        self._clouds = clouds = build_clouds(
            settings.sections,
            settings.home,
            clock,
            local_home=settings.local_home,
            has_local=settings.local_home is not None,
            time_scale=time_scale,
            cache=SqlOfferCache(database, clock, member.owner, alone=alone),
        )
        storage = build_storage(
            settings,
            database=database,
            owner=member.owner,
            archive=partial(path_or_error, blobs),
            clock=clock,
            wall_clock=wall_clock,
            buckets_on_node=buckets_on_node(clouds.values()),
        )
        market = load_market(
            clouds,
            clock,
            database,
            unreachable=report_unreachable(settings.sections, endpoint, bool(settings.advertise), settings.home),
            boot_failures=BootFailures(remote_clouds(settings.sections), endpoint),
        )

        is_private = is_loopback(settings.host) and not settings.listen.trust_proxy_tls
        notify = read_notify_config(ConfigFile.load(settings.home), listens_on_loopback=is_private)
        keep_disks = read_clusters_config(ConfigFile.load(settings.home)).keep_disks
        channels = dict(build_channels(notify, wall_clock, database, clock))
        if notify.runs_callbacks:
            channels[CALLBACK] = CallbackChannel(database, settings.home / "callbacks")
        owner, speed = member.owner, time_scale.speed
        self._notifications = NotificationSender(
            notify, channels, database, clock, owner=owner, speed=speed, is_alone=alone, metrics=metrics
        )
        outbox = NotificationOutbox(notify, member.controller_id, self._notifications.wake)
        reports = DecisionReports(JobMetrics(metrics, clock), outbox)
        self.inbox = inbox = ReconcilerInbox(database, clock, market, time_scale.speed, reports)
        queue = SlotGrants(database, clock, market, inbox, lambda host: self._sessions.refresh_slots(host))  # noqa: PLW0108 - made below
        self._cluster_queue = queue
        machines: dict[str, Cloud] = {**clouds, SLOT_CLOUD: SlotCloud(database, clock, queue.host_changed)}
        job_updates, presence = JobUpdates(), ConnectionRecords(database, clock, member.owner)
        self._sessions = sessions = NodeSessions(
            inbox,
            logs,
            presence,
            clock=clock,
            heartbeat_interval_s=settings.nodes.heartbeat_interval_s,
            node_timeout_s=settings.timeouts.node_timeout_s,
            time_scale=time_scale,
            blocking_io=Batched(logs, presence),
            on_log=job_updates.publish_log,
            host_slots=HostSlots(database, clock, keyring),
        )
        self._pools, dispatcher = build_pipeline(
            clouds=machines,
            keyring=keyring,
            storage=storage,
            clock=clock,
            endpoint=endpoint,
            artifacts=digests,
            unavailable=market.unavailable_offers,
            fingerprint=tls.pin if tls else None,
            speed=time_scale.speed,
            quotas=settings.quotas,
            database=database,
            on_result=sessions.on_result,
            may_act=member.lease.is_held,
            on_call=metrics.on_cloud_call,
            console_logs=(logs, job_updates.publish_log),
        )
        signal, peer_outbox = WakeSignal(), None if alone else Outbox(database, clock)
        self.reconciler = Reconciler(
            inbox=inbox,
            dispatcher=dispatcher,
            database=database,
            clock=clock,
            market=market,
            timeouts=scale_timeouts(settings.timeouts, time_scale),
            intent_builder=IntentBuilder(
                member.controller_id, keyring.incarnations, opens_ports(clouds), stoppable(clouds), keep_disks
            ),
            forward=peer_outbox.forward if peer_outbox else complete,
            on_directive=sessions.push_directive,
            on_job_changed=partial(publish_job, job_updates, queue, sessions.readiness),
            speed=time_scale.speed,
            recoveries_per_hour=bounds.recoveries_per_hour,
        )
        self._notice_consumers = NoticeQueueConsumers(clouds.values(), database, inbox)
        self._ownership = JobOwnership(member.lease, inbox)
        self._peer_inbox = InboxReader(database, member.owner, inbox.submit, on_capacity=signal.wake)
        self._peers = None
        if peer_outbox is not None:
            from perdure.controller.peers.cooperation import PeerCooperation  # it needs the extra [postgres]

            self._peers = PeerCooperation(
                database=database,
                inbox=inbox,
                peer_inbox=self._peer_inbox,
                outbox=peer_outbox,
                signal=signal,
                presence=presence,
                sessions=sessions,
                ownership=self._ownership,
                market=market,
                updates=job_updates,
                is_own_process=self._logs.has_written
                if isinstance(self._logs, SqlLogStore)
                else lambda _process_id: False,
            )
        compiler, quota = Compiler(keyring, market, storage, notify), settings.quotas.max_jobs_per_user
        submissions = SubmissionService(database, clock, compiler, member.owner, blobs.touch, quota)
        self._prober = offer_probes.make_prober(
            settings, database=database, clock=clock, market=market, submissions=submissions, inbox=inbox
        )
        self._node_metrics = node_metrics_writer.NodeMetricsWriter(sessions.usage.pending, database, clock)
        unknown_machines = UnrecordedMachines()
        of_inbox = (inbox.owned_views, inbox.request_describe)
        self._sweep = orphan_sweep.OrphanSweep(machines, member.controller_id, database, *of_inbox, unknown_machines)
        self._retention = history_expiry.HistoryExpiry(settings.retention, database, clock, logs, blobs)
        accept = partial(accept_and_adopt, submissions, inbox, member.watermark.record_job)
        grace_s, speed, one = settings.timeouts.drain_timeout_s, time_scale.speed, partial(accept_one, accept)
        cancel = JobCancellation(database, clock, self._peer_inbox, grace_s, speed).cancel
        cluster_service = ClusterService(database, clock, keyring, one, cancel, queue.job_added)
        wake, me, idle_s = self._notifications.wake, member.controller_id, settings.nodes.power_off_after_s
        of_jobs, of_nodes = (self._ownership, submissions, one, cancel), (sessions, logs, metrics)
        timeline = ServiceTimeline(notify, me, wake)
        self._services = services = build_services(settings, database, member, tls, timeline, *of_jobs, *of_nodes)
        of_user = (cancel, cluster_service, services.requests)
        self._budgets = budgets.BudgetWatch(database, clock, notify, me, wake, *of_user)
        self._cluster_upkeep = cluster_upkeep.ClusterUpkeep(database, clock, cluster_service, sessions.usage.busy_jobs)
        self._cluster_homes = cluster_homes.ClusterHomes.of(storage, member.controller_id, clouds)
        self._schedules = ScheduleService(database, wall_clock, keyring, compiler, one, blobs.touch)
        self._watchdog = loop_watchdog.Watchdog(inbox.queue, clock, time_scale.speed)
        self._backups = backup_schedule.build(settings, database, wall_clock)
        self._access = AccessRegistry(database, clock)
        self._ticker = PeriodicJobs()
        self._server: Server | None = None
        failed = self.reconciler.failed
        self.api_context = ApiContext(
            settings=settings,
            clock=clock,
            keyring=keyring,
            database=database,
            clouds=clouds,
            inbox=inbox,
            sessions=sessions,
            job_updates=job_updates,
            peer_inbox=self._peer_inbox,
            logs=logs,
            node_specs=NodeSpecBuilder(keyring, storage, digests, settings.timeouts, idle_s, market.mean_uptime_s),
            compiler=compiler,
            submissions=submissions,
            submission_batcher=SubmissionBatcher(accept, inbox.backlog),
            cluster_service=cluster_service,
            services=services,
            blobs=blobs,
            counts=TaskCounter(),
            controller_id=member.controller_id,
            access=self._access,
            metrics=metrics,
            notifications=self._notifications,
            schedules=self._schedules,
            oidc=read_oidc_config(ConfigFile.load(settings.home)),
            stream_activity=self._cluster_upkeep.streams,
            started_at=clock.now(),
            time_scale=time_scale,
            prober=self._prober,
            backups=self._backups,
            endpoint=endpoint,
            request_stop=self._request_stop,
            unknown_machines=unknown_machines,
            has_lease=member.lease.is_held,
            watchdog=self._watchdog,
            launch_blocked_reason=self._pools.why_waiting,
            count_set_aside=lambda: failed.total_set_aside + (peer_outbox.total_set_aside if peer_outbox else 0),
        )
        register_process_stats(metrics.registry, settings.home)
        register_gauges(
            metrics,
            inbox=inbox,
            sessions=sessions,
            launch_queues=self._pools.queue_depths,
            has_lease=member.lease.is_held,
            count_set_aside=self.api_context.count_set_aside,
            clock=clock,
            speed=time_scale.speed,
            started_at=wall_clock.now(),
        )

    async def run(self) -> None:
        """Serve until asked to stop."""
        self._services.proxies.run_on(asyncio.get_running_loop())
        EventLoopLag(self._metrics.event_loop_lag)
        request_priority = self.api_context.submission_batcher.request_priority
        close_feeds = self.api_context.job_updates.close_feeds
        self._server = Server(
            application(self.api_context), self._tls, request_priority, on_startup=self._start, on_shutdown=close_feeds
        )
        await self._server.serve(sockets=[self.socket])

    def close(self) -> None:
        """Stop deciding and acting. The next daemon resolves the calls that are under way."""
        self._ticker.stop()
        self._notifications.stop()
        self._notice_consumers.stop()
        self._cluster_queue.stop()
        self._services.stop()
        self.reconciler.stop()
        if self._peers is not None:
            self._peers.stop()
        self._pools.shutdown()
        self._node_metrics.write_all()
        self._ownership.stop()
        endpoint_file.remove(self.settings.home)
        self.database.dispose()
        log.info("controller.stopped")

    def _start(self) -> Future[None]:
        """Start every part. Returns a future that completes when this daemon has adopted its jobs."""
        if isinstance(self._blobs, SqlBlobs):
            publish_artifacts(self._blobs, [self._artifacts["agent"]])
        self._pools.refresh_usage()  # before the first launch
        self.reconciler.start(self.api_context.submission_batcher.request_priority)
        self._cluster_queue.start()
        self._services.start()
        adopted = self._ownership.start()
        if self._peers is not None:
            self._peers.start(self.settings.database_address)
        self._schedule()
        self._notifications.start()
        self._notice_consumers.start()
        self._ticker.start()
        fingerprint = self._tls.fingerprint if self._tls else None
        endpoint_file.publish(self.settings.home, self._address, fingerprint, self.settings.keyring_directory)
        log.info("controller.started", endpoint=self.api_context.endpoint, jobs=self.inbox.num_jobs())
        return adopted

    def _schedule(self) -> None:
        """Schedule what the ticker does."""
        every, renew_s = self._ticker.every, self._member.lease.duration_s / 3
        if isinstance(self._blobs, SqlBlobs):  # the large files can wait: they only differ during a rolling upgrade
            every(PUBLISH_INTERVAL_S, partial(publish_artifacts, self._blobs, self._artifacts.values()))
        every(USAGE_INTERVAL_S, self._pools.refresh_usage)
        every(budgets.INTERVAL_S, self._budgets.tick, at_start=True)
        every(renew_s, self._ownership.tick)
        if self._peers is not None:
            every(renew_s, partial(self._sessions.close_without_lease, self._member.lease.is_held))
        else:
            every(POLL_INTERVAL_S, self._peer_inbox.poll_and_clean)
        every(REFRESH_S, self._access.tick)
        every(watermark.INTERVAL_S, self._advance_watermark)
        every(loop_watchdog.INTERVAL_S, self._watchdog.check)
        every(orphan_sweep.INTERVAL_S, self._sweep.run)
        every(cluster_upkeep.INTERVAL_S, self._cluster_upkeep.tick)
        every(cluster_homes.INTERVAL_S, self._cluster_homes.tick)
        every(schedules.INTERVAL_S, self._schedules.tick)
        every(RENEW_S / 2, partial(self.api_context.counts.tick, self.database, self._member.clock), at_start=True)
        every(history_expiry.TICK_S, self._retention.tick)
        every(node_metrics_writer.TICK_S, self._node_metrics.tick)
        self._ticker.refresh_prices(self._clouds.values())
        if self._backups is not None:
            every(backup_schedule.TICK_S, self._backups.tick, at_start=True)
        if self._prober is not None:
            every(offer_probes.TICK_S, self._prober.tick)

    def _advance_watermark(self) -> None:
        """A database that was replaced knows other jobs than this process: only a start can tell what is lost."""
        if not self._member.watermark.advance():
            self._request_stop()

    def _request_stop(self) -> None:
        if self._server is not None:
            self._server.should_exit = True
