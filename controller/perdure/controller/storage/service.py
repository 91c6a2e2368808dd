"""The buckets of jobs: planned when a job is accepted, made before its first launch, removed after its end if asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog
from sqlalchemy import Engine, select

from perdure.controller.acting import Later, Outcome
from perdure.controller.clock import Clock
from perdure.controller.crashpoints import reach
from perdure.controller.storage import mounts
from perdure.controller.storage.mounts import BucketWish, StoragePlan
from perdure.controller.storage.stores import RETRY_AFTER_S, StorageError, Store
from perdure.controller.store import buckets as recorded
from perdure.controller.store import jobs
from perdure.controller.store.buckets import UsedBucket
from perdure.controller.store.database import UNAVAILABLE
from perdure.controller.store.intents import Intent
from perdure.controller.store.jobs import Claim, LeaseLost, Task
from perdure.recovery import events
from perdure.recovery.market import FaultKind

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class StorageService:
    """`owner`: the controller whose jobs these are. `archive`: the file of a user's archive, by its sha256.
    `default_store`: of a bucket that is only named; `account`: the storage account of such a one in Azure.

    `prepare` and `remove` raise what the database raises; `prepare` also LeaseLost, when the job is not `owner`'s.
    """

    stores: Mapping[str, Store]
    database: Engine
    owner: str
    archive: Callable[[str], Path]
    clock: Clock
    default_store: str = "local"
    account: str | None = None

    def plan(self, file_mounts: Mapping[str, Any]) -> StoragePlan:
        """Raises StorageError with the field that can not be had."""
        return mounts.plan(
            file_mounts, stores=tuple(self.stores), default_store=self.default_store, account=self.account
        )

    def node_mounts(self, planned: Sequence[Mapping[str, Any]], *, cloud: str) -> list[dict[str, Any]]:
        """For a node of `cloud`. Raises StorageError, or a store's errors."""
        return mounts.node_mounts(planned, self.stores, cloud=cloud)

    def prepare(self, intent: Intent) -> Outcome | Later:
        """Make and fill the buckets of `intent`'s task."""
        with self.database.connect() as conn:
            claim = jobs.held(conn, intent.job_id, self.owner)
            where = (Task.c.job_id == intent.job_id, Task.c.index == intent.task)
            spec, ended_at = conn.execute(select(Task.c.spec, Task.c.ended_at).where(*where)).one()
        if claim is None:
            raise LeaseLost(f"job {intent.job_id} is settled, or another's")
        if ended_at is not None:
            return Outcome("not needed", events.Tick())  # it was cancelled while its store did not answer
        for wish in map(BucketWish.from_json, spec["buckets"]):
            try:
                if (wait := self._bring_about(claim, wish)) is not None:
                    return wait
            except (LeaseLost, *UNAVAILABLE):
                raise
            except Exception as error:  # noqa: BLE001 - the store's own table says what it means
                return self._failed(intent, wish, error)
        return Outcome("ready", events.StorageReady(intent.task))

    def remove(self, intent: Intent) -> Outcome | Later:
        """Remove what was made for the job and shall not outlive it."""
        with self.database.begin() as conn:
            doomed = recorded.removable(conn, intent.job_id)
        for bucket in doomed:
            store = self.stores[bucket.store]
            try:
                reach("bucket.removing")
                store.remove(bucket.bucket)
            except Exception as error:  # noqa: BLE001 - repeated until it is gone
                fault = store.classify(error)
                return Later(fault.retry_after_s or 4 * RETRY_AFTER_S, f"removing bucket {bucket.bucket}: {error}")
        reach("bucket.removed")
        with self.database.begin() as conn:
            recorded.removed(conn, doomed, self.clock.now())
        reach("bucket.forgotten")
        return Outcome("removed", events.Tick())

    def _bring_about(self, claim: Claim, wish: BucketWish) -> Later | None:
        """Whose the bucket is is written down before it is made: after a crash in between, it is found and removed.

        Later: it is being removed for another job. That is left off once this one is known to use it, or soon over.
        """
        is_new = wish.create and not self.stores[wish.store].exists(wish.bucket)
        with self.database.begin() as conn:
            jobs.confirm(conn, claim)
            used = UsedBucket(wish.store, wish.bucket, wish.persistent, is_new)
            is_first = recorded.record(conn, claim.job_id, used)
            remover = recorded.remover(conn, claim.job_id, wish.store, wish.bucket)
        if remover is not None:
            return Later(RETRY_AFTER_S, f"bucket {wish.bucket} is being removed after job {remover}, which made it")
        reach("bucket.making")
        try:
            made = mounts.make(wish, self.stores)
        except StorageError:
            self._disown(claim, wish)
            raise
        if made:
            self._remove_if_late(claim, wish)
        elif is_new and is_first:  # a stranger made it at this very moment: no other owner of the job had come so far
            self._disown(claim, wish)
        reach("bucket.made")
        mounts.fill(wish, self.stores, archive=self.archive)
        reach("bucket.filled")
        return None

    def _disown(self, claim: Claim, wish: BucketWish) -> None:
        """Raises LeaseLost: what is there may then have been made by the job's next owner."""
        with self.database.begin() as conn:
            jobs.confirm(conn, claim)
            recorded.disown(conn, claim.job_id, wish.store, wish.bucket)

    def _remove_if_late(self, claim: Claim, wish: BucketWish) -> None:
        """Who stood still for long may make a bucket when its job is over, and nobody else would remove it any more.

        Raises LeaseLost if the job is another's.
        """
        with self.database.connect() as conn:
            if jobs.held(conn, claim.job_id, claim.owner) == claim:
                return
            is_left = recorded.is_left_over(conn, claim.job_id, wish.store, wish.bucket)
        if is_left:
            self.stores[wish.store].remove(wish.bucket)
        raise LeaseLost(f"job {claim.job_id} went to another controller while bucket {wish.bucket} was made")

    def _failed(self, intent: Intent, wish: BucketWish, error: Exception) -> Outcome | Later:
        text = f"bucket {wish.bucket} ({wish.store}): {error}"
        fault = self.stores[wish.store].classify(error)
        log.info("storage.failed", job=intent.job_id, bucket=wish.bucket, code=fault.code, error=str(error))
        if not isinstance(error, StorageError) and fault.kind is FaultKind.RETRY_LATER:
            return Later(fault.retry_after_s or RETRY_AFTER_S, text)
        return Outcome("failed", events.StorageFailed(intent.task, text), error=text)
