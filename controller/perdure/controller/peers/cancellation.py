"""Cancels jobs, which may belong to other controllers on the same database."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from sqlalchemy import Engine

from perdure.controller.peers import peer_messages
from perdure.controller.peers.peer_messages import InboxReader
from perdure.controller.runtime.clock import Clock
from perdure.controller.store.engine.database import UNAVAILABLE
from perdure.recovery.events import CancelRequested


@dataclass(frozen=True)
class JobCancellation:
    """`default_grace_s`: how long a job may save its work if the caller does not say; `speed`: of the clock."""

    database: Engine
    clock: Clock
    inbox: InboxReader
    default_grace_s: float
    speed: float

    def cancel(self, job_ids: Sequence[int], grace_s: float | None) -> None:
        """Cancel jobs. Raises what the database raises."""
        grace_s = self.default_grace_s if grace_s is None else grace_s
        event = CancelRequested(grace_s * self.speed)
        with self.database.begin() as conn:
            peer_messages.send_to_owners(conn, job_ids, event, self.clock.now())
        with suppress(*UNAVAILABLE):  # then the messages are read a little later
            self.inbox.poll()
