"""Loads the recorded state of jobs that this controller takes over. `loop` decides on them next."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from sqlalchemy import Engine

from perdure.controller.store.engine.database import UNAVAILABLE
from perdure.controller.store.records import agent_connections, intents, jobs, ownership_guard
from perdure.controller.store.records.agent_connections import Place
from perdure.controller.store.records.intents import Intent
from perdure.controller.store.records.ownership_guard import Claim, LeaseLost
from perdure.recovery.job import JobView


@dataclass(frozen=True)
class AdoptedJobs:
    """Jobs to take over, with everything that the database holds about them."""

    still_owned: Collection[Claim]  # the claims that no other controller has taken since
    views: Mapping[int, JobView]
    open_intents: list[Intent]
    unreadable: Mapping[int, Exception] = field(default_factory=dict)  # jobs whose rows cannot be decoded, and why


def load(database: Engine, own_claims: Sequence[Claim]) -> AdoptedJobs:
    """The jobs of `own_claims`. One whose rows cannot be decoded holds up no other.

    Raises what the database raises.
    """
    try:
        return _load(database, own_claims)
    except UNAVAILABLE:
        raise
    except Exception as error:  # noqa: BLE001 - the caller logs it
        if len(own_claims) == 1:
            return AdoptedJobs((), {}, [], {own_claims[0].job_id: error})
    middle = len(own_claims) // 2
    first, last = load(database, own_claims[:middle]), load(database, own_claims[middle:])
    return AdoptedJobs(
        {*first.still_owned, *last.still_owned},
        {**first.views, **last.views},
        first.open_intents + last.open_intents,
        {**first.unreadable, **last.unreadable},
    )


def _load(database: Engine, own_claims: Sequence[Claim]) -> AdoptedJobs:
    ids = [claim.job_id for claim in own_claims]
    with database.connect() as conn:
        claimed = ownership_guard.still_owned(conn, own_claims)
        return AdoptedJobs(claimed, jobs.load(conn, ids), intents.open_intents(conn, ids))


def accepted(own_claims: Sequence[Claim], views: Mapping[int, JobView]) -> AdoptedJobs:
    """Jobs that were just accepted: the database holds no more than `views`."""
    return AdoptedJobs(set(own_claims), views, [])


def connected_nodes(database: Engine, own_claims: Sequence[Claim], now: float) -> Collection[Place]:
    """The nodes of these jobs that are connected to a live controller. Raises what the database raises."""
    with database.connect() as conn:
        return agent_connections.connected_nodes(conn, [claim.job_id for claim in own_claims], now)


def reload(database: Engine, claim: Claim) -> tuple[JobView, list[Intent]]:
    """A job and its open intents. Raises LeaseLost, and what the database raises."""
    with database.connect() as conn:
        if not ownership_guard.still_owned(conn, [claim]):
            raise LeaseLost(f"job {claim.job_id} is finalized, or belongs to another controller")
        return jobs.load(conn, [claim.job_id])[claim.job_id], intents.open_intents(conn, [claim.job_id])


def still_owned(database: Engine, own_claims: Sequence[Claim]) -> Collection[Claim]:
    """The claims that no other controller has taken since. Raises what the database raises."""
    with database.connect() as conn:
        return ownership_guard.still_owned(conn, own_claims)
