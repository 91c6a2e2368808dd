"""Puts a daemon together, runs it, and takes it apart again. Jobs go on when it ends."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import uuid
from collections.abc import Collection, Iterator
from concurrent.futures import Future
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
import uvloop
from apscheduler.schedulers.background import BackgroundScheduler

from perdure.controller import crashpoints, predecessor, retention
from perdure.controller.acting import Actor
from perdure.controller.api.app import application
from perdure.controller.api.uploads import remove_halves
from perdure.controller.attendance import Attendance
from perdure.controller.bootstrap.artifacts import artifacts as make_artifacts
from perdure.controller.callers import expect_many
from perdure.controller.caps import Standing
from perdure.controller.changes import Changes
from perdure.controller.channel import Channel
from perdure.controller.clock import REAL_TIME, Clock, PacedClock, SystemClock
from perdure.controller.clouds.pricelist import keep_fresh
from perdure.controller.clouds.registry import buckets_on_node, enabled_clouds, time_speed
from perdure.controller.dispatch import Dispatcher, Performed, Seen
from perdure.controller.fetched import DatabaseCache
from perdure.controller.files import FolderFiles, SharedFiles
from perdure.controller.hearing import hearings
from perdure.controller.intake import Intake
from perdure.controller.intending import Intending
from perdure.controller.keyring import AttemptKey, Keyring, keyring_of
from perdure.controller.leases import Lease, remembered
from perdure.controller.listener import CannotStart as CannotStart
from perdure.controller.listener import listen
from perdure.controller.logging import configure_logging
from perdure.controller.mail import LOOK_S, Incoming
from perdure.controller.market import Market
from perdure.controller.nodelogs import NodeLogs
from perdure.controller.nodespec import NodeSpecs
from perdure.controller.offload import Together
from perdure.controller.ownership import Ownership
from perdure.controller.pacing import pace_of, paced
from perdure.controller.pools import LOOK_S as LOOK_EVERY_S
from perdure.controller.pools import Pools
from perdure.controller.probing import TICK_S, prober_of
from perdure.controller.reconcile import Reconciler
from perdure.controller.server import Server
from perdure.controller.services import Services
from perdure.controller.settings import Settings, read_settings
from perdure.controller.sharedlogs import SharedLogs
from perdure.controller.storage.configured import account_of, stores_of
from perdure.controller.storage.service import StorageService
from perdure.controller.store import jobs as stored_jobs
from perdure.controller.store import letters
from perdure.controller.store.counts import RENEW_S, Counts
from perdure.controller.store.database import UNAVAILABLE, migrate_aside, open_database
from perdure.controller.store.standing import standing
from perdure.controller.submission import Submissions
from perdure.controller.sweep import Sweep
from perdure.controller.tls import tls_of
from perdure.recovery.directive import Directive

if TYPE_CHECKING:
    from perdure.controller.peers import Peers

log = structlog.get_logger(__name__)

SWEEP_S = 15.0
SHARE_S = 60.0


def serve(home: Path) -> None:
    """Run a daemon on `home` until it is told to stop. Raises CannotStart or SettingsError if it can not begin."""
    try:
        crashpoints.arm(os.environ.get(crashpoints.VARIABLE, ""))
    except ValueError as error:
        raise CannotStart(str(error)) from error
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    settings = read_settings(home)
    expect_many()
    with only_one(home):
        configure_logging(home, settings.log_level)
        migrate_aside(settings.url)
        try:
            daemon = Daemon(settings, SystemClock())
        except OSError as error:
            raise CannotStart(f"{error}; see that {home} has room, and is yours") from error
        try:
            uvloop.run(daemon.run())
        finally:
            daemon.close()


class Daemon:
    """One controller process: its parts, wired."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        home = settings.home
        self.settings = settings
        self.tls = tls_of(settings.listening, host=settings.host, clock=clock)
        self.database = open_database(settings.url)
        self.socket = listen(settings, self.database)
        # Where this daemon listens, and where users and machines are told to call: a balancer's address, perhaps.
        self.address = f"{'https' if self.tls else 'http'}://{settings.host}:{self.socket.getsockname()[1]}"
        endpoint = settings.advertise or self.address
        speed = time_speed(settings.sections, home)
        with self.database.begin() as conn:
            controller = remembered(conn, "controller", uuid.uuid4().hex[:12])
            pace = pace_of(conn, settings, speed, clock.now())
        worlds = clock
        self.clock = clock = clock if pace == REAL_TIME else PacedClock(pace, clock.now)
        self.lease = Lease(self.database, clock, alone=settings.is_alone, length_s=settings.lease_s, speed=pace.speed)
        keyring = self._keyring()
        predecessor.succeed(home, self.lease, self.address)
        artifact_folder, upload_folder = (settings.local_home or home) / "artifacts", home / "uploads"
        for folder in (artifact_folder, upload_folder):
            folder.mkdir(mode=0o700, exist_ok=True)
        remove_halves(upload_folder)
        self._artifacts = make_artifacts(artifact_folder)
        digests = {name: a.digest for name, a in self._artifacts.items()}
        self.clouds = enabled_clouds(
            settings.sections,
            home,
            clock,
            local_home=settings.local_home,
            has_local=settings.local_home is not None,
            pace=pace,
            cache=DatabaseCache(self.database, clock, self.lease.owner, alone=settings.is_alone),
        )
        market = Market(self.clouds, clock)
        with self.database.connect() as conn:
            market.load(conn)
        owner = self.lease.owner
        self.logs: NodeLogs | SharedLogs = NodeLogs(home) if settings.is_alone else SharedLogs(self.database, owner)
        folders = FolderFiles(upload_folder, artifact_folder)
        self.files = folders if settings.is_alone else SharedFiles(folders, self.database, clock)
        stores = stores_of(settings, buckets_on_node=buckets_on_node(self.clouds["local"]), clock=worlds)
        default_store = settings.default_store or next(iter(stores), "s3")
        storage = StorageService(
            stores,
            self.database,
            self.lease.owner,
            self._archive,
            clock,
            default_store=default_store,
            account=account_of(stores),
        )
        self.reconciler = Reconciler(
            database=self.database,
            clock=clock,
            market=market,
            limits=paced(settings.limits, pace),
            intending=Intending(controller),
            speed=pace.speed,
        )
        self.ownership = Ownership(self.lease, self.reconciler)
        bounds = settings.bounds
        self.pools = Pools(bounds, self._standing)
        pin = self.tls.pin if self.tls else None
        most = bounds.most_machines
        actor = Actor(self.clouds, keyring, storage, clock, endpoint, digests, market.refusals, pin, pace.speed, most)
        self.reconciler.dispatcher = Dispatcher(actor, self.pools, self._answer, self.lease.is_held)
        changes = Changes()
        attendance = Attendance(self.database, clock, self.lease.owner)
        channel = Channel(
            self.reconciler,
            self.logs,
            attendance,
            clock=clock,
            beat_s=settings.nodes.beat_s,
            silent_s=settings.limits.silent_s,
            pace=pace,
            offload=Together(self.logs, attendance),
        )
        channel.on_log = changes.grew

        def tell_nodes(key: AttemptKey, wanted: Directive) -> None:
            channel.push(key, wanted)
            changes.tell(key[0])

        self.channel = channel
        self.reconciler.on_directive = tell_nodes
        self.incoming = Incoming(self.database, self.lease.owner, self.reconciler.post)
        self.peers = None if settings.is_alone else self._peers(attendance, channel, market, changes)
        self.sweep = Sweep(self.clouds, controller, self.reconciler.owned_views, self._live, self.reconciler.look_later)
        renew, most_jobs = self.files.renew, bounds.most_jobs_per_user
        submissions = Submissions(self.database, clock, keyring, market, storage, self.lease.owner, renew, most_jobs)
        self.prober = prober_of(
            settings,
            database=self.database,
            clock=clock,
            market=market,
            submissions=submissions,
            reconciler=self.reconciler,
        )
        self.hearings = hearings(self.clouds.values(), self.database, self.reconciler)
        self.services = Services(
            settings=settings,
            clock=clock,
            keyring=keyring,
            database=self.database,
            clouds=self.clouds,
            reconciler=self.reconciler,
            channel=channel,
            changes=changes,
            incoming=self.incoming,
            logs=self.logs,
            specs=NodeSpecs(keyring, storage, digests, settings.limits, settings.nodes.power_off_after_s),
            submissions=submissions,
            intake=Intake(submissions, self.reconciler),
            files=self.files,
            counts=Counts(),
            controller_id=controller,
            started_at=clock.now(),
            pace=pace,
            prober=self.prober,
            endpoint=endpoint,
            request_stop=self._request_stop,
            has_lease=self.lease.is_held,
            why_waiting=self.pools.why_waiting,
        )
        self.retention = retention.Retention(settings.retention, self.database, clock, self.logs, self.files)
        self._server: Server | None = None
        self._ticker = BackgroundScheduler(timezone="UTC")

    async def run(self) -> None:
        """Serve until told to stop."""
        self._server = Server(application(self.services), self.tls, self.services.intake.courtesy, begin=self._begin)
        await self._server.serve(sockets=[self.socket])

    def close(self) -> None:
        """Stop ticking and deciding. What is under way in a cloud is taken up by the next daemon."""
        if self._ticker.running:
            self._ticker.shutdown(wait=False)
        for hearing in self.hearings:
            hearing.stop()
        self.reconciler.stop()
        if self.peers is not None:
            self.peers.stop()
        self.pools.shutdown()
        self.ownership.end()
        (self.settings.home / "controller.json").unlink(missing_ok=True)
        self.database.dispose()
        log.info("controller.stopped")

    def _begin(self) -> Future[None]:
        """Returns what is answered once the jobs that there are have been taken up."""
        if isinstance(self.logs, NodeLogs):
            self._repair(self.logs)
        if isinstance(self.files, SharedFiles):
            self._share(self.files, "agent")
            # What is large can wait: it is the same at every daemon, but while versions are rolled.
            self._ticker.add_job(self._share, "interval", [self.files, *self._artifacts], seconds=SHARE_S)
        if self.settings.bounds.caps_launches:
            self._look_what_stands()
            self._ticker.add_job(
                self._look_what_stands, "interval", seconds=LOOK_EVERY_S, max_instances=1, coalesce=True
            )
        self.reconciler.start(self.services.intake.courtesy)
        taken_up = self.ownership.begin()
        if self.peers is not None:
            self.peers.start(self.settings.url)
        every_s = self.lease.length_s / 3
        self._ticker.add_job(self.ownership.tick, "interval", seconds=every_s, max_instances=1, coalesce=True)
        if self.peers is not None:
            self._ticker.add_job(self._let_go, "interval", seconds=every_s, max_instances=1, coalesce=True)
        else:
            self._ticker.add_job(self._read_letters, "interval", seconds=LOOK_S, max_instances=1, coalesce=True)
        self._ticker.add_job(self.sweep.run, "interval", seconds=SWEEP_S, max_instances=1, coalesce=True)
        count = partial(self.services.counts.tick, self.database, self.clock)
        self._ticker.add_job(count)
        self._ticker.add_job(count, "interval", seconds=RENEW_S / 2, max_instances=1, coalesce=True)
        self._ticker.add_job(self.retention.tick, "interval", seconds=retention.TICK_S, max_instances=1, coalesce=True)
        keep_fresh(self._ticker, self.clouds.values())
        if self.prober is not None:
            self._ticker.add_job(self.prober.tick, "interval", seconds=TICK_S, max_instances=1, coalesce=True)
        for hearing in self.hearings:
            hearing.start()
        self._ticker.start()
        self._publish()
        log.info("controller.started", endpoint=self.services.endpoint, jobs=self.reconciler.jobs())
        return taken_up

    def _read_letters(self) -> None:
        """What was said of many jobs at once, and not recorded yet."""
        try:
            if self.incoming.look():
                with self.database.begin() as conn:
                    letters.drop_settled(conn)
        except UNAVAILABLE as error:
            log.warning("database.refused", error=str(error))

    def _look_what_stands(self) -> None:
        """What there is, for the bounds on it; what waited for room may begin."""
        try:
            self.pools.update()
        except UNAVAILABLE as error:
            log.warning("database.refused", error=str(error))

    def _standing(self, asked: Collection[AttemptKey]) -> Standing:
        with self.database.connect() as conn:
            return standing(conn, asked)

    def _let_go(self) -> None:
        """Without its lease this daemon counts as dead: others must not take for silent whom only it can hear."""
        if not self.lease.is_held():
            self.channel.hang_up()

    def _share(self, files: SharedFiles, *names: str) -> None:
        """Let the other daemons serve what this one has its nodes fetch."""
        for artifact in (self._artifacts[name] for name in names):
            files.share(artifact.digest, artifact.path)

    def _keyring(self) -> Keyring:
        is_alone = self.settings.is_alone
        others_live = not is_alone and self.lease.others() > 0
        with self.database.begin() as conn:
            return keyring_of(self.settings.keyring, conn, is_alone=is_alone, others_live=others_live)

    def _peers(self, attendance: Attendance, channel: Channel, market: Market, changes: Changes) -> Peers:
        from perdure.controller.peers import Peers  # it needs the extra [postgres]

        return Peers(
            database=self.database,
            clock=self.clock,
            attendance=attendance,
            reconciler=self.reconciler,
            channel=channel,
            ownership=self.ownership,
            market=market,
            changes=changes,
            incoming=self.incoming,
            has_written=self.logs.has_written if isinstance(self.logs, SharedLogs) else lambda _process_id: False,
        )

    def _archive(self, digest: str) -> Path:
        """Raises FileNotFoundError."""
        found = self.files.path(digest)
        if found is None:
            raise FileNotFoundError(f"the upload {digest} is missing")
        return found

    def _publish(self) -> None:
        """Say where to find this daemon, once it answers."""
        path = self.settings.home / "controller.json"
        told: dict[str, object] = {
            "endpoint": self.address,
            "pid": os.getpid(),
            "version": version("perdure"),
        }
        if self.tls is not None:
            told["fingerprint"] = self.tls.fingerprint
        temporary = path.with_suffix(".tmp")
        temporary.touch(mode=0o600)
        temporary.write_text(json.dumps(told) + "\n")
        temporary.replace(path)
        crashpoints.reach("endpoint.published")

    def _request_stop(self) -> None:
        if self._server is not None:
            self._server.should_exit = True

    def _answer(self, answer: Performed | Seen) -> None:
        """What a cloud said goes to the reconciler, after what a node that is gone has left to say."""
        if isinstance(answer, Seen):
            seen = answer.event
            for rank in (rank for rank, fate in seen.fates.items() if fate is not None):
                self.channel.release((answer.job_id, seen.task, seen.generation), rank)
        self.reconciler.answer(answer)

    def _live(self, keys: Collection[AttemptKey]) -> Collection[AttemptKey]:
        with self.database.connect() as conn:
            return stored_jobs.live_among(conn, keys)

    def _repair(self, logs: NodeLogs) -> None:
        with self.database.connect() as conn:
            for key in stored_jobs.live_attempts(conn):
                logs.repair(key)


@contextlib.contextmanager
def only_one(home: Path) -> Iterator[None]:
    """Hold the home for this process: two daemons on one SQLite database would each think themselves alone."""
    with (home / "controller.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise CannotStart(
                f"a controller already runs on {home}; see `perdure controller status`, or give another --home"
            ) from error
        yield
