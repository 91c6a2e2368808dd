"""The owner of a job's bucket when others interfere: the job's next controller, a stranger, a failing database."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import IO, Any

import pytest
from sqlalchemy import Connection, text, update
from sqlalchemy.exc import OperationalError

from perdure.controller.buckets.mounts import BucketRequest
from perdure.controller.buckets.service import StorageService
from perdure.controller.buckets.stores import Access
from perdure.controller.clouds.base.protocol import Fault
from perdure.controller.execute.call_on_thread import CallOnThread
from perdure.controller.execute.call_types import DescribeResult, IntentOutcome, IntentResult, PerformIntent, RetryLater
from perdure.controller.execute.cloud_actions import CloudActions
from perdure.controller.execute.machine_ids import MachineIds
from perdure.controller.reconcile.intent_builder import IntentBuilder
from perdure.controller.runtime.security.keyring import Keyring
from perdure.controller.store.engine.batch_writer import WriteBatch
from perdure.controller.store.records import buckets, job_claims, jobs
from perdure.controller.store.records.intents import Intent, IntentKind, complete
from perdure.controller.store.records.job_claims import LeaseLost
from perdure.controller.store.records.jobs import Task
from perdure.recovery.market.unavailable import FaultKind
from perdure.recovery.reasons import Reason
from support.helpers.timing import scaled
from unit.controller.world import World

BUCKET = "scratch"


class MemoryStore:
    """A `Store` in memory. `meanwhile` is called once, just before a bucket is created or removed."""

    name = "local"

    def __init__(self) -> None:
        self.buckets: set[str] = set()
        self.meanwhile: Callable[[], object] = lambda: None

    def ensure(self, bucket: str) -> bool:
        self._call_meanwhile()
        is_new = bucket not in self.buckets
        self.buckets.add(bucket)
        return is_new

    def exists(self, bucket: str) -> bool:
        return bucket in self.buckets

    def put(self, bucket: str, key: str, body: IO[bytes]) -> None:
        raise AssertionError("nothing is uploaded here")

    def remove(self, bucket: str) -> None:
        self._call_meanwhile()
        self.buckets.discard(bucket)

    def _call_meanwhile(self) -> None:
        meanwhile, self.meanwhile = self.meanwhile, lambda: None
        meanwhile()

    def rclone_remote(self, bucket: str, access: Access, /) -> dict[str, object]:
        return {"type": "local", "root": "/"}

    def classify(self, error: Exception) -> Fault:
        return Fault(FaultKind.GIVE_UP, Reason.BAD_REQUEST, type(error).__name__, str(error))


class Scene:
    """A job with a bucket, and its successive controllers. `beside`: another job's scene with the same bucket."""

    def __init__(self, world: World, *, beside: Scene | None = None, persistent: bool = False) -> None:
        self.world = world
        self.store: MemoryStore = beside.store if beside else MemoryStore()
        self.job = world.submit()
        spec = {"buckets": [BucketRequest("local", BUCKET, create=True, persistent=persistent).to_json()]}
        self._write(spec=spec)

    def controller(self, owner: str) -> StorageService:
        return StorageService({"local": self.store}, self.world.database, owner, Path, self.world.clock)

    def intent(self, kind: IntentKind = IntentKind.PREPARE_STORAGE) -> Intent:
        return Intent(1, self.job, 0, 0, kind, "token", {}, self.world.clock.now())

    def hand_over_to(self, owner: str) -> StorageService:
        with self.world.database.begin() as conn:
            job_claims.claim(conn, owner, self.world.clock.now(), limit=10, take_all=True)
        return self.controller(owner)

    def end(self, conn: Connection | None = None) -> None:
        self._write(conn, ended_at=self.world.clock.now())

    def has_waiting_transaction(self) -> bool:
        """Whether a transaction waits for another."""
        with self.world.database.connect() as conn:
            return bool(conn.execute(text("select count(*) from pg_locks where not granted")).scalar())

    def prepare(self) -> bool:
        return is_ready(self.controller("one").prepare(self.intent()))

    def finalize(self) -> Intent | None:
        """End the job, without machines left. Returns the intent to remove its bucket, if there is one."""
        self.end()
        with self.world.database.begin() as conn:
            view = jobs.load(conn, [self.job])[self.job]
            intents = IntentBuilder("test").record_removal(conn, view, self.world.clock.now())
        return next(iter(intents), None)

    def remove(self, intent: Intent) -> None:
        """Perform the removal and record its result."""
        outcome = self.controller("one").remove(intent)
        assert isinstance(outcome, IntentOutcome)
        with self.world.database.begin() as conn:
            writes = WriteBatch(conn)
            complete(writes, intent.id, outcome=outcome.result, error=None, now=self.world.clock.now())
            writes.flush()

    def removable(self) -> list[str]:
        with self.world.database.connect() as conn:
            return [b.bucket for b in buckets.removable(conn, self.job)]

    def _write(self, within: Connection | None = None, **columns: Any) -> None:
        with self.world.database.begin() if within is None else nullcontext(within) as conn:
            conn.execute(update(Task).where(Task.c.job_id == self.job).values(**columns))


@pytest.fixture
def scene(world: World) -> Scene:
    return Scene(world)


def is_ready(outcome: IntentOutcome | RetryLater) -> bool:
    return isinstance(outcome, IntentOutcome) and outcome.result == "ready"


def test_prepare__bucket_created_by_next_controller_belongs_to_job(scene: Scene) -> None:
    def next_controller_creates_it() -> None:
        assert is_ready(scene.hand_over_to("two").prepare(scene.intent()))

    scene.store.meanwhile = next_controller_creates_it
    with pytest.raises(LeaseLost):
        scene.controller("one").prepare(scene.intent())
    assert scene.removable() == [BUCKET]
    scene.controller("two").remove(scene.intent(IntentKind.REMOVE_STORAGE))
    assert not scene.store.buckets


def test_prepare__bucket_created_late_by_last_controller_belongs_to_job(scene: Scene) -> None:
    def next_controller_starts() -> None:
        two = scene.hand_over_to("two")
        scene.store.meanwhile = lambda: scene.store.buckets.add(BUCKET)  # the last controller's call arrives
        assert is_ready(two.prepare(scene.intent()))

    scene.store.meanwhile = next_controller_starts
    with pytest.raises(LeaseLost):
        scene.controller("one").prepare(scene.intent())
    assert scene.removable() == [BUCKET]


def test_prepare__bucket_created_after_the_end_is_removed(scene: Scene) -> None:
    def job_runs_and_ends() -> None:
        two = scene.hand_over_to("two")
        assert is_ready(two.prepare(scene.intent()))
        scene.end()
        two.remove(scene.intent(IntentKind.REMOVE_STORAGE))
        assert not scene.store.buckets

    scene.store.meanwhile = job_runs_and_ends
    with pytest.raises(LeaseLost):
        scene.controller("one").prepare(scene.intent())
    assert not scene.store.buckets


def test_prepare__bucket_created_by_a_stranger_is_not_removable(scene: Scene) -> None:
    scene.store.meanwhile = lambda: scene.store.buckets.add(BUCKET)
    assert is_ready(scene.controller("one").prepare(scene.intent()))
    assert scene.removable() == []


def test_remove__last_of_two_jobs_removes_shared_bucket(scene: Scene) -> None:
    for first_ends in (True, False):
        creator, other = Scene(scene.world, beside=scene), Scene(scene.world, beside=scene)
        assert creator.prepare()
        assert other.prepare()
        earlier, later = (creator, other) if first_ends else (other, creator)
        assert earlier.finalize() is None, "the other job still uses it"
        removal = later.finalize()
        assert removal is not None
        later.remove(removal)
        assert not scene.store.buckets
        assert not later.removable()


def test_remove__one_of_two_jobs_that_end_together_removes_bucket(scene: Scene) -> None:
    if scene.world.url.startswith("sqlite"):
        pytest.skip("SQLite serializes transactions")
    other = Scene(scene.world, beside=scene)
    assert scene.prepare()
    assert other.prepare()
    with ThreadPoolExecutor(1) as pool:
        with scene.world.database.begin() as conn:
            scene.end(conn)
            assert buckets.removable(conn, scene.job) == [], "the other end is not committed yet"
            removal = pool.submit(other.finalize)
            while not (removal.done() or scene.has_waiting_transaction()):
                pass
        assert removal.result(scaled(10)) is not None


def test_remove__bucket_persistent_for_another_job_stays(scene: Scene) -> None:
    assert scene.prepare()
    other = Scene(scene.world, beside=scene, persistent=True)
    assert other.prepare()
    assert other.finalize() is None
    assert scene.finalize() is None
    assert scene.store.buckets == {BUCKET}


def test_remove__skips_bucket_that_a_new_job_uses(scene: Scene) -> None:
    assert scene.prepare()
    removal = scene.finalize()
    assert removal is not None
    other = Scene(scene.world, beside=scene)
    assert not other.prepare(), "the removal may be running"
    scene.remove(removal)
    assert scene.store.buckets == {BUCKET}
    assert other.prepare()
    last = other.finalize()
    assert last is not None
    other.remove(last)
    assert not scene.store.buckets


def test_prepare__waits_for_removal_and_creates_bucket_again(scene: Scene) -> None:
    def is_deferred() -> None:
        assert not other.prepare()

    assert scene.prepare()
    removal, other = scene.finalize(), Scene(scene.world, beside=scene)
    assert removal is not None
    scene.store.meanwhile = is_deferred
    scene.remove(removal)
    assert not scene.store.buckets
    assert other.prepare()
    assert scene.store.buckets == {BUCKET}
    last = other.finalize()
    assert last is not None, "the job owns what it created"
    other.remove(last)
    assert not scene.store.buckets


def test_prepare__rejects_job_of_another_controller(scene: Scene) -> None:
    with pytest.raises(LeaseLost):
        scene.controller("two").prepare(scene.intent())
    assert not scene.store.buckets


def test_prepare__database_outage_is_retried(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OperationalError("insert", None, Exception("the connection is gone"))

    results: list[IntentResult | DescribeResult] = []
    clock = scene.world.clock
    actor = CloudActions({}, Keyring(b"k" * 32, "user"), scene.controller("one"), clock, "", {}, lambda _job: ())
    run = CallOnThread(actor, results.append)
    call = PerformIntent(scene.intent(), MachineIds(), 0)
    with monkeypatch.context() as patch:
        patch.setattr(buckets, "record", fail)
        run(call)
    run(call)
    first, second = (result.result for result in results if isinstance(result, IntentResult))
    assert isinstance(first, RetryLater)
    assert not first.attempted
    assert is_ready(second)
