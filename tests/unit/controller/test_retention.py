"""What ended long ago is removed where that is asked for, and nothing else is."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, select, update
from sqlmodel import SQLModel

from perdure.controller import retention
from perdure.controller.clock import ManualClock
from perdure.controller.files import Files, FolderFiles, SharedFiles
from perdure.controller.nodelogs import Logs, NodeLogs
from perdure.controller.retention import UPLOAD_GRACE_S, Retention
from perdure.controller.settings import RetentionSettings
from perdure.controller.sharedlogs import SharedLogs
from perdure.controller.store.buckets import UsedBucket, record, removable
from perdure.controller.store.counts import Counts
from perdure.controller.store.jobs import Job, Task
from perdure.recovery.statuses import NodePhase

DAY_S = 86_400.0
OF_JOBS = [table for table in SQLModel.metadata.sorted_tables if "job_id" in table.c or table.name == "job"]


@pytest.fixture
def logs(world: Any, tmp_path: Path) -> Logs:
    return SharedLogs(world.database) if world.database.dialect.name == "postgresql" else NodeLogs(tmp_path)


@pytest.fixture
def files(world: Any, tmp_path: Path) -> Files:
    (tmp_path / "uploads").mkdir()
    folder = FolderFiles(tmp_path / "uploads")
    return SharedFiles(folder, world.database, world.clock) if world.database.dialect.name == "postgresql" else folder


@pytest.fixture
def keeping(world: Any, logs: Logs, files: Files) -> Callable[..., Retention]:
    """Have one round of it done, with so many days of each kind."""

    def keep(**days: float) -> Retention:
        made = Retention(RetentionSettings(**days), world.database, world.clock, logs, files)
        made.tick()
        while made._work is not None:
            made.tick()
        return made

    return keep


def end(world: Any, job: int) -> int:
    world.run(job)
    world.report(job, NodePhase.ENDED, exit_code=0)
    world.pass_time(5)
    return job


def rows(world: Any, job: int) -> dict[str, list[dict[str, Any]]]:
    """All that the database has of a job."""
    found = {}
    with world.database.connect() as conn:
        for table in OF_JOBS:
            of = table.c.id if table.name == "job" else table.c.job_id
            key = [column for column in table.primary_key]
            found[table.name] = [
                dict(r) for r in conn.execute(select(table).where(of == job).order_by(*key)).mappings()
            ]
    return {name: said for name, said in found.items() if said}


def settled(world: Any) -> set[int]:
    with world.database.connect() as conn:
        return set(conn.execute(select(Job.c.id).where(Job.c.settled)).scalars())


@pytest.mark.parametrize("seed", range(3))
def test_jobs_that_have_not_settled_are_never_touched(world: Any, keeping: Callable[..., Retention], seed: int) -> None:
    """Whatever is asked for, and however old they are."""
    chance = random.Random(seed)
    started = [end(world, world.submit()), end(world, world.submit())]
    for _ in range(7):
        job = world.submit(tasks=chance.choice((1, 2)))
        if chance.random() < 0.7:
            world.run(job)
            if chance.random() < 0.7:
                world.report(job, NodePhase.ENDED, exit_code=chance.choice((0, 1)))
        started.append(job)
    world.pass_time(5)
    # One has ended, and its clean-up goes on.
    over = chance.choice(sorted(settled(world)))
    with world.database.begin() as conn:
        conn.execute(update(Job).where(Job.c.id == over).values(settled=False))
    live = [job for job in started if job not in settled(world)]
    before = {job: rows(world, job) for job in live}
    world.clock.advance(400 * DAY_S)
    keeping(**{kind: chance.choice((1, 30)) for kind in ("events_days", "logs_days", "jobs_days")})
    assert {job: rows(world, job) for job in live} == before
    assert settled(world) == set(), "the others are gone"
    assert len(live) > 2


def test_a_job_goes_with_all_that_is_its_own_and_is_not_counted_any_more(
    world: Any, keeping: Callable[..., Retention], logs: Logs
) -> None:
    old = end(world, world.submit())
    logs.append((old, 0, 1), 0, 0, b"printed\n")
    counts = Counts()
    world.clock.advance(20 * DAY_S)
    young = end(world, world.submit())
    with world.database.connect() as conn:
        assert counts.of(conn, world.clock.now()) == {"SUCCEEDED": 2}
    kept = rows(world, young)
    world.clock.advance(20 * DAY_S)
    keeping(jobs_days=30)
    assert rows(world, old) == {}
    assert logs.size((old, 0, 1), 0) == 0
    assert rows(world, young) == kept
    with world.database.connect() as conn:
        for known in (counts, Counts()):
            assert known.of(conn, world.clock.now()) == {"SUCCEEDED": 1}
    assert world.submit() > young, "an id that was given is never given again"


def test_timelines_and_logs_go_alone_and_the_job_is_still_shown(
    world: Any, keeping: Callable[..., Retention], logs: Logs
) -> None:
    job = end(world, world.submit())
    logs.append((job, 0, 1), 0, 0, b"printed\n")
    world.clock.advance(2 * DAY_S)
    shown, lines = world.job(job), world.kinds(job)
    keeping(events_days=3, logs_days=3)
    assert world.kinds(job) == lines
    assert logs.size((job, 0, 1), 0) == 8
    keeping(events_days=1)
    assert world.kinds(job) == []
    assert logs.size((job, 0, 1), 0) == 8
    keeping(logs_days=1)
    assert logs.size((job, 0, 1), 0) == 0
    assert world.job(job) == shown | {"total_duration_s": world.job(job)["total_duration_s"]}


def test_by_default_everything_is_kept(world: Any, keeping: Callable[..., Retention]) -> None:
    job = end(world, world.submit())
    before = rows(world, job)
    world.clock.advance(4000 * DAY_S)
    keeping()
    assert rows(world, job) == before


def test_a_transaction_removes_little(
    world: Any, keeping: Callable[..., Retention], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And between two of them others have their turn."""
    monkeypatch.setattr(retention, "_ROWS", 5)
    monkeypatch.setattr(retention, "_JOBS", 2)
    monkeypatch.setattr(retention, "_TASKS", 3)
    jobs = [end(world, world.submit()) for _ in range(5)]
    world.clock.advance(2 * DAY_S)
    removed: list[int] = []

    def hear(_conn: Any, cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("DELETE"):
            removed.append(cursor.rowcount)

    event.listen(world.database, "after_cursor_execute", hear)
    keeping(jobs_days=1)
    assert max(removed) <= 5
    assert all(rows(world, job) == {} for job in jobs)


def test_between_two_rounds_it_rests(world: Any, keeping: Callable[..., Retention]) -> None:
    done = keeping(jobs_days=1)
    job = end(world, world.submit())
    done._rest_until = world.clock.now() + 5 * DAY_S
    world.clock.advance(4 * DAY_S)
    done.tick()
    assert rows(world, job)
    world.clock.advance(DAY_S)
    for _ in range(100):
        done.tick()
    assert rows(world, job) == {}


def test_what_a_bucket_still_needs_of_its_job_stays(world: Any, keeping: Callable[..., Retention]) -> None:
    """That one job wants it to persist keeps it from another; who made it is known until it is removed."""
    wants, made, other = (end(world, world.submit()) for _ in range(3))
    with world.database.begin() as conn:
        record(conn, wants, UsedBucket("local", "shared", persistent=True, created=True))
        record(conn, made, UsedBucket("local", "scratch", persistent=False, created=True))
    world.clock.advance(2 * DAY_S)
    keeping(jobs_days=1)
    assert rows(world, other) == {}
    assert set(rows(world, wants)) == {"bucket"}
    assert {"job", "task", "bucket"} <= set(rows(world, made))
    user = world.submit()
    with world.database.begin() as conn:
        record(conn, user, UsedBucket("local", "shared", persistent=False, created=False))
        conn.execute(update(Task).where(Task.c.job_id == user).values(ended_at=world.clock.now()))
        assert removable(conn, user) == []


def test_uploads_go_when_no_job_names_them_and_nobody_asked_lately(
    world: Any, keeping: Callable[..., Retention], files: Files, tmp_path: Path
) -> None:
    digests = []
    for data in (b"of the old job", b"of both", b"asked for again", b"never named"):
        (tmp_path / "sent").write_bytes(data)
        digests.append(hashlib.sha256(data).hexdigest())
        files.keep(digests[-1], tmp_path / "sent")
        files.renew(digests[-1], world.clock.now())
    first, both, again, _ = digests
    name(world, old := end(world, world.submit()), first, both, again)
    world.clock.advance(2 * DAY_S)
    name(world, end(world, world.submit()), both)
    keeping(jobs_days=30)
    assert [files.has(digest) for digest in digests] == [True, True, True, False]
    world.clock.advance(29 * DAY_S)
    assert files.renew(again, world.clock.now())
    world.clock.advance(UPLOAD_GRACE_S / 2)
    keeping(jobs_days=30)
    assert rows(world, old) == {}
    assert [files.has(digest) for digest in digests] == [False, True, True, False]
    assert not files.renew(first, world.clock.now())


def name(world: Any, job: int, *digests: str) -> None:
    spec = {"resources": "cpus=4", "uploads": [{"path": "/x", "upload": digest} for digest in digests]}
    with world.database.begin() as conn:
        conn.execute(update(Task).where(Task.c.job_id == job).values(spec=spec))


def test_what_nodes_run_is_no_upload(world: Any, tmp_path: Path) -> None:
    (tmp_path / "agent").write_bytes(b"agent")
    shared = SharedFiles(FolderFiles(tmp_path), world.database, ManualClock())
    digest = hashlib.sha256(b"agent").hexdigest()
    shared.share(digest, tmp_path / "agent")
    assert shared.unused(1e12, 10) == []
    assert not shared.remove(digest, 1e12)
    assert shared.has(digest)


def test_a_log_of_many_pieces_goes_piece_by_piece(logs: Logs) -> None:
    for part in range(60):
        logs.append((3, 0, 1), part % 2, part // 2, b"x")
    logs.append((4, 0, 1), 0, 0, b"another's")
    calls = 0
    while logs.remove(3):
        calls += 1
    assert calls == (1 if isinstance(logs, NodeLogs) else 3)
    assert (logs.size((3, 0, 1), 0), logs.size((4, 0, 1), 0)) == (0, 9)
