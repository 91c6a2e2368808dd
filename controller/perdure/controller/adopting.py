"""Reads jobs that are to be taken up, as they are recorded."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Engine

from perdure.controller.store import connections, intents, jobs
from perdure.controller.store.connections import Place
from perdure.controller.store.intents import Intent
from perdure.controller.store.jobs import Claim, LeaseLost
from perdure.recovery.job import JobView


@dataclass(frozen=True)
class Found:
    """`standing`: those of the claims that no other controller has taken since."""

    standing: Collection[Claim]
    views: Mapping[int, JobView]
    open_intents: list[Intent]


def read(database: Engine, claims: Sequence[Claim]) -> Found:
    """The jobs of `claims`. Raises what the database raises."""
    ids = [claim.job_id for claim in claims]
    with database.connect() as conn:
        standing = jobs.still_standing(conn, claims)
        return Found(standing, jobs.load(conn, ids), intents.open_intents(conn, ids))


def new(claims: Sequence[Claim], views: Mapping[int, JobView]) -> Found:
    """Jobs of which the database has not more than `views` say."""
    return Found(set(claims), views, [])


def heard(database: Engine, claims: Sequence[Claim], now: float) -> Collection[Place]:
    """The nodes of these jobs that a living controller has a connection with. Raises what the database raises."""
    with database.connect() as conn:
        return connections.held(conn, [claim.job_id for claim in claims], now)


def read_again(database: Engine, claim: Claim) -> tuple[JobView, list[Intent]]:
    """A job and its open intents. Raises LeaseLost, and what the database raises."""
    with database.connect() as conn:
        if not jobs.still_standing(conn, [claim]):
            raise LeaseLost(f"job {claim.job_id} is settled, or another's")
        return jobs.load(conn, [claim.job_id])[claim.job_id], intents.open_intents(conn, [claim.job_id])


def standing(database: Engine, claims: Sequence[Claim]) -> Collection[Claim]:
    """Those of `claims` that no other controller has taken since. Raises what the database raises."""
    with database.connect() as conn:
        return jobs.still_standing(conn, claims)
