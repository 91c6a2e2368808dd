"""Removes what config.yaml says need not be kept for ever: timelines, logs and whole jobs that ended long ago.

```yaml
retention: {events_days: 90, logs_days: 30, jobs_days: 365}   # each null (for ever) unless it is set
```

The ticker calls it; each call does one piece, a short transaction at most, away from the thread that decides. Jobs that
have not settled are never touched. Uploads that no job names any more go with the jobs that did.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import structlog
from sqlalchemy import Connection, Engine

from perdure.controller.clock import Clock
from perdure.controller.files import Files
from perdure.controller.nodelogs import Logs
from perdure.controller.settings import RetentionSettings
from perdure.controller.store import removal
from perdure.controller.store.database import UNAVAILABLE

log = structlog.get_logger(__name__)

TICK_S = 1.0
REST_S = 3600.0
"""After everything was looked at, so long passes until the next look."""
UPLOAD_GRACE_S = 86_400.0
"""An upload that no job names is kept for so long after somebody sent it, or asked whether it is there."""

_DAY_S = 86_400.0
_ROWS = 500  # that one transaction removes
_JOBS = 50
_TASKS = 1_000  # that one piece looks at
_MOST_UPLOADS = 100_000
_DIGEST = re.compile("[0-9a-f]{64}")

Act = Callable[[Sequence[int], float], Iterator[None]]


@dataclass
class Retention:
    """What is removed, and how far that has come: `_work` stands still between two pieces."""

    settings: RetentionSettings
    database: Engine
    clock: Clock
    logs: Logs
    files: Files
    _work: Iterator[None] | None = None
    _rest_until: float = float("-inf")

    def tick(self) -> None:
        """Do the next piece. Raises nothing: what goes wrong is logged, and tried again after a rest."""
        if self._work is None:
            if self.clock.now() < self._rest_until:
                return
            self._work = self._everything()
        try:
            next(self._work)
        except StopIteration:
            self._rest()
        except (*UNAVAILABLE, OSError) as error:
            log.warning("retention.failed", error=str(error))
            self._rest()

    def _rest(self) -> None:
        self._work = None
        self._rest_until = self.clock.now() + REST_S

    def _everything(self) -> Iterator[None]:
        acts: tuple[tuple[float | None, Act], ...] = (
            (self.settings.jobs_days, self._drop_jobs),  # first: the rest of them is dropped along with them
            (self.settings.events_days, self._drop_events),
            (self.settings.logs_days, self._drop_logs),
        )
        for days, act in acts:
            if days is not None:
                yield from self._old_jobs(self.clock.now() - days * _DAY_S, act)
        if self.settings.jobs_days is not None:
            yield from self._drop_uploads()

    def _old_jobs(self, until: float, act: Act) -> Iterator[None]:
        """`act` on every settled job that ended before `until`, some jobs at a time."""
        for status in removal.STATUSES:
            place = removal.START
            while True:
                with self.database.connect() as conn:
                    found = removal.ended(conn, status, place, until, _TASKS)
                    ids = removal.settled(conn, sorted({job_id for _, job_id in found}), until)
                for start in range(0, len(ids), _JOBS):
                    yield from act(ids[start : start + _JOBS], until)
                yield
                if len(found) < _TASKS:
                    break
                place = found[-1]

    def _drop_events(self, ids: Sequence[int], _until: float) -> Iterator[None]:
        while self._removed(lambda conn: removal.drop_events(conn, ids, _ROWS)):
            yield

    def _drop_logs(self, ids: Sequence[int], _until: float) -> Iterator[None]:
        for job_id in ids:
            while self.logs.remove(job_id):
                yield

    def _drop_jobs(self, ids: Sequence[int], until: float) -> Iterator[None]:
        with self.database.connect() as conn:
            ids = removal.removable(conn, ids, until)
        yield from self._drop_logs(ids, until)
        yield from self._drop_events(ids, until)
        while self._removed(lambda conn: removal.drop_intents(conn, ids, _ROWS)):
            yield
        if count := self._removed(lambda conn: removal.drop_jobs(conn, ids, until)):
            log.info("retention.removed", jobs=count, first=ids[0], last=ids[-1])
            yield

    def _removed(self, act: Callable[[Connection], int]) -> int:
        """What `act` removed, in a transaction of its own; 0 while another daemon removes something."""
        with self.database.begin() as conn:
            return act(conn) if removal.is_mine(conn) else 0

    def _drop_uploads(self) -> Iterator[None]:
        """Every task is looked at first. A job that is accepted meanwhile asked for its uploads before: so each of
        them is looked at again in the moment in which it would be removed."""
        before = self.clock.now() - UPLOAD_GRACE_S
        unnamed = set(self.files.unused(before, _MOST_UPLOADS))
        after = (0, -1)
        while unnamed:
            with self.database.connect() as conn:
                found = removal.specs(conn, after, _TASKS)
            for job_id, index, spec in found:
                unnamed.difference_update(_DIGEST.findall(spec))
                after = (job_id, index)
            yield
            if len(found) < _TASKS:
                break
        for digest in sorted(unnamed):
            if self.files.remove(digest, before):
                log.info("retention.removed", upload=digest)
            yield
