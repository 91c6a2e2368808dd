"""The claims of jobs: which controller owns a job and may write it. A claim rejects a controller that has lost it.

The jobs themselves are in `jobs`, and the leases are renewed by `peers.lease`. `peers.ownership` decides when to claim.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, bindparam, or_, select, update

from perdure.controller.store.engine.database import DATABASE_NOW, as_of, database_now
from perdure.controller.store.tables import ControllerRow, JobRow

Job = JobRow.__table__  # type: ignore[attr-defined]
Controller = ControllerRow.__table__  # type: ignore[attr-defined]

_UPDATE_JOB = update(Job).where(
    Job.c.id == bindparam("key_id"),
    Job.c.owner == bindparam("key_owner"),
    Job.c.lease_epoch == bindparam("key_lease_epoch"),
)
_OWN = select(Job.c.id, Job.c.lease_epoch).where(Job.c.owner == bindparam("owner"), Job.c.finalized.is_(False))
_STILL_OWNED = select(Job.c.id, Job.c.owner, Job.c.lease_epoch).where(
    Job.c.id.in_(bindparam("job_ids", expanding=True)), Job.c.finalized.is_(False)
)
_UNFINALIZED = select(Job.c.id).where(Job.c.finalized.is_(False)).order_by(Job.c.id).limit(bindparam("max_jobs"))
_OWNED_BY_OTHERS = or_(Job.c.owner.is_(None), Job.c.owner != bindparam("claimer"))
_WITHOUT_LIVE_OWNER = or_(
    Job.c.owner.is_(None),
    Job.c.owner.in_(bindparam("dead", expanding=True)),
    Job.c.owner.not_in(select(Controller.c.id)),
)
_CLAIMABLE_ALONE = _UNFINALIZED.where(_OWNED_BY_OTHERS).with_for_update(skip_locked=True)
_CLAIMABLE = _UNFINALIZED.where(_WITHOUT_LIVE_OWNER).with_for_update(skip_locked=True)
_EXPIRED_LEASES = (
    select(Controller.c.id).where(Controller.c.lease_until < DATABASE_NOW).with_for_update(skip_locked=True)
)


class LeaseLost(Exception):
    """Another controller owns this job now. Stop working on it."""


@dataclass(frozen=True)
class Claim:
    """The right to write a job: its owner and the lease epoch at which it was claimed."""

    job_id: int
    owner: str
    epoch: int


def claim(conn: Connection, owner: str, now: float, *, limit: int, take_all: bool = False) -> list[Claim]:
    """Claim up to `limit` jobs that are not finalized and that no live daemon owns.

    An expired lease stays locked while its jobs are claimed. If its owner is alive after all, it renews the lease
    either before the claim, and keeps its jobs, or after it, and finds that it has lost them.

    `take_all`: no other daemon is running, so the jobs of every other owner are claimed.
    """
    if take_all:
        rows = conn.execute(_CLAIMABLE_ALONE, {"claimer": owner, "max_jobs": limit})
    else:
        dead = list(conn.execute(_EXPIRED_LEASES, as_of(now)).scalars())
        rows = conn.execute(_CLAIMABLE, {"dead": dead, "max_jobs": limit})
    ids = list(rows.scalars())
    if not ids:
        return []
    take = update(Job).where(Job.c.id.in_(ids)).values(owner=owner, lease_epoch=Job.c.lease_epoch + 1)
    claimed = conn.execute(take.returning(Job.c.id, Job.c.lease_epoch))
    return sorted((Claim(row.id, owner, row.lease_epoch) for row in claimed), key=lambda claim: claim.job_id)


def claims_of(conn: Connection, owner: str) -> list[Claim]:
    """The claims of `owner` on jobs that are not finalized."""
    rows = conn.execute(_OWN, {"owner": owner})
    return [Claim(row.id, owner, row.lease_epoch) for row in rows]


def still_owned(conn: Connection, claims: Sequence[Claim]) -> set[Claim]:
    """The claims that are still valid: not taken by another controller, and the job is not finalized."""
    rows = conn.execute(_STILL_OWNED, {"job_ids": [claim.job_id for claim in claims]})
    return {Claim(row.id, row.owner, row.lease_epoch) for row in rows} & set(claims)


def find_claim(conn: Connection, job_id: int, owner: str) -> Claim | None:
    """The claim of `owner` on a job; None if the job is finalized or has another owner."""
    where = (Job.c.id == job_id, Job.c.owner == owner, Job.c.finalized.is_(False))
    epoch = conn.execute(select(Job.c.lease_epoch).where(*where)).scalar_one_or_none()
    return Claim(job_id, owner, epoch) if epoch is not None else None


def update_guarded(conn: Connection, wanted: Sequence[tuple[Claim, Mapping[str, Any]]]) -> None:
    """Write the same columns of each of these jobs. At least one job is given.

    Raises LeaseLost if a claim is no longer valid: then the caller rolls its transaction back.
    """
    rows = [
        {**columns, "key_id": claim.job_id, "key_owner": claim.owner, "key_lease_epoch": claim.epoch}
        for claim, columns in wanted
    ]
    if conn.execute(_UPDATE_JOB, rows if len(rows) > 1 else rows[0]).rowcount != len(rows):
        claims = ", ".join(f"{claim.job_id} at epoch {claim.epoch}" for claim, _ in wanted)
        raise LeaseLost(f"at least one of these jobs has another owner now: {claims}")


def lock_claim(conn: Connection, claim: Claim) -> None:
    """Check the claim, and keep others from taking the job until the transaction ends. Raises LeaseLost."""
    update_guarded(conn, [(claim, {"owner": claim.owner})])


def older_controllers(conn: Connection, revision: str, now: float) -> list[str]:
    """The endpoints of live controllers whose code was written for a schema before `revision`."""
    is_alive = Controller.c.lease_until >= database_now(conn, now)
    return list(conn.scalars(select(Controller.c.endpoint).where(is_alive, Controller.c.schema_revision < revision)))
