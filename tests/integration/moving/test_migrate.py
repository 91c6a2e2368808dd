"""`perdure controller migrate`, with a real home on one side and a real PostgreSQL on the other."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert, select, text

from perdure.controller import moving
from perdure.controller.clock import ManualClock
from perdure.controller.files import FolderFiles, SharedFiles
from perdure.controller.moving import CannotMove, move, set_url
from perdure.controller.nodelogs import NodeLogs
from perdure.controller.settings import read_settings
from perdure.controller.sharedlogs import SharedLogs
from perdure.controller.store import jobs
from perdure.controller.store.database import make_engine, open_database
from perdure.controller.store.jobs import NewTask
from perdure.controller.store.tables import Meta
from perdure.controller.store.writes import Writes
from perdure.recovery.actions import Note
from perdure.recovery.job import TaskView
from perdure.recovery.needs import Amount, Need

KEY = (1, 0, 1)
UPLOAD = b"an upload " * 200_000


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A controller's home with three jobs, of which two are left, a log in two ranks, and an upload."""
    found = tmp_path / "home"
    found.mkdir()
    engine = open_database(f"sqlite:///{found / 'perdure.db'}")
    with engine.begin() as conn:
        for name in ("one", "two", "three"):
            columns = {"name": name, "user": "ü", "priority": 1, "num_tasks": 1, "submitted_at": 1.25, "key": name}
            (job,) = jobs.reserve(conn, columns | {"owner": "gone"})
            view = TaskView(0, (Need(cpus=Amount(4)),), wake_at=2.5)
            new = NewTask(view, name, {"run": "true"}, {"x": [1, None]}, b"\x00\xff")
            writes = Writes(conn)
            jobs.add_tasks(writes, [new], {job: [name]})
            jobs.record_notes(writes, job, [Note("job.submitted", data={"tasks": 1})], 3.5)
            writes.flush()
        conn.execute(text("DELETE FROM task WHERE job_id = 3"))
        conn.execute(text("DELETE FROM job WHERE id = 3"))
        conn.execute(insert(Meta).values(name="controller", value="abc"))
    engine.dispose()
    logs = NodeLogs(found)
    for number in range(50):
        logs.append(KEY, number % 2, logs.size(KEY, number % 2), b"line %d\n" % number)
    (found / "uploads").mkdir()
    (found / "uploads" / hashlib.sha256(UPLOAD).hexdigest()).write_bytes(UPLOAD)
    (found / "config.yaml").write_text("log_level: debug")
    return found


def tables(postgres: Any, url: str) -> str:
    return str(
        postgres.sql("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'", url.rpartition("/")[2])
    ).strip()


def test_everything_arrives(home: Path, postgres: Any, tmp_path: Path) -> None:
    url, said = postgres.new_database(), []
    move(read_settings(home), url, said.append)
    assert "job: 2 rows, the same in both" in said
    assert "uploads: 1 files, the same in both" in said
    assert any(line.startswith("logs: 1 attempts") for line in said)

    old, new = open_database(f"sqlite:///{home / 'perdure.db'}"), open_database(url)
    with old.connect() as before, new.begin() as after:
        assert jobs.load(after, [1, 2]) == jobs.load(before, [1, 2])
        assert after.execute(select(jobs.Task.c.secrets)).scalars().first() == b"\x00\xff"
        columns = {"name": "four", "user": "", "priority": 1, "num_tasks": 1, "submitted_at": 1.25, "key": None}
        assert jobs.reserve(after, columns | {"owner": None})[0] > 2, "an id, once given, is never given again"
    kept, moved = NodeLogs(home), SharedLogs(new)
    assert [moved.read(KEY, c) for c in moved.reader(KEY).new()] == [kept.read(KEY, c) for c in kept.reader(KEY).new()]
    (tmp_path / "cache").mkdir()
    found = SharedFiles(FolderFiles(tmp_path / "cache"), new, ManualClock()).path(hashlib.sha256(UPLOAD).hexdigest())
    assert found is not None
    assert found.read_bytes() == UPLOAD
    old.dispose()
    new.dispose()


def test_what_is_broken_off_changes_nothing_and_can_be_done_again(
    home: Path, postgres: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = postgres.new_database()
    with monkeypatch.context() as patch:
        patch.setattr(moving, "_files", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            move(read_settings(home), url, print)
    assert tables(postgres, url) == "0"
    assert (home / "config.yaml").read_text() == "log_level: debug"
    move(read_settings(home), url, print)
    with pytest.raises(CannotMove, match="is not empty"):
        move(read_settings(home), url, print)


def test_a_file_that_is_not_what_its_name_says_stops_it(home: Path, postgres: Any) -> None:
    url = postgres.new_database()
    (home / "uploads" / ("0" * 64)).write_bytes(b"damaged")
    with pytest.raises(CannotMove, match="is not what its name says"):
        move(read_settings(home), url, print)
    assert tables(postgres, url) == "0"


def test_the_configuration_names_the_new_database(home: Path) -> None:
    url = "postgresql://me:se%40same@db.lan/perdure"
    assert set_url(read_settings(home), url)
    assert read_settings(home, {}).url == url
    assert read_settings(home, {}).log_level == "debug"
    assert (home / "config.yaml").stat().st_mode & 0o077 == 0
    before = (home / "config.yaml").read_text()
    assert not set_url(read_settings(home, {}), "postgresql://other/db"), "what somebody wrote there is theirs"
    assert (home / "config.yaml").read_text() == before
    (home / "config.yaml").write_text("{log_level: debug}")
    assert not set_url(read_settings(home), url)
    assert sorted(p.name for p in home.glob(".*")) == []


def test_the_command(home: Path, postgres: Any) -> None:
    url = postgres.new_database()
    command = [sys.executable, "-m", "perdure.cli", "controller", "migrate", "--to"]
    environ = {**os.environ, "PERDURE_HOME": str(home)}

    def run(to: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*command, to], env=environ, capture_output=True, text=True, timeout=120, check=False)

    refused = run("postgresql://me:sesame@127.0.0.1:1/none")
    assert refused.returncode == 2
    assert "nothing was changed" in refused.stderr
    assert "sesame" not in refused.stderr
    done = run(url)
    assert done.returncode == 0, done.stderr
    assert "config.yaml names the new database" in done.stdout
    assert read_settings(home, {}).url == url
    again = run(url)
    assert again.returncode == 2
    assert "was moved already" in again.stderr
    engine = make_engine(url)
    with engine.connect() as conn:
        assert sorted(jobs.load(conn, [1, 2])) == [1, 2]
    engine.dispose()
