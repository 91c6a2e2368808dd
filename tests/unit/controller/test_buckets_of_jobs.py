"""Whose a job's bucket is when somebody comes in between: its next owner, a stranger, a database that is away."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import IO, Any

import pytest
from sqlalchemy import Connection, text, update
from sqlalchemy.exc import OperationalError

from perdure.controller.acting import Actor, Later, Outcome
from perdure.controller.clouds.base import Fault
from perdure.controller.dispatch import Dispatcher, Performed, Seen
from perdure.controller.intending import Intending
from perdure.controller.keyring import Keyring
from perdure.controller.machines import Machines
from perdure.controller.storage.mounts import BucketWish
from perdure.controller.storage.service import StorageService
from perdure.controller.store import buckets, jobs
from perdure.controller.store.intents import Intent, IntentKind, close
from perdure.controller.store.jobs import LeaseLost, Task
from perdure.controller.store.writes import Writes
from perdure.recovery.market import FaultKind
from perdure.recovery.reasons import Reason

BUCKET = "scratch"


class Shelf:
    """A `Store` in memory. `meanwhile` happens once, just before a bucket is made, or just before one is removed."""

    name = "local"

    def __init__(self) -> None:
        self.there: set[str] = set()
        self.meanwhile: Callable[[], object] = lambda: None

    def ensure(self, bucket: str) -> bool:
        self._let_happen()
        is_new = bucket not in self.there
        self.there.add(bucket)
        return is_new

    def exists(self, bucket: str) -> bool:
        return bucket in self.there

    def put(self, bucket: str, key: str, body: IO[bytes]) -> None:
        raise AssertionError("nothing is uploaded here")

    def remove(self, bucket: str) -> None:
        self._let_happen()
        self.there.discard(bucket)

    def _let_happen(self) -> None:
        meanwhile, self.meanwhile = self.meanwhile, lambda: None
        meanwhile()

    def rclone_remote(self, bucket: str) -> dict[str, object]:
        return {"type": "local", "root": "/"}

    def classify(self, error: Exception) -> Fault:
        return Fault(FaultKind.GIVE_UP, Reason.BAD_REQUEST, type(error).__name__, str(error))


class Scene:
    """A job with a bucket, and the controllers that have it in hand one after another. `beside`: another job's scene,
    which has a bucket of the same name."""

    def __init__(self, world: Any, *, beside: Scene | None = None, persistent: bool = False) -> None:
        self.world, self.shelf = world, beside.shelf if beside else Shelf()
        self.job = world.submit()
        spec = {"buckets": [BucketWish("local", BUCKET, create=True, persistent=persistent).to_json()]}
        self._write(spec=spec)

    def controller(self, owner: str) -> StorageService:
        return StorageService({"local": self.shelf}, self.world.database, owner, Path, self.world.clock)

    def intent(self, kind: IntentKind = IntentKind.PREPARE_STORAGE) -> Intent:
        return Intent(1, self.job, 0, 0, kind, "token", {}, self.world.clock.now())

    def goes_to(self, owner: str) -> StorageService:
        with self.world.database.begin() as conn:
            jobs.claim(conn, owner, self.world.clock.now(), limit=10, take_all=True)
        return self.controller(owner)

    def ends(self, conn: Connection | None = None) -> None:
        self._write(conn, ended_at=self.world.clock.now())

    def is_waited_for(self) -> bool:
        """Whether a transaction waits for another's end."""
        with self.world.database.connect() as conn:
            return bool(conn.execute(text("select count(*) from pg_locks where not granted")).scalar())

    def is_prepared(self) -> bool:
        return prepared(self.controller("one").prepare(self.intent()))

    def is_settled(self) -> Intent | None:
        """It ends, and no machine of it is left. Returns the intent to remove its bucket, if there is one."""
        self.ends()
        with self.world.database.begin() as conn:
            view = jobs.load(conn, [self.job])[self.job]
            intents = Intending("test").write_down_removal(conn, view, self.world.clock.now())
        return next(iter(intents), None)

    def removes(self, intent: Intent) -> None:
        """Its bucket, or what is left of it, and says so."""
        answer = self.controller("one").remove(intent)
        assert isinstance(answer, Outcome)
        with self.world.database.begin() as conn:
            writes = Writes(conn)
            close(writes, intent.id, outcome=answer.result, error=None, now=self.world.clock.now())
            writes.flush()

    def removable(self) -> list[str]:
        with self.world.database.connect() as conn:
            return [b.bucket for b in buckets.removable(conn, self.job)]

    def _write(self, within: Connection | None = None, **columns: Any) -> None:
        with self.world.database.begin() if within is None else nullcontext(within) as conn:
            conn.execute(update(Task).where(Task.c.job_id == self.job).values(**columns))


@pytest.fixture
def scene(world: Any) -> Scene:
    return Scene(world)


def prepared(answer: Outcome | Later) -> bool:
    return isinstance(answer, Outcome) and answer.result == "ready"


def test_what_the_jobs_next_owner_made_stays_the_jobs_own(scene: Scene) -> None:
    def next_owner_makes_it() -> None:
        assert prepared(scene.goes_to("two").prepare(scene.intent()))

    scene.shelf.meanwhile = next_owner_makes_it
    with pytest.raises(LeaseLost):
        scene.controller("one").prepare(scene.intent())
    assert scene.removable() == [BUCKET]
    scene.controller("two").remove(scene.intent(IntentKind.REMOVE_STORAGE))
    assert not scene.shelf.there


def test_what_the_jobs_last_owner_makes_late_stays_the_jobs_own(scene: Scene) -> None:
    def next_owner_begins() -> None:
        two = scene.goes_to("two")
        scene.shelf.meanwhile = lambda: scene.shelf.there.add(BUCKET)  # the last owner's call arrives
        assert prepared(two.prepare(scene.intent()))

    scene.shelf.meanwhile = next_owner_begins
    with pytest.raises(LeaseLost):
        scene.controller("one").prepare(scene.intent())
    assert scene.removable() == [BUCKET]


def test_what_is_made_after_the_jobs_end_is_removed_at_once(scene: Scene) -> None:
    def all_of_it_happens() -> None:
        two = scene.goes_to("two")
        assert prepared(two.prepare(scene.intent()))
        scene.ends()
        two.remove(scene.intent(IntentKind.REMOVE_STORAGE))
        assert not scene.shelf.there

    scene.shelf.meanwhile = all_of_it_happens
    with pytest.raises(LeaseLost):
        scene.controller("one").prepare(scene.intent())
    assert not scene.shelf.there


def test_what_a_stranger_made_at_that_moment_is_left_alone(scene: Scene) -> None:
    scene.shelf.meanwhile = lambda: scene.shelf.there.add(BUCKET)
    assert prepared(scene.controller("one").prepare(scene.intent()))
    assert scene.removable() == []


def test_of_jobs_that_share_a_temporary_bucket_the_last_to_end_removes_it(scene: Scene) -> None:
    for first_ends in (True, False):
        maker, other = Scene(scene.world, beside=scene), Scene(scene.world, beside=scene)
        assert maker.is_prepared()
        assert other.is_prepared()
        earlier, later = (maker, other) if first_ends else (other, maker)
        assert earlier.is_settled() is None, "the other still works in it"
        removal = later.is_settled()
        assert removal is not None
        later.removes(removal)
        assert not scene.shelf.there
        assert not later.removable()


def test_of_two_that_end_at_the_same_moment_one_removes_it(scene: Scene) -> None:
    if scene.world.url.startswith("sqlite"):
        pytest.skip("there, transactions follow one another")
    other = Scene(scene.world, beside=scene)
    assert scene.is_prepared()
    assert other.is_prepared()
    with ThreadPoolExecutor(1) as pool:
        with scene.world.database.begin() as conn:
            scene.ends(conn)
            assert buckets.removable(conn, scene.job) == [], "nobody knows of the other's end yet"
            removal = pool.submit(other.is_settled)
            while not (removal.done() or scene.is_waited_for()):
                pass
        assert removal.result(10) is not None


def test_a_temporary_bucket_that_another_job_wants_to_persist_stays(scene: Scene) -> None:
    assert scene.is_prepared()
    other = Scene(scene.world, beside=scene, persistent=True)
    assert other.is_prepared()
    assert other.is_settled() is None
    assert scene.is_settled() is None
    assert scene.shelf.there == {BUCKET}


def test_a_job_that_comes_before_the_removal_keeps_the_bucket_and_removes_it_later(scene: Scene) -> None:
    assert scene.is_prepared()
    removal = scene.is_settled()
    assert removal is not None
    other = Scene(scene.world, beside=scene)
    assert not other.is_prepared(), "it may be under way"
    scene.removes(removal)
    assert scene.shelf.there == {BUCKET}
    assert other.is_prepared()
    last = other.is_settled()
    assert last is not None
    other.removes(last)
    assert not scene.shelf.there


def test_a_job_that_comes_during_the_removal_has_its_bucket_made_afterwards(scene: Scene) -> None:
    def is_turned_away() -> None:
        assert not other.is_prepared()

    assert scene.is_prepared()
    removal, other = scene.is_settled(), Scene(scene.world, beside=scene)
    assert removal is not None
    scene.shelf.meanwhile = is_turned_away
    scene.removes(removal)
    assert not scene.shelf.there
    assert other.is_prepared()
    assert scene.shelf.there == {BUCKET}
    last = other.is_settled()
    assert last is not None, "what it made is its own"
    other.removes(last)
    assert not scene.shelf.there


def test_another_controllers_job_gets_no_bucket_made(scene: Scene) -> None:
    with pytest.raises(LeaseLost):
        scene.controller("two").prepare(scene.intent())
    assert not scene.shelf.there


def test_a_database_that_is_away_fails_no_job(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OperationalError("insert", None, Exception("the connection is gone"))

    answers: list[Performed | Seen] = []
    clock = scene.world.clock
    actor = Actor({}, Keyring(b"k" * 32, "user"), scene.controller("one"), clock, "", {}, lambda _job: ())
    dispatcher = Dispatcher(actor, lambda _name: scene.world.inline, answers.append)
    dispatcher.take_up(scene.intent())
    with monkeypatch.context() as patch:
        patch.setattr(buckets, "record", refuse)
        dispatcher.perform(scene.intent(), Machines())
    dispatcher.perform(scene.intent(), Machines())
    first, second = (answer.result for answer in answers if isinstance(answer, Performed))
    assert isinstance(first, Later)
    assert not first.was_tried
    assert prepared(second)
