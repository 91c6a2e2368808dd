"""Keeps installation.json up to date while a controller runs, and notices when its database is replaced."""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import structlog
from sqlalchemy import Engine

from perdure.controller.peers.home.record import HomeRecord
from perdure.controller.runtime.clock import Clock
from perdure.controller.runtime.failpoints import failpoint
from perdure.controller.store.records import incarnations

log = structlog.get_logger(__name__)

INTERVAL_S = 10.0


class Watermark:
    """The home's record of its database."""

    def __init__(self, home: Path, database: Engine, wall_clock: Clock, record: HomeRecord) -> None:
        self._home = home
        self._database = database
        self._wall_clock = wall_clock
        self._record = record
        self._lock = threading.Lock()

    def advance(self) -> bool:
        """Advance the watermark, in the database and then in the home. Raises what the database raises.

        False if the database is another one than before, or an older copy of it.
        """
        with self._lock:
            before = self._record
            with self._database.begin() as conn:
                current = incarnations.load(conn).current
                if current != before.incarnation or incarnations.watermark(conn) < before.watermark:
                    log.critical("database.replaced", incarnation=current, expected=before.incarnation)
                    return False
                watermark, highest = incarnations.advance(conn), incarnations.highest_job_id(conn)
            failpoint("watermark.advanced")
            highest = max(before.highest_job, highest)
            self._save(replace(before, watermark=watermark, at=self._wall_clock.now(), highest_job=highest), sync=True)
            return True

    def record_job(self, job_id: int) -> None:
        """Remember that this id was given to a job."""
        with self._lock:
            if job_id > self._record.highest_job:
                self._save(replace(self._record, highest_job=job_id), sync=False)

    def _save(self, record: HomeRecord, *, sync: bool) -> None:
        self._record = record
        with suppress(OSError):  # on a full disk, the next one is written
            record.save(self._home, sync=sync)
