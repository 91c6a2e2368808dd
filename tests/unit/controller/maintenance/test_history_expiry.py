"""Retention deletes what config.yaml says, and nothing else."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, event, select, update
from sqlmodel import SQLModel

from perdure.controller.maintenance import history_expiry
from perdure.controller.maintenance.history_expiry import UPLOAD_GRACE_S, HistoryExpiry
from perdure.controller.runtime.config.settings import RetentionSettings
from perdure.controller.store.blobs import BlobStore, DirectoryBlobs, SqlBlobs
from perdure.controller.store.clusters.tables import ClusterRow
from perdure.controller.store.logs.file_logs import FileLogStore
from perdure.controller.store.logs.protocol import LogStore
from perdure.controller.store.logs.series import node_metrics
from perdure.controller.store.logs.series.metric_series import merged
from perdure.controller.store.logs.sql_logs import SqlLogStore
from perdure.controller.store.queries.counts import TaskCounter
from perdure.controller.store.records import clusters
from perdure.controller.store.records.buckets import UsedBucket, record, removable
from perdure.controller.store.records.clusters import Cluster
from perdure.controller.store.records.jobs import Job, Task
from perdure.recovery.statuses import NodePhase
from unit.controller.world import World

DAY_S = 86_400.0
JOB_TABLES = [table for table in SQLModel.metadata.sorted_tables if "job_id" in table.c or table.name == "job"]


@pytest.fixture
def logs(world: World, tmp_path: Path) -> LogStore:
    return SqlLogStore(world.database) if world.database.dialect.name == "postgresql" else FileLogStore(tmp_path)


@pytest.fixture
def blobs(world: World, tmp_path: Path) -> BlobStore:
    (tmp_path / "uploads").mkdir()
    folder = DirectoryBlobs(tmp_path / "uploads")
    return SqlBlobs(folder, world.database, world.clock) if world.database.dialect.name == "postgresql" else folder


@pytest.fixture
def run_retention(world: World, logs: LogStore, blobs: BlobStore) -> Callable[..., HistoryExpiry]:
    """Run one complete pass, with the given settings."""

    def run(**days: float) -> HistoryExpiry:
        retention = HistoryExpiry(RetentionSettings(**days), world.database, world.clock, logs, blobs)
        retention.tick()
        while retention._work is not None:
            retention.tick()
        return retention

    return run


def finish(world: World, job: int) -> int:
    world.run(job)
    world.report(job, NodePhase.ENDED, exit_code=0)
    world.pass_time(5)
    return job


def rows(world: World, job: int) -> dict[str, list[dict[str, Any]]]:
    """All rows of a job, by table."""
    by_table = {}
    with world.database.connect() as conn:
        for table in JOB_TABLES:
            id_column = table.c.id if table.name == "job" else table.c.job_id
            key = [column for column in table.primary_key]
            by_table[table.name] = [
                dict(r) for r in conn.execute(select(table).where(id_column == job).order_by(*key)).mappings()
            ]
    return {name: found_rows for name, found_rows in by_table.items() if found_rows}


def test_secrets__that_an_earlier_version_kept_are_deleted_without_any_setting(
    world: World, run_retention: Callable[..., HistoryExpiry], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_expiry, "_TASK_BATCH_SIZE", 2)
    ended = [finish(world, world.submit()) for _ in range(5)]
    live = world.submit()
    kept = {live: b"sealed"}
    with world.database.begin() as conn:
        conn.execute(update(Task).values(secrets=b"sealed"))
    run_retention()
    with world.database.connect() as conn:
        sealed = {row.job_id: row.secrets for row in conn.execute(select(Task.c.job_id, Task.c.secrets))}
    assert sealed == dict.fromkeys(ended) | kept
    with world.database.begin() as conn:  # only once: a table of a million jobs is not read at each start
        conn.execute(update(Task).where(Task.c.job_id == ended[0]).values(secrets=b"again"))
    run_retention()
    with world.database.connect() as conn:
        assert conn.execute(select(Task.c.secrets).where(Task.c.job_id == ended[0])).scalar_one() == b"again"


def finalized(world: World) -> set[int]:
    with world.database.connect() as conn:
        return set(conn.execute(select(Job.c.id).where(Job.c.finalized)).scalars())


@pytest.mark.parametrize("seed", range(3))
def test_jobs__that_are_not_finalized_are_never_touched(
    world: World, run_retention: Callable[..., HistoryExpiry], seed: int
) -> None:
    """Whatever the settings, and however old the jobs."""
    chance = random.Random(seed)
    started = [finish(world, world.submit()), finish(world, world.submit())]
    for _ in range(7):
        job = world.submit(tasks=chance.choice((1, 2)))
        if chance.random() < 0.7:
            world.run(job)
            if chance.random() < 0.7:
                world.report(job, NodePhase.ENDED, exit_code=chance.choice((0, 1)))
        started.append(job)
    world.pass_time(5)
    # One job has ended, and its clean-up is not complete.
    over = chance.choice(sorted(finalized(world)))
    with world.database.begin() as conn:
        conn.execute(update(Job).where(Job.c.id == over).values(finalized=False))
    live = [job for job in started if job not in finalized(world)]
    before = {job: rows(world, job) for job in live}
    world.clock.advance(400 * DAY_S)
    run_retention(**{kind: chance.choice((1, 30)) for kind in ("events_days", "logs_days", "jobs_days")})
    assert {job: rows(world, job) for job in live} == before
    assert finalized(world) == set(), "the others are deleted"
    assert len(live) > 2


def test_jobs_days__deletes_clusters_that_are_down_with_their_last_job(
    world: World, run_retention: Callable[..., HistoryExpiry]
) -> None:
    def add_cluster(name: str, *, wanted: str = "DOWN") -> int:
        now = world.clock.now()
        row = ClusterRow(name=name, wanted=wanted, created_at=now, launched_at=now, active_at=now, config={})
        columns = row.model_dump(exclude={"id"}) | {"active_name": name if wanted != "DOWN" else None}
        with world.database.begin() as conn:
            return clusters.insert_cluster(conn, columns)

    def job_of(cluster_id: int) -> int:
        job = finish(world, world.submit())
        with world.database.begin() as conn:
            conn.execute(update(Job).where(Job.c.id == job).values(cluster_id=cluster_id))
        return job

    failed, stopped = add_cluster("failed"), add_cluster("stopped", wanted="STOPPED")
    used = add_cluster("used")
    job_of(used)
    job_of(stopped)
    world.clock.advance(20 * DAY_S)
    job_of(used)
    young = add_cluster("young")

    def ids() -> set[int]:
        with world.database.connect() as conn:
            return set(conn.execute(select(Cluster.c.id)).scalars())

    run_retention(events_days=1, logs_days=1)
    assert ids() == {failed, stopped, used, young}
    run_retention(jobs_days=10)
    assert ids() == {stopped, used, young}
    world.clock.advance(400 * DAY_S)
    run_retention(jobs_days=10)
    assert ids() == {stopped}


def test_jobs_days__deletes_everything_of_a_job(
    world: World, run_retention: Callable[..., HistoryExpiry], logs: LogStore
) -> None:
    old = finish(world, world.submit())
    logs.append((old, 0, 1), 0, 0, b"printed\n")
    counts = TaskCounter()
    world.clock.advance(20 * DAY_S)
    young = finish(world, world.submit())
    with world.database.connect() as conn:
        assert counts.by_status(conn, world.clock.now()) == {"SUCCEEDED": 2}
    kept = rows(world, young)
    world.clock.advance(20 * DAY_S)
    run_retention(jobs_days=30)
    assert rows(world, old) == {}
    assert logs.size((old, 0, 1), 0) == 0
    assert rows(world, young) == kept
    with world.database.connect() as conn:
        for known in (counts, TaskCounter()):
            assert known.by_status(conn, world.clock.now()) == {"SUCCEEDED": 1}
    assert world.submit() > young, "ids are not reused"


def test_events_days_and_logs_days__keep_the_job(
    world: World, run_retention: Callable[..., HistoryExpiry], logs: LogStore
) -> None:
    job = finish(world, world.submit())
    logs.append((job, 0, 1), 0, 0, b"printed\n")
    world.clock.advance(2 * DAY_S)
    shown, lines = world.job(job), world.kinds(job)
    run_retention(events_days=3, logs_days=3)
    assert world.kinds(job) == lines
    assert logs.size((job, 0, 1), 0) == 8
    run_retention(events_days=1)
    assert world.kinds(job) == []
    assert logs.size((job, 0, 1), 0) == 8
    run_retention(logs_days=1)
    assert logs.size((job, 0, 1), 0) == 0
    assert world.job(job) == shown | {"total_duration_s": world.job(job)["total_duration_s"]}


def test_defaults__keep_everything(world: World, run_retention: Callable[..., HistoryExpiry]) -> None:
    job = finish(world, world.submit())
    before = rows(world, job)
    world.clock.advance(4000 * DAY_S)
    run_retention()
    assert rows(world, job) == before


def test_transactions__are_short(
    world: World, run_retention: Callable[..., HistoryExpiry], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_expiry, "_ROW_BATCH_SIZE", 5)
    monkeypatch.setattr(history_expiry, "_JOB_BATCH_SIZE", 2)
    monkeypatch.setattr(history_expiry, "_TASK_BATCH_SIZE", 3)
    jobs = [finish(world, world.submit()) for _ in range(5)]
    world.clock.advance(2 * DAY_S)
    deleted: list[int] = []

    def on_statement(_conn: Connection, cursor: Any, statement: str, *_: object) -> None:
        if statement.startswith("DELETE"):
            deleted.append(cursor.rowcount)

    event.listen(world.database, "after_cursor_execute", on_statement)
    run_retention(jobs_days=1)
    assert max(deleted) <= 5
    assert all(rows(world, job) == {} for job in jobs)


def test_tick__pauses_between_two_passes(world: World, run_retention: Callable[..., HistoryExpiry]) -> None:
    done = run_retention(jobs_days=1)
    job = finish(world, world.submit())
    done._idle_until = world.clock.now() + 5 * DAY_S
    world.clock.advance(4 * DAY_S)
    done.tick()
    assert rows(world, job)
    world.clock.advance(DAY_S)
    for _ in range(100):
        done.tick()
    assert rows(world, job) == {}


def test_jobs_days__keeps_what_a_bucket_still_needs(world: World, run_retention: Callable[..., HistoryExpiry]) -> None:
    """A job that wants a bucket to persist protects it from other jobs; its creator is known until it is removed."""
    wants, made, other = (finish(world, world.submit()) for _ in range(3))
    with world.database.begin() as conn:
        record(conn, wants, UsedBucket("local", "shared", persistent=True, created=True))
        record(conn, made, UsedBucket("local", "scratch", persistent=False, created=True))
    world.clock.advance(2 * DAY_S)
    run_retention(jobs_days=1)
    assert rows(world, other) == {}
    assert set(rows(world, wants)) == {"bucket"}
    assert {"job", "task", "bucket"} <= set(rows(world, made))
    user = world.submit()
    with world.database.begin() as conn:
        record(conn, user, UsedBucket("local", "shared", persistent=False, created=False))
        conn.execute(update(Task).where(Task.c.job_id == user).values(ended_at=world.clock.now()))
        assert removable(conn, user) == []


def test_uploads__are_deleted_when_unused_and_not_touched_lately(
    world: World, run_retention: Callable[..., HistoryExpiry], blobs: BlobStore, tmp_path: Path
) -> None:
    digests = []
    for data in (b"of the old job", b"of both", b"asked for again", b"never named"):
        (tmp_path / "sent").write_bytes(data)
        digests.append(hashlib.sha256(data).hexdigest())
        blobs.put(digests[-1], tmp_path / "sent")
        blobs.touch(digests[-1], world.clock.now())
    first, both, again, _ = digests
    name(world, old := finish(world, world.submit()), first, both, again)
    world.clock.advance(2 * DAY_S)
    name(world, finish(world, world.submit()), both)
    run_retention(jobs_days=30)
    assert [blobs.has(digest) for digest in digests] == [True, True, True, False]
    world.clock.advance(29 * DAY_S)
    assert blobs.touch(again, world.clock.now())
    world.clock.advance(UPLOAD_GRACE_S / 2)
    run_retention(jobs_days=30)
    assert rows(world, old) == {}
    assert [blobs.has(digest) for digest in digests] == [False, True, True, False]
    assert not blobs.touch(first, world.clock.now())


def name(world: World, job: int, *digests: str) -> None:
    spec = {"resources": "cpus=4", "uploads": [{"path": "/x", "upload": digest} for digest in digests]}
    with world.database.begin() as conn:
        conn.execute(update(Task).where(Task.c.job_id == job).values(spec=spec))


def test_metrics__are_deleted_with_their_job_by_age_and_beyond_a_number(
    world: World, run_retention: Callable[..., HistoryExpiry], monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [finish(world, world.submit()) for _ in range(4)]

    def write(job: int) -> None:
        series = merged(None, [(world.clock.now(), {"cpu": 0.5})])
        with world.database.begin() as conn:
            node_metrics.save_all(conn, [node_metrics.encoded_row(((job, 0, 1), 0), series, world.clock.now())])

    def kept() -> list[int]:
        return [job for job in jobs if "node_metrics" in rows(world, job)]

    write(jobs[0])
    world.clock.advance(DAY_S)
    for job in jobs[1:]:
        write(job)
        world.clock.advance(60.0)
    run_retention()
    assert kept() == jobs
    world.clock.advance(29 * DAY_S)
    run_retention()
    assert kept() == jobs[1:]
    monkeypatch.setattr(history_expiry, "MAX_METRICS", 2)
    run_retention()
    assert kept() == jobs[2:]
    run_retention(jobs_days=1)
    assert kept() == []
