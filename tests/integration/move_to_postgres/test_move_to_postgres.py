"""`perdure controller migrate`, from a real home to a real PostgreSQL server."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import insert, select, text

from perdure.controller.runtime.clock import ManualClock
from perdure.controller.runtime.config.settings import read_settings
from perdure.controller.store.blobs import DirectoryBlobs, SqlBlobs
from perdure.controller.store.engine import move_to_postgres
from perdure.controller.store.engine.batch_writer import WriteBatch
from perdure.controller.store.engine.database import make_engine, open_database
from perdure.controller.store.engine.move_to_postgres import MigrationRefused, move_home, set_url
from perdure.controller.store.logs.file_logs import FileLogStore
from perdure.controller.store.logs.sql_logs import SqlLogStore
from perdure.controller.store.records import jobs
from perdure.controller.store.records.jobs import NewTask
from perdure.controller.store.tables import Meta
from perdure.recovery.actions import TimelineEntry
from perdure.recovery.job import TaskView
from perdure.recovery.market.requirements import Amount, MachineRequirement
from support.helpers.postgres_server import Postgres
from support.helpers.timing import scaled

KEY = (1, 0, 1)
UPLOAD = b"an upload " * 200_000


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The home of a controller with two of three jobs left, a log of two ranks and an upload."""
    home = tmp_path / "home"
    home.mkdir()
    engine = open_database(f"sqlite:///{home / 'perdure.db'}")
    with engine.begin() as conn:
        for name in ("one", "two", "three"):
            columns = {
                "name": name,
                "user": "ü",
                "priority": 1,
                "num_tasks": 1,
                "submitted_at": 1.25,
                "idempotency_key": name,
            }
            (job,) = jobs.insert_batch(conn, columns | {"owner": "gone"})
            view = TaskView(0, (MachineRequirement(cpus=Amount(4)),), wake_at=2.5)
            new = NewTask(view, name, {"run": "true"}, {"x": [1, None]}, b"\x00\xff")
            writes = WriteBatch(conn)
            jobs.add_tasks(writes, [new], {job: [name]})
            jobs.append_timeline(writes, job, [TimelineEntry("job.submitted", data={"tasks": 1})], 3.5)
            writes.flush()
        conn.execute(text("DELETE FROM task WHERE job_id = 3"))
        conn.execute(text("DELETE FROM job WHERE id = 3"))
        conn.execute(insert(Meta).values(name="controller", value="abc"))
    engine.dispose()
    logs = FileLogStore(home)
    for number in range(50):
        logs.append(KEY, number % 2, logs.size(KEY, number % 2), b"line %d\n" % number)
    (home / "uploads").mkdir()
    (home / "uploads" / hashlib.sha256(UPLOAD).hexdigest()).write_bytes(UPLOAD)
    (home / "config.yaml").write_text("log_level: debug")
    return home


def count_tables(postgres: Postgres, url: str) -> str:
    return str(
        postgres.sql("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'", url.rpartition("/")[2])
    ).strip()


def test_move_home__copies_everything(home: Path, postgres: Postgres, tmp_path: Path) -> None:
    url, reports = postgres.new_database(), list[str]()
    move_home(read_settings(home), url, reports.append)
    assert "job: 2 rows, verified" in reports
    assert "uploads: 1 files, verified" in reports
    assert any(line.startswith("logs: 1 attempts") for line in reports)

    old, new = open_database(f"sqlite:///{home / 'perdure.db'}"), open_database(url)
    with old.connect() as before, new.begin() as after:
        assert jobs.load(after, [1, 2]) == jobs.load(before, [1, 2])
        assert after.execute(select(jobs.Task.c.secrets)).scalars().first() == b"\x00\xff"
        columns = {
            "name": "four",
            "user": "",
            "priority": 1,
            "num_tasks": 1,
            "submitted_at": 1.25,
            "idempotency_key": None,
        }
        assert jobs.insert_batch(after, columns | {"owner": None})[0] > 3, (
            "an id is never reused, not even that of a deleted job"
        )
    original, moved = FileLogStore(home), SqlLogStore(new)
    assert [moved.read_chunk(KEY, c) for c in moved.reader(KEY).read_new()] == [
        original.read_chunk(KEY, c) for c in original.reader(KEY).read_new()
    ]
    (tmp_path / "cache").mkdir()
    blob = SqlBlobs(DirectoryBlobs(tmp_path / "cache"), new, ManualClock()).path(hashlib.sha256(UPLOAD).hexdigest())
    assert blob is not None
    assert blob.read_bytes() == UPLOAD
    old.dispose()
    new.dispose()


def test_move_home__interrupted_changes_nothing_and_can_be_repeated(
    home: Path, postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = postgres.new_database()
    with monkeypatch.context() as patch:
        patch.setattr(move_to_postgres, "_copy_blobs", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            move_home(read_settings(home), url, print)
    assert count_tables(postgres, url) == "0"
    assert (home / "config.yaml").read_text() == "log_level: debug"
    move_home(read_settings(home), url, print)
    with pytest.raises(MigrationRefused, match="is not empty"):
        move_home(read_settings(home), url, print)


def test_move_home__refuses_a_damaged_upload(home: Path, postgres: Postgres) -> None:
    url = postgres.new_database()
    (home / "uploads" / ("0" * 64)).write_bytes(b"damaged")
    with pytest.raises(MigrationRefused, match="does not match its digest"):
        move_home(read_settings(home), url, print)
    assert count_tables(postgres, url) == "0"


def test_set_url__adds_the_database_to_the_configuration(home: Path) -> None:
    url = "postgresql://me:se%40same@db.lan/perdure"
    assert set_url(read_settings(home), url)
    assert read_settings(home, {}).database_address == url
    assert read_settings(home, {}).log_level == "debug"
    assert (home / "config.yaml").stat().st_mode & 0o077 == 0
    before = (home / "config.yaml").read_text()
    assert not set_url(read_settings(home, {}), "postgresql://other/db"), "a database section of the user is kept"
    assert (home / "config.yaml").read_text() == before
    (home / "config.yaml").write_text("{log_level: debug}")
    assert not set_url(read_settings(home), url)
    assert sorted(p.name for p in home.glob(".*")) == []


@pytest.mark.slow
def test_migrate_command__moves_once(home: Path, postgres: Postgres) -> None:
    url = postgres.new_database()
    command = [sys.executable, "-m", "perdure.cli", "controller", "migrate"]
    environ = {**os.environ, "PERDURE_HOME": str(home)}

    def run(*to: str, **more: str) -> subprocess.CompletedProcess[str]:
        words = ["--to", *to] if to else []
        environment = {**environ, **more}
        return subprocess.run(
            [*command, *words], env=environment, capture_output=True, text=True, timeout=scaled(120), check=False
        )

    assert "give --to, or set PERDURE_MIGRATE_TO" in run().stderr
    with_password = "postgresql://me:sesame@127.0.0.1:1/none"
    readable_by_all = run(with_password)
    assert readable_by_all.returncode == 2
    assert "every user of this computer can read a command's arguments" in readable_by_all.stderr
    refused = run(PERDURE_MIGRATE_TO=with_password)
    assert refused.returncode == 2
    assert "nothing was changed" in refused.stderr
    assert "sesame" not in refused.stderr + readable_by_all.stderr
    done = run(url)
    assert done.returncode == 0, done.stderr
    assert "config.yaml now names the new database" in done.stdout
    assert read_settings(home, {}).database_address == url
    repeated = run(url)
    assert repeated.returncode == 2
    assert "was moved already" in repeated.stderr
    engine = make_engine(url)
    with engine.connect() as conn:
        assert sorted(jobs.load(conn, [1, 2])) == [1, 2]
    engine.dispose()
