"""Admission of new jobs: concurrent submissions are accepted in one transaction, or rejected under overload.

`service` stores them; the new jobs are handed to `reconcile.inbox`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from perdure.controller.reconcile.inbox import ReconcilerInbox
from perdure.controller.runtime.batcher import Batcher
from perdure.controller.runtime.request_priority import RequestPriorityGate
from perdure.controller.submit.errors import Overloaded
from perdure.controller.submit.service import Accepted, Submission, SubmissionService

# With more events than this to decide on, the reconciler is some seconds behind. New jobs would delay all others.
_BACKLOG_LIMIT = 5_000

AcceptAll = Callable[[Sequence[Submission]], Sequence[Accepted | Exception]]


def accept_and_adopt(
    service: SubmissionService,
    inbox: ReconcilerInbox,
    record_job: Callable[[int], None],
    submissions: Sequence[Submission],
) -> list[Accepted | Exception]:
    """Accept submissions and hand the new jobs to the reconciler. A result that is an exception rejects its own.

    `record_job`: called with the highest id of the accepted jobs.
    """
    results = service.accept_all(submissions)
    if accepted := [job_id for result in results if isinstance(result, Accepted) for job_id in result.job_ids]:
        record_job(max(accepted))
    for result in results:
        if isinstance(result, Accepted) and result.claims:
            inbox.adopt(result.claims, result.views)
    return results


def accept_one(accept_all: AcceptAll, submission: Submission) -> Accepted:
    """Accept a submission without waiting for others. Raises what `SubmissionService.accept` raises."""
    (result,) = accept_all([submission])
    if isinstance(result, Exception):
        raise result
    return result


class SubmissionBatcher:
    """Collects concurrent submissions and passes each batch to `accept_all`, from a thread of its own."""

    def __init__(self, accept_all: AcceptAll, backlog: Callable[[], int]) -> None:
        """`backlog`: how many events wait for the reconciler."""
        self._backlog = backlog
        #: Held while a user waits for a submission: the reconciler yields to it.
        self.request_priority = RequestPriorityGate()
        self._batcher: Batcher[Submission, Accepted] = Batcher("submissions", accept_all)

    async def submit(self, submission: Submission) -> Accepted:
        """Accept a job. Raises what `SubmissionService.accept` raises, and Overloaded."""
        if self._backlog() > _BACKLOG_LIMIT:
            message = "the controller is overloaded and accepts no new jobs for now; existing jobs are not affected"
            raise Overloaded(message, fix="launch it again in a while", status=503)
        with self.request_priority:
            return await self._batcher.submit(submission)
