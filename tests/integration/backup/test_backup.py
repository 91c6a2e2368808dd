"""`perdure controller backup` and `restore` on homes with real databases, logs, uploads and keys, also when killed."""

from __future__ import annotations

import fcntl
import hashlib
import os
import signal
import socket
import sqlite3
import stat
import subprocess
import sys
import tarfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from perdure.controller.peers.home.backup.archive import MANIFEST, BackupError
from perdure.controller.peers.home.backup.create import back_up
from perdure.controller.peers.home.backup.restore import restore
from perdure.controller.peers.home.record import HomeRecord
from perdure.controller.runtime.config.settings import read_settings
from perdure.controller.runtime.failpoints import COMMAND_FAILPOINTS, VARIABLE
from perdure.controller.runtime.security.keyring import Keyring
from perdure.controller.store.engine.database import open_database
from perdure.controller.store.logs.file_logs import FileLogStore
from perdure.controller.store.records import incarnations
from support.helpers.timing import scaled

UPLOAD, UNUSED = b"an upload " * 50_000, b"of a job that has ended"
LOG = b"line\n" * 20_000


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def add_job(home: Path, *, finalized: bool, upload: bytes) -> None:
    spec = f'{{"workdir": {{"upload": "{digest(upload)}"}}, "uploads": [], "buckets": []}}'
    job = (
        'INSERT INTO job (name, "user", priority, num_tasks, submitted_at, batch_rank, batch_size, lease_epoch, '
        "finalized) VALUES ('job', '', 0, 1, 0, 0, 1, 0, ?)"
    )
    task = (
        'INSERT INTO task (job_id, "index", name, task_id, status, config, spec, requirements, recovery, num_nodes, '
        "state, reason, message, next_generation, recovery_count, restarts_on_errors, consecutive_refusals, has_run, "
        "run_seconds, storage_ready, storage_requested) VALUES (?, 0, '', ?, 'RUNNING', '{}', ?, '[]', '{}', 1, "
        "'RUNNING', 'JOB_SUBMITTED', '', 2, 0, 0, 0, 0, 0, 1, 0)"
    )
    attempt = (
        "INSERT INTO attempt (job_id, task_index, generation, state, offer, requested_at, terminating) "
        "VALUES (?, 0, 1, 'RUNNING', '{}', 0, 0)"
    )
    with closing(sqlite3.connect(home / "perdure.db")) as conn:
        job_id = conn.execute(job, (finalized,)).lastrowid
        conn.execute(task, (job_id, f"task-{job_id}", spec))
        conn.execute(attempt, (job_id,))
        conn.commit()
    folder = home / f"logs/{job_id}/0/1"
    folder.mkdir(parents=True)
    (folder / "0.log").write_bytes(LOG)
    (folder / "index").write_text(f"0 {len(LOG)}\n")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with a running and an ended job, as its controller left it."""
    home = tmp_path / "home"
    (home / "uploads").mkdir(parents=True)
    engine = open_database(f"sqlite:///{home / 'perdure.db'}")
    with engine.begin() as conn:
        begun = incarnations.begin(conn, first_job_id=1)
        watermark = incarnations.advance(conn)
    engine.dispose()
    Keyring.load_or_create(home)
    (home / "config.yaml").write_text("log_level: warning\n")
    for content in (UPLOAD, UNUSED):
        (home / "uploads" / digest(content)).write_bytes(content)
    add_job(home, finalized=False, upload=UPLOAD)
    add_job(home, finalized=True, upload=UNUSED)
    HomeRecord("one", begun.current, watermark, 1.0, 2).save(home)
    return home


def make_backup(home: Path, to: Path, **options: bool) -> list[str]:
    said: list[str] = []
    back_up(read_settings(home, {}), str(to), said.append, **options)
    return said


def run_command(home: Path, command: str, *options: str, failpoint: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "perdure.controller", command, "--home", str(home), *options],
        env={**os.environ, VARIABLE: failpoint}, capture_output=True, text=True, timeout=scaled(60), check=False,
    )  # fmt: skip


def jobs_of(home: Path) -> list[tuple[int, str]]:
    with closing(sqlite3.connect(home / "perdure.db")) as conn:
        return conn.execute("SELECT job_id, task_id FROM task ORDER BY job_id").fetchall()


def check_restored(home: Path, original: Path) -> None:
    assert jobs_of(home) == [(1, "task-1"), (2, "task-2")]
    for name in ("secret.key", "token", "config.yaml", "logs/1/0/1/0.log", "logs/2/0/1/index"):
        assert (home / name).read_bytes() == (original / name).read_bytes(), name
    assert [path.name for path in (home / "uploads").iterdir()] == [digest(UPLOAD)]
    assert not (home / ".restore").exists()
    record = HomeRecord.load(home)
    assert record is not None
    assert record.incarnation != HomeRecord.load(original).incarnation  # type: ignore[union-attr]


def test_restore__makes_a_home_from_a_backup(home: Path, tmp_path: Path) -> None:
    said = make_backup(home, tmp_path / "one.backup")
    assert any("secret.key" in line for line in said), "it says that it contains secrets"
    assert stat.S_IMODE((tmp_path / "one.backup").stat().st_mode) == 0o600
    new = tmp_path / "new"
    restore(new, str(tmp_path / "one.backup"), said.append)
    check_restored(new, home)
    assert any("with jobs up to 2" in line for line in said)


def test_backup__replaces_a_backup_and_nothing_else(home: Path, tmp_path: Path) -> None:
    to = tmp_path / "out"
    to.mkdir()
    make_backup(home, to / "one.backup")
    first = (to / "one.backup").stat().st_ino
    make_backup(home, to / "one.backup")
    assert (to / "one.backup").stat().st_ino != first
    (to / "thesis.txt").write_text("years of work")
    with tarfile.open(to / "other.tar.gz", "w:gz") as tar:
        tar.add(to / "thesis.txt", "thesis.txt")
    (to / "link").symlink_to("one.backup")
    (to / "dangling").symlink_to("nowhere")
    os.mkfifo(to / "fifo")
    with closing(socket.socket(socket.AF_UNIX)) as listener:
        listener.bind(str(to / "socket"))

    def kept() -> dict[str, tuple[int, int, int]]:
        states = {path.name: path.lstat() for path in to.iterdir()}
        return {name: (state.st_mode, state.st_ino, state.st_mtime_ns) for name, state in states.items()}

    before = kept()
    for name in sorted(before.keys() - {"one.backup"}):
        with pytest.raises(BackupError, match=f"{name}: this .*would replace it; give another path"):
            make_backup(home, to / name)
    assert kept() == before


@pytest.mark.parametrize("url", ["s3://KEY:sesame@host/bucket", "https://user:sesame@host/x", "local://B_/x"])
def test_backup__rejects_an_invalid_url_without_its_password(home: Path, url: str) -> None:
    for command, option in (("backup", "--to"), ("restore", "--source")):
        refused = run_command(home if command == "backup" else home / "new", command, option, url)
        assert refused.returncode == 2
        why = "the URI holds a user or a password" if "@" in url else "'B_' is not a valid bucket name"
        assert why in refused.stderr
        assert "sesame" not in refused.stdout + refused.stderr


@pytest.mark.parametrize("name", ["secret.key", "perdure.db", "token", "new-name", "logs/1/", "linked/x"])
def test_backup__stays_out_of_the_home(home: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "linked").symlink_to(home)
    to = tmp_path / name if name.startswith("linked") else home / name
    before = {path: path.lstat().st_ino for path in home.rglob("*")}
    with pytest.raises(BackupError, match="which the backup is to protect"):
        back_up(read_settings(home, {}), f"{to}/" if name.endswith("/") else str(to), print)
    assert {path: path.lstat().st_ino for path in home.rglob("*")} == before


def test_backup__is_consistent_while_others_write(home: Path, tmp_path: Path) -> None:
    """Each transaction adds two rows: a copy never has one without the other. It ends, although they never do."""
    with closing(sqlite3.connect(home / "perdure.db")) as conn, conn:
        conn.executemany("INSERT INTO meta VALUES (?, ?)", ((f"filler{n}", "x" * 4000) for n in range(5000)))
    writer = subprocess.Popen(
        [sys.executable, "-c", f"""
import sqlite3
conn = sqlite3.connect({str(home / "perdure.db")!r}, timeout=60, isolation_level=None)
n = 0
while True:
    n += 1
    conn.execute("BEGIN IMMEDIATE")
    conn.execute("INSERT INTO meta VALUES (?, 'x')", (f"a{{n}}",))
    conn.execute("INSERT INTO meta VALUES (?, ?)", (f"b{{n}}", "y" * 2000))
    conn.execute("COMMIT")
    if n == 50:
        print("writes", flush=True)
"""],
        stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"writes\n"
        make_backup(home, tmp_path / "one.backup")
        assert writer.poll() is None
    finally:
        writer.kill()
        writer.wait()
    new = tmp_path / "new"
    restore(new, str(tmp_path / "one.backup"), lambda _text: None)
    with closing(sqlite3.connect(new / "perdure.db")) as conn:
        firsts, seconds = (
            conn.execute("SELECT count(*) FROM meta WHERE name GLOB ?", (f"{letter}[0-9]*",)).fetchone()[0]
            for letter in "ab"
        )
    assert firsts == seconds >= 50


def test_backup__without_keys_says_so_and_needs_them_back(home: Path, tmp_path: Path) -> None:
    said = make_backup(home, tmp_path / "one.backup", keys=False)
    assert any("does not contain secret.key" in line for line in said)
    with tarfile.open(tmp_path / "one.backup") as tar:
        assert not [name for name in tar.getnames() if name.startswith(("keys", "tls"))]
    new = tmp_path / "new"
    with pytest.raises(BackupError, match=r"put secret.key and token into .*new first"):
        restore(new, str(tmp_path / "one.backup"), said.append)
    for name in ("secret.key", "token"):
        (new / name).write_bytes((home / name).read_bytes())
    restore(new, str(tmp_path / "one.backup"), said.append)
    check_restored(new, home)


def test_restore__refuses_over_a_living_home(home: Path, tmp_path: Path) -> None:
    make_backup(home, tmp_path / "one.backup")
    before = (home / "perdure.db").read_bytes()
    with pytest.raises(BackupError, match=r"has a database .*move it away first"):
        restore(home, str(tmp_path / "one.backup"), lambda _text: None)
    assert (home / "perdure.db").read_bytes() == before


def test_restore__refuses_other_keys(home: Path, tmp_path: Path) -> None:
    make_backup(home, tmp_path / "one.backup")
    Keyring.load_or_create(tmp_path / "new")
    with pytest.raises(BackupError, match="is another key"):
        restore(tmp_path / "new", str(tmp_path / "one.backup"), lambda _text: None)
    assert not (tmp_path / "new" / "perdure.db").exists()


def test_restore__keeps_what_the_home_knows_better(home: Path, tmp_path: Path) -> None:
    """Back onto the computer whose database was lost: ids go on after the highest one, longer logs stay."""
    make_backup(home, tmp_path / "one.backup")
    add_job(home, finalized=False, upload=UPLOAD)
    record = HomeRecord.load(home)
    assert record is not None
    HomeRecord(record.controller, record.incarnation, record.watermark + 5, 2.0, 3).save(home)
    with (home / "logs/1/0/1/0.log").open("ab") as file:
        file.write(b"later\n")
    for path in home.glob("perdure.db*"):
        path.unlink()
    restore(home, str(tmp_path / "one.backup"), lambda _text: None)
    assert jobs_of(home) == [(1, "task-1"), (2, "task-2")]
    assert (home / "logs/1/0/1/0.log").read_bytes().endswith(b"later\n")
    FileLogStore(home).reader((1, 0, 1))
    assert (home / "logs/1/0/1/index").read_text() == f"0 {len(LOG)}\n0 6\n", "the index lists all of it"
    assert not (home / "logs/3").exists()
    assert list(home.glob("lost-logs/*/3/0/1/0.log"))
    with closing(sqlite3.connect(home / "perdure.db")) as conn:
        assert conn.execute("SELECT seq FROM sqlite_sequence WHERE name = 'job'").fetchone() == (3,)


def cut_off(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def flip_a_byte(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 0xFF]))


def replace_a_log(path: Path) -> None:
    """A whole archive whose content is not what its manifest says."""
    repack(path, lambda name, data: b"x" * len(data) if name.endswith("0.log") else data)


def drop_the_manifest(path: Path) -> None:
    repack(path, lambda name, data: None if name == MANIFEST else data)


def repack(path: Path, change: Callable[[str, bytes], bytes | None]) -> None:
    import io

    with tarfile.open(path) as old:
        members = [(info, old.extractfile(info).read()) for info in old]  # type: ignore[union-attr]
    with tarfile.open(path, "w:gz") as new:
        for info, data in members:
            if (changed := change(info.name, data)) is not None:
                new.addfile(info, io.BytesIO(changed))


def add_a_path_outside(path: Path) -> None:
    import io

    with tarfile.open(path) as old:
        members = [(info, old.extractfile(info).read()) for info in old]  # type: ignore[union-attr]
    with tarfile.open(path, "w:gz") as new:
        evil = tarfile.TarInfo("logs/../../evil")
        evil.size = 4
        new.addfile(evil, io.BytesIO(b"evil"))
        for info, data in members:
            new.addfile(info, io.BytesIO(data))


@pytest.mark.parametrize("damage", [cut_off, flip_a_byte, replace_a_log, drop_the_manifest, add_a_path_outside])
def test_restore__refuses_a_damaged_backup(home: Path, tmp_path: Path, damage: Callable[[Path], None]) -> None:
    make_backup(home, tmp_path / "one.backup")
    damage(tmp_path / "one.backup")
    with pytest.raises(BackupError, match="use another backup"):
        restore(tmp_path / "new", str(tmp_path / "one.backup"), lambda _text: None)
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["controller.lock"], "nothing was changed"
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize("point", [point for point in COMMAND_FAILPOINTS if point.startswith("backup.")])
def test_killed_backup__leaves_a_whole_one(home: Path, tmp_path: Path, point: str) -> None:
    target = tmp_path / "kept" / "one.backup"
    target.parent.mkdir()
    make_backup(home, target)
    old = target.read_bytes()
    add_job(home, finalized=False, upload=UPLOAD)
    done = run_command(home, "backup", "--to", str(target), failpoint=point)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert (target.read_bytes() == old) == (point == "backup.writing")
    restore(tmp_path / "new", str(target), lambda _text: None)
    assert len(jobs_of(tmp_path / "new")) == (2 if point == "backup.writing" else 3)
    make_backup(home, target)
    assert [path.name for path in target.parent.iterdir()] == ["one.backup"], "the next one cleared up"
    assert not list((home / ".backup").iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("point", [point for point in COMMAND_FAILPOINTS if point.startswith("restore.")])
def test_killed_restore__can_be_run_again(home: Path, tmp_path: Path, point: str) -> None:
    make_backup(home, tmp_path / "one.backup")
    new = tmp_path / "new"
    killed = run_command(new, "restore", "--source", str(tmp_path / "one.backup"), failpoint=point)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    if point != "restore.moved":
        started = run_command(new, "serve")
        assert (started.returncode, "a restore of" in started.stderr) == (2, True), started.stderr
    again = run_command(new, "restore", "--source", str(tmp_path / "one.backup"))
    assert again.returncode == 0, again.stderr
    check_restored(new, home)


def test_backup__to_a_folder_keeps_the_newest(home: Path, tmp_path: Path) -> None:
    folder = tmp_path / "backups"
    folder.mkdir()
    (folder / "mine.txt").touch()
    for second in range(4):
        (folder / f"perdure-new-2026010{second}T000000Z.perdure-backup").touch()
    (folder / "perdure-other-20200101T000000Z.perdure-backup").touch()
    back_up(read_settings(home, {}), str(folder), lambda _text: None, keep=2)
    names = sorted(path.name for path in folder.iterdir())
    assert (len(names), names[:2]) == (4, ["mine.txt", "perdure-new-20260103T000000Z.perdure-backup"])
    assert names[-1].startswith("perdure-other-"), "that of another installation stays"
    (folder / names[-1]).unlink()
    restore(tmp_path / "new", str(folder), lambda _text: None)
    check_restored(tmp_path / "new", home)


def test_backup__goes_to_a_bucket_and_back(home: Path, tmp_path: Path) -> None:
    bucket = home / "local/buckets/backups"
    bucket.mkdir(parents=True)
    back_up(read_settings(home, {}), "local://backups/a/b", lambda _text: None, keep=1)
    back_up(read_settings(home, {}), "local://backups/a/b", lambda _text: None, keep=1)
    (only,) = (bucket / "a/b").iterdir()
    new = tmp_path / "new"
    (new / "local/buckets").mkdir(parents=True)
    bucket.rename(new / "local/buckets/backups")
    restore(new, "local://backups/a/b", lambda _text: None)
    check_restored(new, home)
    with pytest.raises(BackupError, match="there is no bucket nowhere"):
        back_up(read_settings(home, {}), "local://nowhere/x", lambda _text: None)
    assert only.name.startswith("perdure-")


def test_second_backup__at_the_same_time_is_refused(home: Path, tmp_path: Path) -> None:
    (home / ".backup").mkdir()
    lock = os.open(home / ".backup", os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        with pytest.raises(BackupError, match="another backup of"):
            make_backup(home, tmp_path / "one.backup")
    finally:
        os.close(lock)


def test_damaged_database__is_not_backed_up(home: Path, tmp_path: Path) -> None:
    with (home / "perdure.db").open("r+b") as file:
        file.seek(4096 * 3)
        file.write(os.urandom(4096 * 8))
    with pytest.raises(BackupError, match=r"damaged|cannot be copied|cannot be read"):
        make_backup(home, tmp_path / "one.backup")
    assert not (tmp_path / "one.backup").exists()
