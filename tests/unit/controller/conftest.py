"""A controller core in one thread: real store, reconciler and actor on a manual clock, over the fake cloud."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine
from sqlmodel import SQLModel

from perdure.controller.acting import Actor, Later, Outcome
from perdure.controller.clock import ManualClock
from perdure.controller.clouds.fake import FakeCloud
from perdure.controller.dispatch import Dispatcher
from perdure.controller.intending import Intending
from perdure.controller.keyring import Keyring
from perdure.controller.market import Market
from perdure.controller.reconcile import Reconciler
from perdure.controller.store import jobs, queries
from perdure.controller.store.database import open_database
from perdure.controller.store.intents import Intent
from perdure.controller.store.jobs import Claim, NewTask
from perdure.controller.store.writes import Writes
from perdure.controller.turns import Turn
from perdure.recovery import events
from perdure.recovery.directive import Directive, Want
from perdure.recovery.job import JobView, Limits, TaskView
from perdure.recovery.needs import Amount, Need
from perdure.recovery.statuses import NodePhase


class Inline(Executor):
    """Runs what is submitted at once, in the caller's thread."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(fn(*args, **kwargs))
        return done


class NoBuckets:
    def prepare(self, intent: Intent) -> Outcome | Later:
        return Outcome("ready", events.StorageReady(intent.task))

    def remove(self, intent: Intent) -> Outcome | Later:
        return Outcome("removed", events.Tick())


@dataclass
class World:
    """`told` keeps every directive that was pushed to nodes, in order."""

    url: str
    clock: ManualClock = field(default_factory=ManualClock)
    limits: Limits = field(default_factory=Limits)
    told: list[tuple[tuple[int, int, int], Want]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.cloud = FakeCloud(self.clock)
        self.inline = Inline()
        self.database: Engine = open_database(self.url)
        self.owner = "one"
        self.reconciler = self.controller(self.owner)

    def controller(self, owner: str) -> Reconciler:
        """A controller process on this world's database and cloud, with nothing in its memory."""
        clouds = {"fake": self.cloud}
        market = Market(clouds, self.clock)
        with self.database.connect() as conn:
            market.load(conn)
        keyring = Keyring(b"k" * 32, "user")
        made = Reconciler(
            database=self.database, clock=self.clock, market=market, limits=self.limits, intending=Intending("test")
        )
        actor = Actor(
            clouds, keyring, NoBuckets(), self.clock, "http://127.0.0.1:1", {"agent": "0" * 64}, market.refusals
        )
        made.dispatcher = Dispatcher(actor, lambda _name: self.inline, made.answer)
        made.on_directive = self._tell
        return made

    def _tell(self, key: tuple[int, int, int], wanted: Directive) -> None:
        self.told.append((key, wanted.want))

    def submit(self, *, nodes: int = 1, tasks: int = 1, **changes: Any) -> int:
        now = self.clock.now()
        need = Need(cpus=Amount(4))
        views = [
            TaskView(i, (need,), num_nodes=nodes, wake_at=now if i == 0 else None, **changes) for i in range(tasks)
        ]
        new = [NewTask(v, f"t{v.index}", {}, {"resources": "cpus=4"}, None) for v in views]
        with self.database.begin() as conn:
            columns = {"name": "job", "user": "", "priority": 0, "num_tasks": tasks, "submitted_at": now}
            (job_id,) = jobs.reserve(conn, columns | {"key": None, "owner": self.owner})
            writes = Writes(conn)
            jobs.add_tasks(writes, new, {job_id: [f"sky-managed-x_job_{job_id}-{i}" for i in range(tasks)]})
            writes.flush()
        self.reconciler.adopt([Claim(job_id, self.owner, 1)])
        self.settle()
        return job_id

    def settle(self) -> None:
        """Take everything that is queued or due."""
        while self.reconciler.turn(block=False):
            pass

    def pass_time(self, seconds: float, step_s: float = 1.0) -> None:
        end = self.clock.now() + seconds
        while self.clock.now() < end:
            self.clock.advance(min(step_s, end - self.clock.now()))
            self.settle()

    def tell(self, job_id: int, event: events.Event) -> None:
        self.reconciler.tell(job_id, event)
        self.settle()

    def report(self, job_id: int, phase: NodePhase, *, generation: int = 1, rank: int = 0, **kw: Any) -> None:
        self.tell(job_id, events.NodeReported(0, generation, rank, phase, **kw))

    def run(self, job_id: int, generation: int = 1, nodes: int = 1) -> None:
        for phase in (NodePhase.BOOTED, NodePhase.READY, NodePhase.RUNNING):
            for rank in range(nodes):
                self.report(job_id, phase, generation=generation, rank=rank)

    def restart(self, owner: str = "two") -> None:
        """The controller dies, and another takes over its jobs."""
        self.owner = owner
        with self.database.begin() as conn:
            claims = jobs.claim(conn, owner, self.clock.now(), limit=1000, take_all=True)
        self.reconciler = self.controller(owner)
        self.reconciler.adopt(claims)
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

    def living(self) -> list[str]:
        return [i.id for i in self.cloud.list_owned("test")]

    def post(self, turn: Turn) -> None:
        self.reconciler.post(turn)
        self.settle()


@pytest.fixture(scope="session")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new SQLite database: copied, it costs a test less than half a second of migrations."""
    path = tmp_path_factory.mktemp("migrated") / "new.db"
    open_database(f"sqlite:///{path}").dispose()
    return path


@pytest.fixture(scope="session")
def migrated_postgres(postgres: Any) -> str:
    """The URL of a PostgreSQL database, likewise; it is emptied for each test, which is quicker than a copy."""
    url: str = postgres.new_database()
    open_database(url).dispose()
    return url


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A new database with every migration applied, on either of the two."""
    if request.param == "sqlite":
        shutil.copyfile(request.getfixturevalue("migrated"), tmp_path / "test.db")
        return f"sqlite:///{tmp_path / 'test.db'}"
    url = str(request.getfixturevalue("migrated_postgres"))
    tables = ", ".join(f'"{name}"' for name in SQLModel.metadata.tables)
    with psycopg.connect(url, autocommit=True) as conn:
        conn.execute(f"TRUNCATE {tables} RESTART IDENTITY")
    return url


@pytest.fixture
def database(database_url: str) -> Iterator[Engine]:
    """It, opened."""
    engine = open_database(database_url)
    yield engine
    engine.dispose()


@pytest.fixture
def world(database_url: str) -> Iterator[World]:
    world = World(database_url)
    yield world
    world.database.dispose()
