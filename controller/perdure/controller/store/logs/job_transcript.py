"""The transcript of one job, or of one of its tasks or attempts, with what the database says about the attempts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import Engine, Row

from perdure.controller.store.logs.protocol import LogStore
from perdure.controller.store.logs.transcript import AttemptInfo, Transcript, TranscriptPart
from perdure.controller.store.queries import job_listing
from perdure.controller.store.queries.log_attempts import load_log_attempts, load_refusals, load_stops
from perdure.recovery.market.slot_queue import SLOT_CLOUD
from perdure.recovery.reasons import PREEMPTIONS
from perdure.recovery.statuses import AttemptState, Status

_ENDED = (AttemptState.STOPPED, AttemptState.GONE)


class JobTranscript:
    """Reads one job's transcript piece by piece.

    `refresh`, `read_new` and `new_parts` query the database, so they need a worker thread; so does `read_current`,
    unless `has_buffered`. `attempt`: only the attempts with this number.
    """

    def __init__(
        self, database: Engine, logs: LogStore, job_id: int, task: int | None = None, attempt: int | None = None
    ) -> None:
        self.job_id = job_id
        self.key = (job_id, task, attempt)
        self._database = database
        self._logs = logs
        self._task = task
        self._attempt = attempt
        self._attempts: list[AttemptInfo] = []
        self._without_reason: set[tuple[int, int]] = set()
        self._refusals: dict[tuple[int, int], str] = {}
        self._lost_slots: set[tuple[int, int]] = set()
        self._stops: set[tuple[int, int]] = set()
        self._transcript = Transcript(logs, lambda: self._attempts)

    def copy(self) -> JobTranscript:
        """Another one, which continues where this one stands. `refresh` it first."""
        other = JobTranscript(self._database, self._logs, self.job_id, self._task, self._attempt)
        other._transcript = self._transcript.copy(lambda: other._attempts)
        return other

    def known_tasks(self) -> list[int]:
        """The numbers of the job's tasks."""
        return sorted({row.task_index for row in load_log_attempts(self._database, self.job_id)})

    def known_attempts(self) -> list[int]:
        """The numbers of the attempts that the job, or the task, has had."""
        rows = [row for row in load_log_attempts(self._database, self.job_id) if self._is_of_task(row)]
        return sorted({row.generation for row in rows if row.generation is not None})

    def read_new(self) -> Iterator[bytes]:
        """The output since the last call, up to the state of the last `refresh`."""
        return self._transcript.read_new()

    def read_current(self) -> Iterator[bytes]:
        """`Transcript.read_current`."""
        return self._transcript.read_current()

    def new_parts(self) -> Iterator[TranscriptPart]:
        """`read_new` in parts whose origins are known."""
        return self._transcript.new_parts()

    @property
    def has_buffered(self) -> bool:
        return self._transcript.has_buffered

    def refresh(self) -> bool:
        """Load the job's attempts. Returns whether all tasks, or the attempts asked for, have ended: the log is final.

        Call it before the log is read, so that nothing is missed.
        """
        rows = load_log_attempts(self._database, self.job_id)
        has_several = len({row.task_index for row in rows}) > 1
        shown = [row for row in rows if self._is_of_task(row) and self._attempt in (None, row.generation)]
        self._load_refusals(shown)
        self._load_stops(shown)
        self._attempts = [self._info(row, has_several) for row in shown if _is_shown(row)]
        is_final = all(Status(row.status).is_terminal for row in shown)
        return is_final or (self._attempt is not None and all(row.state in _ENDED for row in shown))

    def _is_of_task(self, row: Row[Any]) -> bool:
        return self._task in (None, row.task_index)

    def _load_refusals(self, rows: Sequence[Row[Any]]) -> None:
        """Load why clouds refused attempts, if one ended since the last call without a reason of its own."""
        ended = {(r.task_index, r.generation) for r in rows if r.state in _ENDED and r.reason is None}
        if ended - self._without_reason:
            self._without_reason = ended
            self._refusals = load_refusals(self._database, self.job_id)

    def _load_stops(self, rows: Sequence[Row[Any]]) -> None:
        """Load which slots were lost because the cluster was stopped, if one was lost since the last call."""
        lost = {(r.task_index, r.generation) for r in rows if _is_on_slot(r) and r.reason in PREEMPTIONS}
        if lost - self._lost_slots:
            self._lost_slots = lost
            self._stops = load_stops(self._database, self.job_id)

    def _info(self, row: Row[Any], has_several: bool) -> AttemptInfo:
        offer, reason = row.offer, row.reason
        where = f"{offer['cloud']}/{offer['region']}/{offer['zone']} {offer['instance_type']} {offer['market']}"
        if _is_on_slot(row):
            where = f"cluster {offer['region']}"
            if (row.task_index, row.generation) in self._stops and reason in PREEMPTIONS:
                reason = f"{where} was stopped"
        return AttemptInfo(
            key=(self.job_id, row.task_index, row.generation),
            num_nodes=row.nodes,
            where=where,
            requested_at=job_listing.iso(row.requested_at) or "",
            task_name=row.name if has_several else "",
            has_ended=row.state in _ENDED,
            reason=reason,
            refusal=self._refusals.get((row.task_index, row.generation)),
        )


def _is_on_slot(row: Row[Any]) -> bool:
    return row.generation is not None and row.offer["cloud"] == SLOT_CLOUD


def _is_shown(row: Row[Any]) -> bool:
    """Whether the log has the attempt. A slot that is refused, since another job has taken it, means waiting longer."""
    return row.generation is not None and not (_is_on_slot(row) and row.booted_at is None)
