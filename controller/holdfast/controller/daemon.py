"""Puts a daemon together, runs it, and takes it apart again. Jobs go on when it ends."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import socket
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path

import structlog
import uvicorn
from apscheduler.schedulers.background import BackgroundScheduler
from sqlalchemy import Engine

from holdfast.controller import crashpoints
from holdfast.controller.acting import Actor
from holdfast.controller.api.app import create_app
from holdfast.controller.api.uploads import remove_halves
from holdfast.controller.bootstrap.artifacts import artifacts as make_artifacts
from holdfast.controller.callers import MAX_MESSAGE_BYTES, HeadInTime, allow_many
from holdfast.controller.changes import Changes
from holdfast.controller.channel import Channel
from holdfast.controller.clock import Clock, SystemClock
from holdfast.controller.clouds.registry import buckets_on_node, enabled_clouds
from holdfast.controller.dispatch import Dispatcher, Performed, Seen
from holdfast.controller.intending import Intending
from holdfast.controller.keyring import AttemptKey, Keyring
from holdfast.controller.leases import LEASE_S, Lease, remember, remembered
from holdfast.controller.logging import configure_logging
from holdfast.controller.market import Market
from holdfast.controller.nodelogs import NodeLogs
from holdfast.controller.nodespec import NodeSpecs
from holdfast.controller.reconcile import Reconciler
from holdfast.controller.services import Services
from holdfast.controller.settings import Settings, read_settings
from holdfast.controller.storage.service import StorageService, stores_of
from holdfast.controller.store import jobs as stored_jobs
from holdfast.controller.store.database import open_database
from holdfast.controller.submission import Submissions
from holdfast.controller.sweep import Sweep
from holdfast.controller.tls import tls_of
from holdfast.recovery.directive import Directive

log = structlog.get_logger(__name__)

SWEEP_S = 15.0
_THREADS_PER_CLOUD = 16


class CannotStart(Exception):
    """The daemon can not run here. The text says why and what to do."""


class Pools:
    """A bounded thread pool per cloud, made when first used."""

    def __init__(self) -> None:
        self._pools: dict[str, ThreadPoolExecutor] = {}

    def __call__(self, name: str) -> Executor:
        if name not in self._pools:
            self._pools[name] = ThreadPoolExecutor(_THREADS_PER_CLOUD, thread_name_prefix=name)
        return self._pools[name]

    def shutdown(self) -> None:
        for pool in self._pools.values():
            pool.shutdown(wait=True, cancel_futures=True)


def serve(home: Path) -> None:
    """Run a daemon on `home` until it is told to stop. Raises CannotStart or SettingsError if it can not begin."""
    try:
        crashpoints.arm(os.environ.get(crashpoints.VARIABLE, ""))
    except ValueError as error:
        raise CannotStart(str(error)) from error
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    settings = read_settings(home)
    allow_many()
    with _only_one(home):
        configure_logging(home, settings.log_level)
        daemon = Daemon(settings, SystemClock())
        try:
            asyncio.run(daemon.run())
        finally:
            daemon.close()


class Daemon:
    """One controller process: its parts, wired."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        home = settings.home
        self.settings = settings
        self.clock = clock
        self.tls = tls_of(settings.listening, host=settings.host, clock=clock)
        self.database = open_database(settings.url)
        self.socket = _listen(settings, self.database)
        endpoint = f"{'https' if self.tls else 'http'}://{settings.host}:{self.socket.getsockname()[1]}"
        with self.database.begin() as conn:
            controller = remembered(conn, "controller", uuid.uuid4().hex[:12])
        self.lease = Lease(self.database, clock, alone=settings.url.startswith("sqlite"))
        self.lease.begin(endpoint)
        keyring = Keyring.of(home)
        artifact_folder, upload_folder = home / "artifacts", home / "uploads"
        for folder in (artifact_folder, upload_folder):
            folder.mkdir(mode=0o700, exist_ok=True)
        remove_halves(upload_folder)
        digests = {name: a.digest for name, a in make_artifacts(artifact_folder).items()}
        self.clouds = enabled_clouds(settings.sections, home, clock)
        market = Market(self.clouds, clock)
        with self.database.connect() as conn:
            market.load(conn)
        stores = stores_of(settings, buckets_on_node=buckets_on_node(self.clouds["local"]))
        storage = StorageService(stores, self.database, upload_folder, clock)
        logs = NodeLogs(home)
        self.reconciler = Reconciler(
            database=self.database,
            clock=clock,
            market=market,
            limits=settings.limits,
            intending=Intending(controller),
        )
        self.pools = Pools()
        pin = self.tls.pin if self.tls else None
        actor = Actor(self.clouds, keyring, storage, clock, endpoint, digests, market.refusals, pin)
        self.reconciler.dispatcher = Dispatcher(actor, self.pools, self._answer)
        changes = Changes()
        channel = Channel(
            self.reconciler,
            logs,
            self._recorded,
            clock=clock,
            beat_s=settings.nodes.beat_s,
            silent_s=settings.limits.silent_s,
        )
        channel.on_log = changes.tell

        def tell_nodes(key: AttemptKey, wanted: Directive) -> None:
            channel.push(key, wanted)
            changes.tell(key[0])

        self.channel = channel
        self.reconciler.on_directive = tell_nodes
        self.logs = logs
        self.sweep = Sweep(
            self.clouds, controller, self.reconciler.owned_views, self._is_live, self.reconciler.look_later
        )
        self.services = Services(
            settings=settings,
            clock=clock,
            keyring=keyring,
            database=self.database,
            clouds=self.clouds,
            reconciler=self.reconciler,
            channel=channel,
            changes=changes,
            logs=logs,
            specs=NodeSpecs(keyring, storage, digests, settings.limits, settings.nodes.power_off_after_s),
            submissions=Submissions(self.database, clock, keyring, market, storage, self.lease.owner),
            uploads=upload_folder,
            artifacts=artifact_folder,
            controller_id=controller,
            started_at=clock.now(),
            endpoint=endpoint,
            request_stop=self._request_stop,
        )
        self._server: uvicorn.Server | None = None
        self._ticker = BackgroundScheduler(timezone="UTC")

    async def run(self) -> None:
        """Serve until told to stop."""
        config = uvicorn.Config(
            create_app(self.services),
            log_config=None,
            http=HeadInTime,
            ws_max_size=MAX_MESSAGE_BYTES,
            ws="websockets-sansio",
            ws_per_message_deflate=False,
            timeout_graceful_shutdown=2,
            lifespan="off",
            server_header=False,
            ssl_certfile=self.tls.cert if self.tls else None,
            ssl_keyfile=self.tls.key if self.tls else None,
        )
        self._server = _Server(config, begin=self._begin)
        await self._server.serve(sockets=[self.socket])

    def close(self) -> None:
        """Stop ticking and deciding. What is under way in a cloud is taken up by the next daemon."""
        if self._ticker.running:
            self._ticker.shutdown(wait=False)
        self.reconciler.stop()
        self.pools.shutdown()
        (self.settings.home / "controller.json").unlink(missing_ok=True)
        self.database.dispose()
        log.info("controller.stopped")

    def _begin(self) -> None:
        claims = self.lease.claim_all()
        self._repair_logs()
        self.reconciler.start()
        self.reconciler.adopt(claims).result()
        self._ticker.add_job(self.lease.renew, "interval", seconds=LEASE_S / 3)
        self._ticker.add_job(self.sweep.run, "interval", seconds=SWEEP_S, max_instances=1, coalesce=True)
        self._ticker.start()
        self._publish()
        log.info("controller.started", endpoint=self.services.endpoint, jobs=len(claims))

    def _publish(self) -> None:
        """Say where to find this daemon, once it answers."""
        path = self.settings.home / "controller.json"
        told: dict[str, object] = {
            "endpoint": self.services.endpoint,
            "pid": os.getpid(),
            "version": version("holdfast"),
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

    def _recorded(self, key: AttemptKey, rank: int) -> tuple[int, bool]:
        with self.database.connect() as conn:
            is_live = key in stored_jobs.live_attempts(conn, key[0])
            return stored_jobs.checkpoint_seq(conn, key, rank), is_live

    def _is_live(self, key: AttemptKey) -> bool:
        with self.database.connect() as conn:
            return key in stored_jobs.live_attempts(conn, key[0])

    def _repair_logs(self) -> None:
        with self.database.connect() as conn:
            for key in stored_jobs.live_attempts(conn):
                self.logs.repair(key)


class _Server(uvicorn.Server):
    """Calls `begin` before the first request is taken; until then callers wait in the socket's queue."""

    def __init__(self, config: uvicorn.Config, begin: Callable[[], None]) -> None:
        super().__init__(config)
        self._begin = begin

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await asyncio.to_thread(self._begin)
        await super().startup(sockets)


@contextlib.contextmanager
def _only_one(home: Path) -> Iterator[None]:
    """Hold the home for this process: two daemons on one SQLite database would each think themselves alone."""
    with (home / "controller.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise CannotStart(
                f"a controller already runs on {home}; see `holdfast controller status`, or give another --home"
            ) from error
        yield


def _listen(settings: Settings, database: Engine) -> socket.socket:
    """The socket to serve on. A port once chosen is kept: that is where running machines call.

    Raises CannotStart when the port is taken and machines may be calling it.
    """
    with database.begin() as conn:
        kept = int(remembered(conn, "port", str(settings.port)))
        live = bool(stored_jobs.live_attempts(conn))
    wanted = settings.port or kept
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((settings.host, wanted))
    except OSError as error:
        if settings.port or live:
            listening.close()
            why = "running machines call there" if live else "config.yaml says so (listen.port)"
            problem = f"port {wanted} of {settings.host} can not be had ({error.strerror}), and {why}"
            raise CannotStart(f"{problem}; free it and start again") from error
        listening.bind((settings.host, 0))
    listening.listen(2048)
    listening.setblocking(False)
    with database.begin() as conn:
        remember(conn, "port", str(listening.getsockname()[1]))
    return listening
