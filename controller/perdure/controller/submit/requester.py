"""On whose behalf something is submitted."""

from __future__ import annotations

from dataclasses import dataclass

from perdure.controller.store.access.audit import Actor


@dataclass(frozen=True)
class Requester:
    """`user`: whose the new jobs are. `of`: the user whose things and uploads may be used; None: those of everybody.

    `for_owner`: a job on somebody else's cluster is the job of the cluster's owner, who pays for it; somebody else's
    schedule stays that user's when it is replaced.
    """

    user: str
    actor: Actor | None = None
    of: str | None = None
    for_owner: bool = False
    may_run_callbacks: bool = True
