"""One controller process: the real parts, wired as `Daemon` wires them, on virtual time, able to die anywhere."""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from sqlalchemy.exc import DBAPIError

from faultworld.clouds import MortalCloud, StormCloud
from faultworld.database import MortalDatabase
from faultworld.loop import VirtualLoop
from faultworld.network import Link
from faultworld.timing import SkewedClock
from holdfast.controller.acting import Actor
from holdfast.controller.api.auth import admit
from holdfast.controller.attendance import Attendance
from holdfast.controller.changes import Changes
from holdfast.controller.channel import Channel
from holdfast.controller.clouds.base import Fault
from holdfast.controller.dispatch import Dispatcher, Seen
from holdfast.controller.files import FolderFiles
from holdfast.controller.intending import Intending
from holdfast.controller.keyring import AttemptKey, Keyring
from holdfast.controller.leases import LEASE_S, Lease
from holdfast.controller.market import Market
from holdfast.controller.nodelogs import NodeLogs
from holdfast.controller.nodespec import NodeSpecs
from holdfast.controller.reconcile import Reconciler
from holdfast.controller.services import Services
from holdfast.controller.settings import Settings
from holdfast.controller.storage.service import StorageService
from holdfast.controller.store import jobs as stored_jobs
from holdfast.controller.submission import Submissions
from holdfast.controller.sweep import Sweep
from holdfast.recovery.directive import Directive
from holdfast.recovery.job import Limits
from holdfast.recovery.market import FaultKind
from holdfast.recovery.reasons import Reason

if TYPE_CHECKING:
    from faultworld.nodes import Node
    from faultworld.world import World

CONTROLLER = "sim"
LIMITS = Limits(boot_timeout_s=90.0, silent_s=60.0, drain_s=15.0, helpless_s=60.0)
SWEEP_S = 15.0
MOST_TURNS = 2000  # at one moment: far above any real burst
KEYRING = Keyring(b"k" * 32, "user")
DIGESTS = {"agent": "0" * 64}


# To a node's call: the spec, if it was asked for, and the connection; without a connection, a 401.
Answer = tuple[dict[str, Any] | None, Link | None]


class Killed(BaseException):
    """The process is dead. Not an Exception: no code of the controller's may take it for one."""


class _Threads(Executor):
    """What stands for a cloud's thread pool: each call begins a little later."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self._process.soon(0.3, fn, *args)
        return Future()


class _SlowCloud(MortalCloud):
    """A cloud whose answer is waited for, while everything else goes on: as the sweep's thread does."""

    def __init__(self, cloud: StormCloud, process: Process) -> None:
        super().__init__(cloud, process.point)
        self._process = process

    def _call(self, method: Callable[..., Any], *args: Any) -> Any:
        found = super()._call(method, *args)
        scheduler = self._process.world.scheduler
        scheduler.run_until(scheduler.now() + self._process.rng.uniform(0.05, 2))
        self._process.point("a slow answer")
        return found


class BucketStore:
    """A `Store` in memory, which may fail for a while."""

    name = "local"

    def __init__(self, world: World) -> None:
        self.world = world
        self.there: set[str] = set()
        self.broken_until = 0.0

    def ensure(self, bucket: str) -> bool:
        self._enter()
        is_new = bucket not in self.there
        self.there.add(bucket)
        return is_new

    def exists(self, bucket: str) -> bool:
        self._enter()
        return bucket in self.there

    def put(self, bucket: str, key: str, body: IO[bytes]) -> None:
        self._enter()

    def remove(self, bucket: str) -> None:
        self._enter()
        self.there.discard(bucket)

    def rclone_remote(self, bucket: str) -> dict[str, object]:
        return {"type": "local", "root": "/"}

    def classify(self, error: Exception) -> Fault:
        return Fault(FaultKind.RETRY_LATER, Reason.THROTTLED, "Broken", str(error), 15.0)

    def _enter(self) -> None:
        if self.world.scheduler.now() < self.broken_until:
            raise OSError("the store does not answer")


class Process:
    """A controller from its start to its death. `doom`: it dies at the so-manyth point from now.

    `then`: what follows its death: whether the next one knows itself alone, and after how many seconds it starts.
    """

    def __init__(self, world: World, number: int, home: Path, *, alone: bool) -> None:
        self.world, self.number = world, number
        self.name = f"controller {number}"
        self.rng = random.Random(f"{world.scenario.seed}:process:{number}")
        self.is_alive, self.is_frozen, self.serves = True, False, False
        self.doom: int | None = None
        self.then = (True, 1.0)
        self.links: list[Link] = []
        self._asleep: list[tuple[Any, tuple[Any, ...]]] = []
        self._reconciling = False
        self._was_frozen = False
        self._alarm = float("inf")
        self._looping = False
        self._sweeping = False
        skew = self.rng.uniform(-1, 1) * world.scenario.controller_skew_s
        self.clock = SkewedClock(world.scheduler, skew)
        self.database: Any = MortalDatabase(self.point, world.database_trouble, self._committed)
        self.alone = alone
        self.lease = Lease(self.database, self.clock, alone=alone)
        self.lease.owner = f"owner-{number}"
        self.loop = VirtualLoop(
            now=world.scheduler.now, at=self.at, work=lambda do: self.soon(0.05, do), wake=self._wake_loop
        )
        self._wire(home)

    def _wire(self, home: Path) -> None:
        clouds: Any = {name: MortalCloud(c, self.point) for name, c in self.world.clouds.items()}
        market = Market(clouds, self.clock)
        self.lease.begin("http://sim")
        with self.database.connect() as conn:
            market.load(conn)
        storage = StorageService({"local": self.world.buckets}, self.database, home.joinpath, self.clock)
        self.logs = NodeLogs(home)
        self.reconciler = Reconciler(
            database=self.database, clock=self.clock, market=market, limits=LIMITS, intending=Intending(CONTROLLER)
        )
        actor = Actor(clouds, KEYRING, storage, self.clock, "http://sim", DIGESTS, market.refusals)
        self.reconciler.dispatcher = Dispatcher(actor, lambda _name: _Threads(self), self._answer)
        attendance = Attendance(self.database, self.clock, self.lease.owner)
        self.channel = Channel(
            self.reconciler, self.logs, attendance, clock=self.clock, beat_s=5.0, silent_s=LIMITS.silent_s
        )
        self.reconciler.on_directive = self._tell_nodes
        slow: Any = {name: _SlowCloud(c, self) for name, c in self.world.clouds.items()}
        self.sweep = Sweep(slow, CONTROLLER, self.reconciler.owned_views, self._is_live, self.reconciler.look_later)
        self.specs = NodeSpecs(KEYRING, storage, DIGESTS, LIMITS)
        self.services = Services(
            settings=Settings(home, limits=LIMITS), clock=self.clock, keyring=KEYRING, database=self.database,
            clouds=clouds, reconciler=self.reconciler, channel=self.channel, changes=Changes(), logs=self.logs,
            specs=self.specs, files=FolderFiles(home, home), controller_id=CONTROLLER, started_at=self.clock.now(),
            submissions=Submissions(
                self.database, self.clock, KEYRING, market, storage, self.lease.owner, lambda _digest: True
            ),
            endpoint="http://sim", request_stop=lambda: None, has_lease=self.lease.is_held,
        )  # fmt: skip

    # --- its life -----------------------------------------------------------------------------------------

    def begin(self) -> None:
        """As `Daemon._begin`: claim, repair, adopt, and only then answer."""
        try:
            claims = self.lease.claim_all()
            with self.database.connect() as conn:
                for key in stored_jobs.live_attempts(conn):
                    self.logs.repair(key)
        except DBAPIError:
            self.world.process_dies(self, "the database refused its start")
            raise Killed from None
        self.reconciler.adopt(claims)
        self._serve()
        self.soon(SWEEP_S, self._sweep)

    def _serve(self) -> None:
        """Answer once every job is in its hands: what another one left is asked for as long as that lease may run."""
        self.renew()
        try:
            claims = self.lease.claim_all() if not self.alone else []
        except DBAPIError:
            claims = []
        if claims:
            self.world.tell(self.name, f"takes over job {', '.join(str(c.job_id) for c in claims)}")
        self.reconciler.adopt(claims).add_done_callback(lambda _: self._adopted())

    def _adopted(self) -> None:
        self.serves = self.world.owns_all(self.lease.owner)
        if not self.serves:
            self.after(LEASE_S / 3, self._serve)

    def renew(self) -> None:
        """Its lease as the ticker keeps it: done when it matters, at the end of what it did in time."""
        self.world.renew_lease(self.lease.owner, self.clock.now() + LEASE_S)

    def freeze(self) -> None:
        self.renew()
        self.is_frozen = True

    def thaw(self) -> None:
        self.is_frozen = False
        self._was_frozen = True
        asleep, self._asleep = self._asleep, []
        for do, args in asleep:
            self.at(self.world.scheduler.now(), do, *args)

    def die(self) -> None:
        self.is_alive = self.serves = False
        self.world.renew_lease(self.lease.owner, self.clock.now() + self.rng.uniform(2 / 3, 1) * LEASE_S)
        for link in self.links:
            link.reset()

    def stop(self) -> None:
        """As `Daemon.close`: connections end first, what is queued is taken, then it is over."""
        self.serves = False
        for link in self.links:
            link._arrive({"type": "websocket.disconnect"})
        self.loop.run_ready()
        while self.reconciler.turn(block=False):
            pass

    def point(self, name: str) -> None:
        """A moment at which a process may die."""
        if not self.is_alive:
            raise Killed
        if self.doom is not None:
            self.doom -= 1
            if self.doom <= 0:
                self.world.process_dies(self, name)
                raise Killed

    # --- its time -----------------------------------------------------------------------------------------

    def at(self, when: float, do: Any, *args: Any) -> None:
        self.world.scheduler.at(when, self._do, do, args)

    def after(self, seconds: float, do: Any, *args: Any) -> None:
        self.at(self.world.scheduler.now() + seconds, do, *args)

    def soon(self, within_s: float, do: Any, *args: Any) -> None:
        self.after(self.rng.uniform(0, within_s), do, *args)

    def _do(self, do: Any, args: tuple[Any, ...]) -> None:
        if not self.is_alive:
            return
        if self.is_frozen:
            self._asleep.append((do, args))
            return
        try:
            do(*args)
        except Killed:
            return
        except Exception:
            self.world.judge.turn_failed(traceback.format_exc(limit=-4))

    def look_for_work(self) -> None:
        """After anything happened: have the reconcile thread run, if there is something for it."""
        if self._reconciling or not self.is_alive or self.is_frozen or self.reconciler._queue.empty():
            return
        self._reconciling = True
        self.soon(0.02, self._reconcile)

    def _reconcile(self) -> None:
        self._reconciling = False
        if not self._was_frozen:
            self.reconciler._seen_at = self.clock.now()  # its thread comes round every few seconds
        self._was_frozen = False
        turns = 0
        while self.reconciler.turn(block=False):
            turns += 1
            if turns > MOST_TURNS:
                self.world.judge.breaks("I6", "the reconciler spins: a job is woken again and again for nothing")
                raise Killed
        due = self.reconciler.next_due()
        if due is not None and due < self._alarm:
            self._alarm = due
            # A hair later: what is due by this clock may not be so after the skew was taken off and put on again.
            self.at(due - self.clock.skew_s + 1e-6, self._alarm_rings)
        self.world.judge.looks_at(self)

    def _alarm_rings(self) -> None:
        self._alarm = float("inf")
        self._reconcile()

    def _wake_loop(self) -> None:
        if not self._looping and self.is_alive:
            self._looping = True
            self.soon(0.005, self._run_loop)

    def _run_loop(self) -> None:
        self._looping = False
        self.loop.run_ready()

    def _sweep(self) -> None:
        self.after(SWEEP_S, self._sweep)
        if not self._sweeping:
            self._sweeping = True
            try:
                self.sweep.run()
            except DBAPIError:
                pass
            finally:
                self._sweeping = False

    # --- its parts' callbacks -------------------------------------------------------------------------------

    def _answer(self, answer: Any) -> None:
        self.soon(0.2, self._answered, answer)

    def _answered(self, answer: Any) -> None:
        """As `Daemon._answer`."""
        if isinstance(answer, Seen):
            seen = answer.event
            for rank in (rank for rank, fate in seen.fates.items() if fate is not None):
                self.channel.release((answer.job_id, seen.task, seen.generation), rank)
        self.reconciler.answer(answer)

    def _tell_nodes(self, key: AttemptKey, wanted: Directive) -> None:
        self.channel.push(key, wanted)

    def _is_live(self, key: AttemptKey) -> bool:
        with self.database.connect() as conn:
            return key in stored_jobs.live_attempts(conn, key[0])

    def _committed(self) -> None:
        self.world.judge.committed(self)

    def answer_call(
        self, node: Node, token: str, *, with_spec: bool
    ) -> tuple[dict[str, Any] | None, Link | None] | None:
        """A node calls. None: not now."""
        if not self.serves:
            return None
        spec = None
        try:
            admitted = admit(self.services, token, str(node.rank))
            if admitted is None or (with_spec and not admitted.is_live):
                return None, None
            if with_spec:
                with self.database.connect() as conn:
                    spec = self.specs.spec(conn, *admitted.place)
        except DBAPIError:
            return None
        if with_spec and spec is None:
            return None, None
        link = Link(node, self, random.Random(f"{node.rng.random()}"))
        self.links.append(link)
        served = self.loop.create_task(self.channel.serve(link, admitted.place))  # type: ignore[arg-type]
        served.add_done_callback(lambda _: self._served(link))
        return spec, link

    def _served(self, link: Link) -> None:
        link.reset()
        if link in self.links:
            self.links.remove(link)
