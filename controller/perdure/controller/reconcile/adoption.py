"""Takes over the jobs of a claim: after a restart, from a controller that died, or just accepted.

It loads what the database holds about them, continues their open intents, and reports the nodes that do not reconnect
in time. What follows for a job whose node is missing is decided like any other loss (`recovery.rules.machine_loss`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import structlog
from sqlalchemy import Engine

from perdure.controller.reconcile import work_items
from perdure.controller.reconcile.inbox import OwnedJobs
from perdure.controller.reconcile.work_items import AdoptJobs, JobEvent, RecheckOwnership, ReconnectDeadline, TimedItem
from perdure.controller.runtime.clock import Clock
from perdure.controller.runtime.failpoints import failpoint
from perdure.controller.store.engine.database import UNAVAILABLE
from perdure.controller.store.records import agent_connections, intents, job_claims, jobs
from perdure.controller.store.records.intents import Intent
from perdure.controller.store.records.job_claims import Claim, LeaseLost
from perdure.recovery.heartbeat_interval import RECONNECT_S, reconnect_spread_s
from perdure.recovery.job import JobView

log = structlog.get_logger(__name__)


class Adoption:
    """What the loop does with claims. For the reconcile thread; the callables are those of the loop.

    `speed`: of `clock`, relative to real time. Every method raises what the database raises; then it has changed
    nothing, and the command may be run again.
    """

    def __init__(
        self,
        database: Engine,
        clock: Clock,
        owned: OwnedJobs,
        speed: float,
        *,
        start_intents: Callable[[Sequence[Intent]], None],
        decide: Callable[[JobEvent], None],
        schedule: Callable[[float, TimedItem], None],
        drop: Callable[[int], None],
        unreadable: Callable[[Mapping[int, Exception]], None],
    ) -> None:
        self._database, self._clock, self._owned, self._speed = database, clock, owned, speed
        self._start_intents, self._decide = start_intents, decide
        self._schedule, self._drop = schedule, drop
        self._unreadable = unreadable

    def adopt(self, command: AdoptJobs) -> None:
        """Own the claimed jobs, continue their intents, and decide on them."""
        new = [c for c in command.claims if not (self._is_known(c.job_id) if command.views else self._owns(c))]
        if not new:
            return command.done.set_result(None)
        recorded = _just_accepted(new, command.views) if command.views else load(self._database, new)
        self._unreadable(recorded.unreadable)
        now = self._clock.now()
        for claim in recorded.still_owned:
            self._owned[claim.job_id] = work_items.OwnedJob(claim, recorded.views[claim.job_id], since=now)
        self._start_intents([intent for intent in recorded.open_intents if intent.job_id in self._owned])
        owned = tuple(claim for claim in new if claim in recorded.still_owned)
        for claim in owned:
            self._decide(JobEvent(claim.job_id))
        connected = tuple(claim for claim in owned if work_items.missing_nodes(recorded.views[claim.job_id], ()))
        if connected:
            reconnect_s = RECONNECT_S + reconnect_spread_s(len(self._owned))
            self._schedule(now + reconnect_s * self._speed, ReconnectDeadline(connected))
        failpoint("jobs.adopted")
        command.done.set_result(None)

    def report_missing_nodes(self, deadline: ReconnectDeadline) -> None:
        """The nodes of adopted jobs that have not reconnected are disconnected, as if this controller had seen it."""
        claims = [claim for claim in deadline.claims if self._owns(claim)]
        with self._database.connect() as conn:
            job_ids = [claim.job_id for claim in claims]
            connected = agent_connections.connected_nodes(conn, job_ids, self._clock.now())
        for claim in claims:
            for event in work_items.missing_nodes(self._owned[claim.job_id].view, connected):
                self._decide(JobEvent(claim.job_id, event))

    def recheck(self, command: RecheckOwnership) -> None:
        """Drop the jobs that another controller has claimed."""
        claims = [owned.claim for owned in self._owned.values()]
        with self._database.connect() as conn:
            lost = set(claims) - set(job_claims.still_owned(conn, claims))
        for claim in lost:
            log.warning("lease.lost", job=claim.job_id)
            self._drop(claim.job_id)
        command.done.set_result(None)

    def _is_known(self, job_id: int) -> bool:
        """Whether more is known of a job than when it was accepted here.

        It was claimed again, and is owned by its later claim, or it was adopted by a repetition of its submission, and
        has ended since.
        """
        return job_id in self._owned or self._owned.was_dropped(job_id)

    def _owns(self, claim: Claim) -> bool:
        return (owned := self._owned.get(claim.job_id)) is not None and owned.claim == claim


@dataclass(frozen=True)
class RecordedJobs:
    """Jobs to take over, with everything that the database holds about them."""

    still_owned: Collection[Claim]  # the claims that no other controller has taken since
    views: Mapping[int, JobView]
    open_intents: list[Intent]
    unreadable: Mapping[int, Exception] = field(default_factory=dict)  # jobs whose rows cannot be decoded, and why


def load(database: Engine, own_claims: Sequence[Claim]) -> RecordedJobs:
    """The jobs of `own_claims`. One whose rows cannot be decoded holds up no other.

    Raises what the database raises.
    """
    try:
        return _load(database, own_claims)
    except UNAVAILABLE:
        raise
    except Exception as error:  # noqa: BLE001 - the caller logs it
        if len(own_claims) == 1:
            return RecordedJobs((), {}, [], {own_claims[0].job_id: error})
    middle = len(own_claims) // 2
    first, last = load(database, own_claims[:middle]), load(database, own_claims[middle:])
    return RecordedJobs(
        {*first.still_owned, *last.still_owned},
        {**first.views, **last.views},
        first.open_intents + last.open_intents,
        {**first.unreadable, **last.unreadable},
    )


def _load(database: Engine, own_claims: Sequence[Claim]) -> RecordedJobs:
    ids = [claim.job_id for claim in own_claims]
    with database.connect() as conn:
        claimed = job_claims.still_owned(conn, own_claims)
        return RecordedJobs(claimed, jobs.load(conn, ids), intents.open_intents(conn, ids))


def _just_accepted(own_claims: Sequence[Claim], views: Mapping[int, JobView]) -> RecordedJobs:
    """Jobs that were just accepted: the database holds no more than `views`."""
    return RecordedJobs(set(own_claims), views, [])


def reload(database: Engine, claim: Claim) -> tuple[JobView, list[Intent]]:
    """A job and its open intents. Raises LeaseLost, and what the database raises."""
    with database.connect() as conn:
        if not job_claims.still_owned(conn, [claim]):
            raise LeaseLost(f"job {claim.job_id} is finalized, or belongs to another controller")
        return jobs.load(conn, [claim.job_id])[claim.job_id], intents.open_intents(conn, [claim.job_id])
