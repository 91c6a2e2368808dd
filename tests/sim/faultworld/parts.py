"""What a simulated controller is made of: the real parts, wired as `Daemon` and `Peers` wire them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from faultworld.clouds import MortalCloud
from faultworld.threads import Awaited, Event, Lock, Pool, Single
from perdure.controller.acting import Actor
from perdure.controller.attendance import Attendance
from perdure.controller.changes import Changes
from perdure.controller.channel import Channel
from perdure.controller.clock import REAL_TIME
from perdure.controller.clouds.base import Fault
from perdure.controller.dispatch import Dispatcher, Seen
from perdure.controller.files import FolderFiles
from perdure.controller.intake import Intake
from perdure.controller.intending import Intending
from perdure.controller.keyring import AttemptKey, Keyring
from perdure.controller.leases import Lease
from perdure.controller.mail import Incoming
from perdure.controller.market import Market
from perdure.controller.nodelogs import NodeLogs
from perdure.controller.nodespec import NodeSpecs
from perdure.controller.ownership import Ownership
from perdure.controller.peers import Peers
from perdure.controller.reconcile import Reconciler
from perdure.controller.services import Services
from perdure.controller.settings import Settings
from perdure.controller.sharedlogs import SharedLogs
from perdure.controller.storage.service import StorageService
from perdure.controller.store import jobs as stored_jobs
from perdure.controller.store.counts import Counts
from perdure.controller.store.jobs import Claim
from perdure.controller.submission import Submissions
from perdure.controller.sweep import Sweep
from perdure.recovery.directive import Directive
from perdure.recovery.job import JobView, Limits
from perdure.recovery.market import FaultKind
from perdure.recovery.reasons import Reason

if TYPE_CHECKING:
    from faultworld.process import Process
    from faultworld.world import World

CONTROLLER = "sim"
LIMITS = Limits(boot_timeout_s=90.0, silent_s=60.0, drain_s=15.0, helpless_s=60.0)
KEYRING = Keyring(b"k" * 32, "user")
DIGESTS = {"agent": "0" * 64}
LEASE_S = 15.0
_BEAT_S = 5.0
# Seconds until a call of a cloud is answered: workers' calls, and the sweep's.
_ANSWERS_WITHIN_S, _LISTS_WITHIN_S = 0.2, 2.0


class BucketStore:
    """Buckets in memory, which can not be reached for a while."""

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
        self.world.judge.bucket_removed(bucket)

    def _enter(self) -> None:
        if self.world.scheduler.now() < self.broken_until:
            raise OSError("the store does not answer")


class MortalStore:
    """The `Store` as one process reaches it: the process may die or freeze before a call, and before its answer."""

    name = "local"

    def __init__(self, process: Process) -> None:
        self._process, self._buckets = process, process.world.buckets

    def ensure(self, bucket: str) -> bool:
        return bool(self._call(self._buckets.ensure, bucket))

    def exists(self, bucket: str) -> bool:
        return bool(self._call(self._buckets.exists, bucket))

    def put(self, bucket: str, key: str, body: IO[bytes]) -> None:
        self._call(self._buckets.put, bucket, key, body)

    def remove(self, bucket: str) -> None:
        self._call(self._buckets.remove, bucket)

    def rclone_remote(self, bucket: str, _access: Any) -> dict[str, object]:
        return {"type": "local", "root": "/"}

    def classify(self, error: Exception) -> Fault:
        """Only what the store itself says passes."""
        if isinstance(error, OSError):
            return Fault(FaultKind.RETRY_LATER, Reason.THROTTLED, "Broken", str(error), 15.0)
        return Fault(FaultKind.GIVE_UP, Reason.BAD_REQUEST, type(error).__name__, str(error))

    def _call(self, method: Callable[..., Any], *args: Any) -> Any:
        self._process.point(f"before {method.__name__}")
        found = method(*args)
        self._process.point(f"after {method.__name__}")
        return found


# Turns are recorded one by one, by twos and threes, or all that wait.
_MOST_AT_ONCE = (1, 3, 64)


class _Reconciler(Reconciler):
    """Whoever waits for it waits on virtual time."""

    process: Process

    def adopt(self, claims: Sequence[Claim], views: Mapping[int, JobView] | None = None) -> Any:
        return Awaited(self.process.threads, super().adopt(claims, views))

    def recheck(self) -> Any:
        return Awaited(self.process.threads, super().recheck())


class Parts:
    """`peers` is None for a controller that is alone by construction. Raises what the database raises."""

    def __init__(self, process: Process, home: Path, *, alone: bool) -> None:
        self._process = process
        world, clock, database = process.world, process.clock, process.database
        monotonic = world.scheduler.now
        self.lease = Lease(database, clock, alone=alone, length_s=LEASE_S, monotonic=monotonic)
        self.lease.owner = f"owner-{process.number}"
        self.lease.begin("http://sim")
        clouds: Any = {name: MortalCloud(c, process, _ANSWERS_WITHIN_S) for name, c in world.clouds.items()}
        slow: Any = {name: MortalCloud(c, process, _LISTS_WITHIN_S) for name, c in world.clouds.items()}
        market = Market(clouds, clock)
        with database.connect() as conn:
            market.load(conn)
        storage = StorageService({"local": MortalStore(process)}, database, self.lease.owner, home.joinpath, clock)
        self.logs: NodeLogs | SharedLogs = NodeLogs(home) if alone else SharedLogs(database)
        self.reconciler = _Reconciler(
            database=database, clock=clock, market=market, limits=LIMITS, intending=Intending(CONTROLLER)
        )
        self.reconciler.most_at_once = _MOST_AT_ONCE[(world.scenario.seed + process.number) % len(_MOST_AT_ONCE)]
        self.reconciler.process = process
        self.ownership = Ownership(self.lease, self.reconciler)
        self.ownership._one_at_a_time = Lock(process.threads)  # type: ignore[assignment]
        actor = Actor(clouds, KEYRING, storage, clock, "http://sim", DIGESTS, market.refusals)
        pool = Pool(process, 0.3)
        self.reconciler.dispatcher = Dispatcher(actor, lambda _name: pool, self._answer, self.lease.is_held)
        attendance = Attendance(database, clock, self.lease.owner)
        self.channel = Channel(
            self.reconciler, self.logs, attendance, clock=clock, beat_s=_BEAT_S, silent_s=LIMITS.silent_s,
            monotonic=monotonic,
        )  # fmt: skip
        self.reconciler.on_directive = self._tell_nodes
        changes = Changes()
        self.incoming = Incoming(database, self.lease.owner, self.reconciler.post, monotonic)
        self.peers = None if alone else self._peers(attendance, market, changes)
        self.sweep = Sweep(slow, CONTROLLER, self.reconciler.owned_views, self._live, self.reconciler.look_later)
        self.specs = NodeSpecs(KEYRING, storage, DIGESTS, LIMITS)
        submissions = Submissions(
            database, clock, KEYRING, market, storage, self.lease.owner, lambda _digest, _now: True
        )
        self.services = Services(
            settings=Settings(home, limits=LIMITS), clock=clock, keyring=KEYRING, database=database, clouds=clouds,
            reconciler=self.reconciler, channel=self.channel, changes=changes, incoming=self.incoming, logs=self.logs,
            specs=self.specs,
            files=FolderFiles(home, home), controller_id=CONTROLLER, started_at=clock.now(),
            submissions=submissions, intake=Intake(submissions, self.reconciler),
            endpoint="http://sim", request_stop=lambda: None, has_lease=self.lease.is_held,
            pace=REAL_TIME, prober=None, counts=Counts(),
        )  # fmt: skip

    def repair(self) -> None:
        """As `Daemon._repair`."""
        if isinstance(self.logs, NodeLogs):
            with self._process.database.connect() as conn:
                live = stored_jobs.live_attempts(conn)
            for key in live:
                self.logs.repair(key)

    def _peers(self, attendance: Attendance, market: Market, changes: Changes) -> Peers:
        process = self._process
        peers = Peers(
            database=process.database, clock=process.clock, attendance=attendance, reconciler=self.reconciler,
            channel=self.channel, ownership=self.ownership, market=market, changes=changes, incoming=self.incoming,
            monotonic=process.world.scheduler.now,
        )  # fmt: skip
        stands_for: Any = peers._outgoing
        stands_for._thread, stands_for._ended = Single(process, 0.02), Event(process.threads)
        stands_for = peers._watch
        stands_for._ended, stands_for._poked = Event(process.threads), Event(process.threads)
        return peers

    def _answer(self, answer: Any) -> None:
        self._process.soon(0.2, self._answered, answer)

    def _answered(self, answer: Any) -> None:
        """As `Daemon._answer`."""
        if isinstance(answer, Seen):
            seen = answer.event
            for rank in (rank for rank, fate in seen.fates.items() if fate is not None):
                self.channel.release((answer.job_id, seen.task, seen.generation), rank)
        self.reconciler.answer(answer)

    def _tell_nodes(self, key: AttemptKey, wanted: Directive) -> None:
        self.channel.push(key, wanted)

    def _live(self, keys: Collection[AttemptKey]) -> Collection[AttemptKey]:
        with self._process.database.connect() as conn:
            return stored_jobs.live_among(conn, keys)
