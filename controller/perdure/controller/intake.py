"""Where jobs come in: those of users who call at the same time are accepted together, and taken up."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.controller.courtesy import Courtesy
from perdure.controller.gathering import Gathering
from perdure.controller.reconcile import Reconciler
from perdure.controller.refusing import FallenBehind
from perdure.controller.submission import Accepted, Submission, Submissions

# With more than this to decide on, the reconciler is some seconds behind: new jobs would make it later for all.
_OVERLOADED = 5_000


class Intake:
    """Accepts jobs and hands them to `reconciler`, which owes `courtesy` to those who wait for it."""

    def __init__(self, submissions: Submissions, reconciler: Reconciler) -> None:
        self._submissions = submissions
        self._reconciler = reconciler
        self.courtesy = Courtesy()
        self._asked: Gathering[Submission, Accepted] = Gathering("intake", self.take_all)

    async def take(self, asked: Submission) -> Accepted:
        """Accept a job. Raises what `Submissions.accept` raises, and FallenBehind."""
        if self._reconciler.backlog() > _OVERLOADED:
            behind = "the controller has fallen behind and takes no new jobs for the moment; those it has are safe"
            raise FallenBehind(behind, fix="launch it again in a while", status=503)
        with self.courtesy:
            return await self._asked.ask(asked)

    def take_all(self, asked: Sequence[Submission]) -> list[Accepted | Exception]:
        """Each one's answer, or what `take` would raise."""
        answers = self._submissions.accept_all(asked)
        for answer in answers:
            if isinstance(answer, Accepted) and answer.claims:
                self._reconciler.adopt(answer.claims, answer.views)
        return answers
