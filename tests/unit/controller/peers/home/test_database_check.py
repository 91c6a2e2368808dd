"""A database that lacks something of its home's past is refused, until that is accepted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import Engine, text

from perdure.controller.peers import membership
from perdure.controller.peers.home import database_check
from perdure.controller.peers.home.record import FILE, HomeRecord
from perdure.controller.peers.home.watermark import Watermark
from perdure.controller.peers.membership import Membership
from perdure.controller.runtime.clock import SystemClock
from perdure.controller.runtime.config.settings import Settings, read_settings
from perdure.controller.store.records import facts, incarnations

INSERT = text(
    'INSERT INTO job (name, "user", priority, num_tasks, submitted_at, batch_rank, batch_size, lease_epoch, finalized) '
    "VALUES ('job', '', 0, 1, 0, 0, 1, 0, :finalized)"
)
Start = Callable[[str], Membership]


def settings_of(home: Path, database: Engine) -> Settings:
    url = database.url.render_as_string(hide_password=False) if database.dialect.name == "postgresql" else ""
    home.mkdir(exist_ok=True)
    return replace(read_settings(home, {}), database_url=url, keyring_folder=home.parent / "keyring")


@pytest.fixture
def start(database: Engine, tmp_path: Path) -> Start:
    """Start a controller on a home, as far as this subject goes. Raises StaleDatabase."""

    def call(name: str = "home") -> Membership:
        settings = settings_of(tmp_path / name, database)
        with database.connect() as conn:
            database_check.check(settings, conn)
        return membership.join(settings, SystemClock(), database, "http://here:1", speed=None)

    return call


def add_job(database: Engine, member: Membership) -> int:
    with database.begin() as conn:
        conn.execute(INSERT, {"finalized": False})
        job_id = incarnations.highest_job_id(conn)
    member.watermark.record_job(job_id)
    return job_id


def forget(database: Engine, *, watermark: str | None = None, everything: bool = False) -> None:
    """Make the database what an older copy of it was, or a new one."""
    with database.begin() as conn:
        if watermark is not None:
            facts.set(conn, "watermark", watermark)
        if everything:
            conn.execute(text("DELETE FROM meta"))
            conn.execute(text("DELETE FROM job"))
            if database.dialect.name == "sqlite":
                conn.execute(text("DELETE FROM sqlite_sequence"))
            else:
                conn.execute(text("ALTER SEQUENCE job_id_seq RESTART"))


def accept(database: Engine, home: Path) -> list[str]:
    said: list[str] = []
    with database.begin() as conn:
        record = database_check.accept(settings_of(home, database), conn, said.append)
    record.save(home)
    return said


def test_database__of_a_home_starts_again_and_again(start: Start, database: Engine, tmp_path: Path) -> None:
    first = start("home")
    assert add_job(database, first) == 1
    assert first.watermark.advance()
    again = start("home")
    assert again.keyring.incarnations == first.keyring.incarnations
    record = HomeRecord.load(tmp_path / "home")
    assert record is not None
    assert (record.highest_job, record.controller) == (1, first.controller_id)


def test_older_database__is_refused_by_its_watermark(start: Start, database: Engine, tmp_path: Path) -> None:
    member = start("home")
    add_job(database, member)
    assert member.watermark.advance()
    forget(database, watermark="1")
    with pytest.raises(
        database_check.StaleDatabase, match=r"is older than this home(.|\n)*every change to jobs up to 1 "
    ):
        start("home")
    accept(database, tmp_path / "home")
    start("home")


def test_empty_database__is_refused_if_there_were_jobs(start: Start, database: Engine, tmp_path: Path) -> None:
    member = start("home")
    forget(database, everything=True)
    member = start("home")
    for _ in range(3):
        add_job(database, member)
    forget(database, everything=True)
    with pytest.raises(database_check.StaleDatabase, match=r"is empty(.|\n)*jobs 1 to 3: "):
        start("home")
    assert accept(database, tmp_path / "home") == ["the next job gets the id 4"]
    again = start("home")
    assert again.controller_id == member.controller_id, "the sweep finds the machines of the lost jobs"
    assert add_job(database, again) == 4


def test_attempt_tokens__of_a_lost_incarnation_are_invalid(start: Start, database: Engine, tmp_path: Path) -> None:
    member = start("home")
    add_job(database, member)
    for _ in range(2):
        member.watermark.record_job(2)  # a job that the older copy does not have
    task = (
        'INSERT INTO task (job_id, "index", name, task_id, status, config, spec, requirements, recovery, num_nodes, '
        "state, reason, message, next_generation, recovery_count, restarts_on_errors, consecutive_refusals, has_run, "
        "run_seconds, storage_ready, storage_requested) VALUES (1, 0, '', 't', 'RUNNING', '{}', '{}', '[]', '{}', 1, "
        "'RUNNING', 'JOB_SUBMITTED', '', 3, 0, 0, 0, false, 0, true, false)"
    )
    with database.begin() as conn:
        conn.execute(text(task))
    known, lost = (1, 0, 2), [(1, 0, 3), (2, 0, 1)]
    tokens = {key: member.keyring.attempt_token(key) for key in (known, *lost)}
    launches = {key: member.keyring.incarnations.launch_token("c", key) for key in (known, *lost)}
    accept(database, tmp_path / "home")
    again = start("home").keyring
    assert again.verify_attempt_token(tokens[known]) == known, "an attempt that the copy has goes on"
    assert again.incarnations.launch_token("c", known) == launches[known]
    new = [(1, 0, 3), (3, 0, 1)]
    assert again.verify_attempt_token(tokens[lost[0]]) is None
    assert again.signed_attempt(tokens[lost[0]]) == lost[0], "the machine can still be named"
    assert again.incarnations.launch_token("c", new[0]) != launches[lost[0]]
    assert all(again.verify_attempt_token(again.attempt_token(key)) == key for key in new)


def test_second_home__follows_what_the_first_accepted(start: Start, database: Engine, tmp_path: Path) -> None:
    if database.dialect.name == "sqlite":
        pytest.skip("a SQLite database has one home")
    first, second = start("home"), start("second")
    add_job(database, first)
    assert first.watermark.advance()
    assert second.watermark.advance()
    forget(database, watermark="1")
    for name in ("home", "second"):
        with pytest.raises(database_check.StaleDatabase):
            start(name)
    accept(database, tmp_path / "home")
    assert start("home").keyring.incarnations == start("second").keyring.incarnations


def test_other_database__is_refused(start: Start, tmp_path: Path, database: Engine) -> None:
    member = start("home")
    add_job(database, member)
    path = tmp_path / "home" / FILE
    path.write_text(path.read_text().replace(member.keyring.incarnations.current, "other0"))
    with pytest.raises(database_check.StaleDatabase, match="is another one than that of this home"):
        start("home")


def test_watermark__notices_that_its_database_was_replaced(start: Start, database: Engine) -> None:
    mark: Watermark = start("home").watermark
    assert mark.advance()
    forget(database, watermark="1")
    assert not mark.advance()


def test_damaged_record__is_as_none(start: Start, database: Engine, tmp_path: Path) -> None:
    job_id = add_job(database, start("home"))
    before = HomeRecord.load(tmp_path / "home")
    (tmp_path / "home" / FILE).write_text("{")
    assert start("home").watermark.advance()
    after = HomeRecord.load(tmp_path / "home")
    assert before is not None
    assert after is not None, "the next start writes another"
    assert (after.controller, after.incarnation) == (before.controller, before.incarnation)
    assert after.highest_job == job_id


def test_logs__reveal_an_empty_database_without_a_record(start: Start, database: Engine, tmp_path: Path) -> None:
    if database.dialect.name == "postgresql":
        pytest.skip("with PostgreSQL, logs are in the database")
    (tmp_path / "home/logs/7/0/1").mkdir(parents=True)
    (tmp_path / "home/logs/7/0/1/0.log").write_text("old\n")
    with pytest.raises(database_check.StaleDatabase, match="jobs 1 to 7"):
        start("home")
    said = accept(database, tmp_path / "home")
    assert said[-1] == "the next job gets the id 8"
    assert [path.read_text() for path in (tmp_path / "home").glob("lost-logs/*/7/0/1/0.log")] == ["old\n"]


@pytest.mark.parametrize("text", ["", "[[[", "[" * 100_000, "{}", "\x00"])
def test_unreadable_record__is_as_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "installation.json").write_text(text)
    assert HomeRecord.load(tmp_path) is None
