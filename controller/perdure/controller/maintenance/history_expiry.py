"""Deletes timelines, logs and whole jobs that ended longer ago than config.yaml says, old entries of the audit log, and
the metrics of nodes.

```yaml
retention: {events_days: 90, logs_days: 30, jobs_days: 365}   # each null (kept for ever) by default
retention: {audit_days: 400, metrics_days: 30}                # of the audit log, of nodes' metrics; these are defaults
```

The ticker calls it, and `store.records.expiry` deletes the rows. Each call does one piece of work, at most one short
transaction, outside of the reconcile thread. Jobs that are not finalized are never touched. Uploads are deleted when no
remaining job refers to them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import structlog
from sqlalchemy import Connection, Engine, func, select

from perdure.controller.runtime.clock import Clock
from perdure.controller.runtime.config.settings import RetentionSettings
from perdure.controller.store.access import audit, owners
from perdure.controller.store.blobs import BlobStore
from perdure.controller.store.engine.database import UNAVAILABLE
from perdure.controller.store.logs.protocol import LogStore
from perdure.controller.store.logs.series import node_metrics
from perdure.controller.store.records import expiry, facts, jobs
from perdure.controller.store.records.jobs import Job

log = structlog.get_logger(__name__)

TICK_S = 1.0
IDLE_INTERVAL_S = 3600.0
"""The pause after a complete pass, and after an error."""
UPLOAD_GRACE_S = 86_400.0
"""An upload that no job refers to is kept this long after it was last sent or requested."""
MAX_METRICS = 200_000
"""Nodes whose metrics are kept: some KB each, and at most 45 (`metric_series`)."""

_DAY_S = 86_400.0
_ROW_BATCH_SIZE = 500  # rows deleted in one transaction
_JOB_BATCH_SIZE = 50
_TASK_BATCH_SIZE = 1_000  # tasks read in one query
_MAX_UPLOADS = 100_000
_SECRETS_CLEARED = "secrets.cleared"  # a fact: the last job of which an earlier version may have kept secrets
_DIGEST = re.compile("[0-9a-f]{64}")

Delete = Callable[[Sequence[int], float], Iterator[None]]


@dataclass
class HistoryExpiry:
    """Deletes what is too old. Between two pieces of work, the generator `_work` keeps the position."""

    settings: RetentionSettings
    database: Engine
    clock: Clock
    logs: LogStore
    blobs: BlobStore
    _work: Iterator[None] | None = None
    _idle_until: float = float("-inf")

    def tick(self) -> None:
        """Do the next piece. Raises nothing: errors are logged, and the pass starts again after a pause."""
        if self._work is None:
            if self.clock.now() < self._idle_until:
                return
            self._work = self._everything()
        try:
            next(self._work)
        except StopIteration:
            self._go_idle()
        except (*UNAVAILABLE, OSError) as error:
            log.warning("retention.failed", error=str(error))
            self._go_idle()

    def _go_idle(self) -> None:
        self._work = None
        self._idle_until = self.clock.now() + IDLE_INTERVAL_S

    def _everything(self) -> Iterator[None]:
        yield from self._clear_secrets()
        passes: tuple[tuple[float | None, Delete], ...] = (
            (self.settings.jobs_days, self._delete_jobs),  # first, because it deletes their events and logs as well
            (self.settings.events_days, self._delete_events),
            (self.settings.logs_days, self._delete_logs),
        )
        for days, delete in passes:
            if days is not None:
                yield from self._old_jobs(self.clock.now() - days * _DAY_S, delete)
        if self.settings.jobs_days is not None:
            yield from self._delete_clusters(self.clock.now() - self.settings.jobs_days * _DAY_S)
            yield from self._delete_uploads()
        if self.settings.audit_days is not None:
            yield from self._delete_audit(self.clock.now() - self.settings.audit_days * _DAY_S)
        yield from self._delete_metrics()

    def _delete_audit(self, before: float) -> Iterator[None]:
        while self._in_transaction(lambda conn: audit.delete_before(conn, before, _ROW_BATCH_SIZE)):
            yield

    def _delete_metrics(self) -> Iterator[None]:
        """Delete what is too old, and the oldest beyond a fixed number, so that the table has a bounded size."""
        if self.settings.metrics_days is not None:
            before = self.clock.now() - self.settings.metrics_days * _DAY_S
            while self._in_transaction(lambda conn: node_metrics.delete_before(conn, before, _ROW_BATCH_SIZE)):
                yield
        while self._in_transaction(lambda conn: node_metrics.delete_beyond(conn, MAX_METRICS, _ROW_BATCH_SIZE)):
            yield

    def _clear_secrets(self) -> Iterator[None]:
        """Delete the secrets of jobs that ended under a version which kept them, once for each database. Now the
        transaction that finalizes a job deletes them."""
        with self.database.connect() as conn:
            if facts.get(conn, _SECRETS_CLEARED) is not None:
                return
            last = conn.execute(select(func.max(Job.c.id))).scalar() or 0
        for first in range(1, last + 1, _TASK_BATCH_SIZE):
            with self.database.begin() as conn:
                jobs.clear_secrets_of_ended(conn, first, first + _TASK_BATCH_SIZE - 1)
            yield
        with self.database.begin() as conn:
            facts.set(conn, _SECRETS_CLEARED, str(last))

    def _old_jobs(self, until: float, delete: Delete) -> Iterator[None]:
        """Apply `delete` to every finalized job that ended before `until`, in batches."""
        for status in expiry.STATUSES:
            place = expiry.START
            while True:
                with self.database.connect() as conn:
                    ended = expiry.ended_tasks(conn, status, place, until, _TASK_BATCH_SIZE)
                    ids = expiry.finalized(conn, sorted({job_id for _, job_id in ended}), until)
                for start in range(0, len(ids), _JOB_BATCH_SIZE):
                    yield from delete(ids[start : start + _JOB_BATCH_SIZE], until)
                yield
                if len(ended) < _TASK_BATCH_SIZE:
                    break
                place = ended[-1]

    def _delete_clusters(self, until: float) -> Iterator[None]:
        while count := self._in_transaction(lambda conn: expiry.delete_clusters(conn, until, _ROW_BATCH_SIZE)):
            log.info("retention.removed", clusters=count)
            yield

    def _delete_events(self, ids: Sequence[int], _until: float) -> Iterator[None]:
        while self._in_transaction(lambda conn: expiry.delete_events(conn, ids, _ROW_BATCH_SIZE)):
            yield

    def _delete_logs(self, ids: Sequence[int], _until: float) -> Iterator[None]:
        for job_id in ids:
            while self.logs.remove(job_id):
                yield

    def _delete_jobs(self, ids: Sequence[int], until: float) -> Iterator[None]:
        with self.database.connect() as conn:
            ids = expiry.removable(conn, ids, until)
        yield from self._delete_logs(ids, until)
        yield from self._delete_events(ids, until)
        while self._in_transaction(lambda conn: expiry.delete_intents(conn, ids, _ROW_BATCH_SIZE)):
            yield
        if count := self._in_transaction(lambda conn: expiry.delete_jobs(conn, ids, until)):
            log.info("retention.removed", jobs=count, first=ids[0], last=ids[-1])
            yield

    def _in_transaction(self, delete: Callable[[Connection], int]) -> int:
        """Run `delete` in a transaction. Returns its count; 0 while another controller is deleting."""
        with self.database.begin() as conn:
            return delete(conn) if expiry.try_lock(conn) else 0

    def _delete_uploads(self) -> Iterator[None]:
        """Delete uploads that no task refers to. A job that is accepted meanwhile has touched its uploads first, and
        `BlobStore.remove` checks for that."""
        before = self.clock.now() - UPLOAD_GRACE_S
        unused = set(self.blobs.expired(before, _MAX_UPLOADS))
        after = (0, -1)
        while unused:
            with self.database.connect() as conn:
                specs = expiry.task_specs(conn, after, _TASK_BATCH_SIZE)
            for job_id, index, spec in specs:
                unused.difference_update(_DIGEST.findall(spec))
                after = (job_id, index)
            yield
            if len(specs) < _TASK_BATCH_SIZE:
                break
        for digest in sorted(unused):
            if self.blobs.remove(digest, before):
                with self.database.begin() as conn:
                    owners.forget_upload(conn, digest)
                log.info("retention.removed", upload=digest)
            yield
