"""Refuses a database that lacks something of its home's past: an older copy, an empty one, or one that lost its WAL.

`accept` makes such a database the home's own: it begins a new incarnation, so that nothing of the lost past can be
mistaken for something new.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from sqlalchemy import Connection, select

from perdure.controller.peers.home.record import HomeRecord, highest_logged_job
from perdure.controller.runtime.config.config_file import SettingsError
from perdure.controller.runtime.config.settings import Settings
from perdure.controller.runtime.security.incarnations import Incarnations
from perdure.controller.store.engine.database_url import redacted
from perdure.controller.store.records import facts, incarnations
from perdure.controller.store.records.jobs import Attempt

ACCEPT = "perdure controller accept-database"
LOST_LOGS = "lost-logs"
RESTORE = ".restore"
"""Exists while a restore is under way; see `peers.home.backup.restore`."""


class StaleDatabase(SettingsError):
    """The database lacks something of its home's past. The text says what, and what to do."""


@dataclass(frozen=True)
class Loss:
    """What a database lacks."""

    what: str  # what it is, in comparison with the home
    lost: tuple[str, ...]  # what is lost with it, in sentences


def check_file(settings: Settings) -> None:
    """Refuse a SQLite database that is missing or empty although jobs were accepted. Call it before the file is opened.

    Raises StaleDatabase.
    """
    if not settings.is_single_controller:
        return
    path = Path(settings.database_address.removeprefix("sqlite:///"))
    if (settings.home / RESTORE).exists() and not path.exists():
        raise StaleDatabase(
            f"a restore of {settings.home} was interrupted; run it again: perdure controller restore <backup>"
        )
    state = "is missing" if not path.exists() else "is empty" if path.stat().st_size == 0 else None
    highest = _highest_known(settings, HomeRecord.load(settings.home))
    if state and highest:
        raise _stale(settings, Loss(state, _lost_jobs(0, highest)))


def check(settings: Settings, conn: Connection) -> None:
    """Refuse a database that lacks something of the past of this home. Raises StaleDatabase."""
    if (loss := find_loss(settings, conn)) is not None:
        raise _stale(settings, loss)


def find_loss(settings: Settings, conn: Connection) -> Loss | None:
    """What the database lacks of the past of this home; None if it lacks nothing."""
    record, known = HomeRecord.load(settings.home), incarnations.load(conn)
    here, there = _highest_known(settings, record), incarnations.highest_job_id(conn)
    lost_jobs = _lost_jobs(there, here)
    if not here:
        return None  # this home had no jobs
    if record is None or (known.knows(record.incarnation) and record.incarnation != known.current):
        # A new home, or one whose past was accepted as lost by another controller.
        return Loss("has none of the last jobs", lost_jobs) if there < here and settings.is_single_controller else None
    if not known.history:
        return Loss("is empty" if there == 0 else "is older than this home", lost_jobs)
    if record.incarnation != known.current:
        return Loss("is another one than that of this home", (*lost_jobs, _changes(record, there)))
    if incarnations.watermark(conn) < record.watermark or there < here:
        return Loss("is older than this home", (*lost_jobs, _changes(record, there)))
    return None


def accept(settings: Settings, conn: Connection, report: Callable[[str], None]) -> HomeRecord:
    """Make this database that of the home, without what it lacks. No controller may run on it.

    The caller commits, and saves the record that is returned afterwards. Logs of attempts that the database does not
    know are moved to `lost-logs`.
    """
    record = HomeRecord.load(settings.home)
    first_job_id = max(_highest_known(settings, record), incarnations.highest_job_id(conn)) + 1
    replaces = record.incarnation if record else incarnations.load(conn).current
    begun = incarnations.begin(conn, first_job_id=first_job_id, replaces=replaces)
    controller = facts.get_or_create(conn, "controller", record.controller if record else uuid.uuid4().hex[:12])
    if settings.is_single_controller:
        _set_lost_logs_aside(settings.home, conn, replaces or begun.current, report)
    watermark = incarnations.advance(conn, record.watermark if record else 0)
    report(f"the next job gets the id {first_job_id}")
    return HomeRecord(controller, begun.current, watermark, record.at if record else 0.0, first_job_id - 1)


def begin_if_new(settings: Settings, conn: Connection) -> Incarnations:
    """The incarnations of a database that was checked. The first controller begins the first one."""
    known = incarnations.lock(conn)
    if known.history:
        return known
    highest = max(_highest_known(settings, HomeRecord.load(settings.home)), incarnations.highest_job_id(conn))
    return incarnations.begin(conn, first_job_id=highest + 1)


def _highest_known(settings: Settings, record: HomeRecord | None) -> int:
    logged = highest_logged_job(settings.home) if settings.is_single_controller else 0
    return max(record.highest_job if record else 0, logged)


def _lost_jobs(there: int, here: int) -> tuple[str, ...]:
    if there >= here:
        return ()
    jobs = f"job {here}" if there + 1 == here else f"jobs {there + 1} to {here}"
    return (f"{jobs}: their status, timelines and secrets; their machines are named and then terminated",)


def _changes(record: HomeRecord, there: int) -> str:
    until = datetime.fromtimestamp(record.at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return (
        f"every change to jobs up to {there} between the making of this copy and {until}"
        if there
        else (f"every change until {until}")
    )


def _stale(settings: Settings, loss: Loss) -> StaleDatabase:
    lost = "".join(f"\n  - {sentence}" for sentence in loss.lost)
    return StaleDatabase(
        f"the database {redacted(settings.database_address)} {loss.what}; nothing was changed. Put the newest copy "
        "there (of SQLite: the files -wal and -shm, too), or accept this one with:\n"
        f"  {ACCEPT}\nwhich loses for good:{lost}"
    )


def _set_lost_logs_aside(home: Path, conn: Connection, lost: str, report: Callable[[str], None]) -> None:
    """Move logs that a new attempt would continue: those of attempts that the database does not know."""
    columns = (Attempt.c.job_id, Attempt.c.task_index, Attempt.c.generation)
    known = {tuple(str(part) for part in row) for row in conn.execute(select(*columns))}
    count = 0
    for folder in sorted((home / "logs").glob("*/*/*")):
        if (key := folder.parts[-3:]) in known:
            continue
        target = home.joinpath(LOST_LOGS, lost, *key)
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not target.exists():
            folder.rename(target)
            count += 1
    for empty in [*(home / "logs").glob("*/*"), *(home / "logs").glob("*")]:
        if empty.is_dir() and not any(empty.iterdir()):
            empty.rmdir()
    if count:
        report(f"the logs of {count} lost attempts were moved to {home / LOST_LOGS / lost}")
