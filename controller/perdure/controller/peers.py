"""What a daemon does because it is not alone on its database: letters, rounds, and waking at what others say."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence

from sqlalchemy import Engine

from perdure.controller.attendance import Attendance
from perdure.controller.changes import Changes
from perdure.controller.channel import Channel
from perdure.controller.clock import Clock
from perdure.controller.mail import Incoming, Outgoing
from perdure.controller.market import Market
from perdure.controller.ownership import Ownership
from perdure.controller.reconcile import Reconciler
from perdure.controller.rounds import Rounds
from perdure.controller.store import letters
from perdure.controller.store.wake import Topic
from perdure.controller.watch import Watch


class Peers:
    """Everything that reaches this daemon for another's jobs goes on to that one, and the other way round."""

    def __init__(
        self,
        *,
        database: Engine,
        clock: Clock,
        attendance: Attendance,
        reconciler: Reconciler,
        channel: Channel,
        ownership: Ownership,
        market: Market,
        changes: Changes,
        incoming: Incoming,
        monotonic: Callable[[], float] = time.monotonic,
        has_written: Callable[[int], bool] = lambda _process_id: False,
    ) -> None:
        self._database = database
        self._reconciler = reconciler
        self._channel = channel
        self._ownership = ownership
        self._market = market
        self._changes = changes
        self._outgoing = Outgoing(database, clock)
        self._rounds = Rounds(database, reconciler, channel, attendance, monotonic)
        self._watch = Watch(incoming.look, self._some, self._round, monotonic, has_written)
        incoming.when_read = self._watch.poke
        reconciler.forward = self._outgoing.forward

    def start(self, url: str) -> None:
        self._watch.start(url, self._told)

    def stop(self) -> None:
        self._watch.stop()
        self._outgoing.close()

    def _some(self, jobs: Collection[int]) -> None:
        own = {job_id for job_id in jobs if self._reconciler.view(job_id) is not None}
        self._rounds.nodes(set(jobs) - own)
        self._rounds.silences(own)

    def _round(self) -> None:
        self._rounds.nodes()
        self._rounds.silences()
        with self._database.begin() as conn:
            self._market.load(conn)
            letters.drop_settled(conn)

    def _told(self, topic: Topic, jobs: Sequence[int]) -> None:
        if topic is Topic.LOG:  # many, and all the same to whoever has the job
            for job_id in jobs:
                self._changes.grew(job_id)
            return
        own = [job_id for job_id in jobs if self._reconciler.view(job_id) is not None]
        match topic:
            case Topic.JOB:
                for job_id in jobs:
                    self._changes.tell(job_id)
                if len(own) < len(jobs):
                    self._watch.poke(set(jobs) - set(own))
            case Topic.LETTER:
                if own:
                    self._watch.poke()
            case Topic.SILENCE:
                if own:
                    self._watch.poke(own)
            case Topic.CLAIM:
                self._ownership.tick()
