"""The buckets of jobs: planned when a job is accepted, created before its first launch, removed after it on request."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog
from sqlalchemy import Engine, select

from perdure.controller.buckets import mounts
from perdure.controller.buckets.archive import MAX_UNPACKED_BYTES
from perdure.controller.buckets.mounts import BucketRequest, StoragePlan
from perdure.controller.buckets.stores import RETRY_AFTER_S, StorageError, Store
from perdure.controller.execute.call_types import IntentOutcome, RetryLater
from perdure.controller.runtime.clock import Clock
from perdure.controller.runtime.failpoints import failpoint
from perdure.controller.store.engine.database import UNAVAILABLE
from perdure.controller.store.records import buckets, job_claims
from perdure.controller.store.records.buckets import UsedBucket
from perdure.controller.store.records.intents import Intent
from perdure.controller.store.records.job_claims import Claim, LeaseLost
from perdure.controller.store.records.jobs import Task
from perdure.recovery import events
from perdure.recovery.market.unavailable import FaultKind

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class StorageService:
    """Prepares and removes the buckets of one controller's jobs.

    `prepare` and `remove` raise the database's errors; `prepare` also raises LeaseLost if the job is not `owner`'s.
    """

    stores: Mapping[str, Store]  # by name
    database: Engine
    owner: str  # the id of this controller
    archive: Callable[[str], Path]  # the SHA-256 of an uploaded archive → its file
    clock: Clock
    default_store: str = "local"  # of buckets for which a task gives only a name
    account: str | None = None  # the Azure storage account of such buckets
    max_unpacked_bytes: int = MAX_UNPACKED_BYTES  # what the files of one upload may amount to

    def plan(self, file_mounts: Mapping[str, Any]) -> StoragePlan:
        """The buckets and mounts of a task. Raises StorageError with the field of a bucket that is unavailable."""
        return mounts.plan(
            file_mounts, stores=tuple(self.stores), default_store=self.default_store, account=self.account
        )

    def node_mounts(self, planned: Sequence[Mapping[str, Any]], *, cloud: str) -> list[dict[str, Any]]:
        """The mounts of a node spec for `cloud`. Raises StorageError, or a store's errors."""
        return mounts.node_mounts(planned, self.stores, cloud=cloud)

    def prepare(self, intent: Intent) -> IntentOutcome | RetryLater:
        """Create the buckets of the intent's task and upload their contents."""
        with self.database.connect() as conn:
            claim = job_claims.find_claim(conn, intent.job_id, self.owner)
            where = (Task.c.job_id == intent.job_id, Task.c.index == intent.task)
            spec, ended_at = conn.execute(select(Task.c.spec, Task.c.ended_at).where(*where)).one()
        if claim is None:
            raise LeaseLost(f"job {intent.job_id} is finalized, or another controller's")
        if ended_at is not None:
            return IntentOutcome("not needed", events.Tick())  # it was cancelled while its store was unavailable
        for bucket in map(BucketRequest.from_json, spec["buckets"]):
            try:
                if (retry := self._prepare_bucket(claim, bucket)) is not None:
                    return retry
            except (LeaseLost, *UNAVAILABLE):
                raise
            except Exception as error:  # noqa: BLE001 - the store classifies it
                return self._storage_failure(intent, bucket, error)
        return IntentOutcome("ready", events.StorageReady(intent.task))

    def remove(self, intent: Intent) -> IntentOutcome | RetryLater:
        """Remove the buckets that were created for the job and are not persistent."""
        with self.database.begin() as conn:
            removable = buckets.removable(conn, intent.job_id)
        for bucket in removable:
            store = self.stores[bucket.store]
            try:
                failpoint("bucket.removing")
                store.remove(bucket.bucket)
            except Exception as error:  # noqa: BLE001 - retried until the bucket is gone
                fault = store.classify(error)
                return RetryLater(fault.retry_after_s or 4 * RETRY_AFTER_S, f"removing bucket {bucket.bucket}: {error}")
        failpoint("bucket.removed")
        with self.database.begin() as conn:
            buckets.mark_removed(conn, removable, self.clock.now())
        failpoint("bucket.record_removed")
        return IntentOutcome("removed", events.Tick())

    def _prepare_bucket(self, claim: Claim, bucket: BucketRequest) -> RetryLater | None:
        """Create one bucket and upload its contents. Records the owner first, so that a crash leaves no unknown bucket.

        Returns RetryLater while the bucket is being removed for another job. That removal stops once this job's use is
        recorded, or completes soon.
        """
        is_new = bucket.create and not self.stores[bucket.store].exists(bucket.bucket)
        with self.database.begin() as conn:
            job_claims.lock_claim(conn, claim)
            used = UsedBucket(bucket.store, bucket.bucket, bucket.persistent, is_new)
            is_first = buckets.record(conn, claim.job_id, used)
            remover = buckets.find_remover(conn, claim.job_id, bucket.store, bucket.bucket)
        if remover is not None:
            return RetryLater(
                RETRY_AFTER_S, f"bucket {bucket.bucket} is still being removed after job {remover}, which created it"
            )
        failpoint("bucket.creating")
        try:
            created = mounts.ensure_bucket(bucket, self.stores)
        except StorageError:
            self._disown(claim, bucket)
            raise
        if created:
            self._remove_if_lease_lost(claim, bucket)
        elif is_new and is_first:  # somebody else created it just now: no earlier owner of this job had recorded it
            self._disown(claim, bucket)
        failpoint("bucket.created")
        mounts.upload_contents(bucket, self.stores, archive=self.archive, max_bytes=self.max_unpacked_bytes)
        failpoint("bucket.filled")
        return None

    def _disown(self, claim: Claim, bucket: BucketRequest) -> None:
        """Record that the job did not create the bucket. Raises LeaseLost: the job's next owner may have created it."""
        with self.database.begin() as conn:
            job_claims.lock_claim(conn, claim)
            buckets.disown(conn, claim.job_id, bucket.store, bucket.bucket)

    def _remove_if_lease_lost(self, claim: Claim, bucket: BucketRequest) -> None:
        """Remove the bucket that a suspended controller created after its job had ended elsewhere: nobody else would.

        Raises LeaseLost if the job is another controller's.
        """
        with self.database.connect() as conn:
            if job_claims.find_claim(conn, claim.job_id, claim.owner) == claim:
                return
            is_orphaned = buckets.is_orphaned(conn, claim.job_id, bucket.store, bucket.bucket)
        if is_orphaned:
            self.stores[bucket.store].remove(bucket.bucket)
        raise LeaseLost(f"job {claim.job_id} went to another controller while bucket {bucket.bucket} was created")

    def _storage_failure(self, intent: Intent, bucket: BucketRequest, error: Exception) -> IntentOutcome | RetryLater:
        text = f"bucket {bucket.bucket} ({bucket.store}): {error}"
        fault = self.stores[bucket.store].classify(error)
        log.info("storage.failed", job=intent.job_id, bucket=bucket.bucket, code=fault.code, error=str(error))
        if not isinstance(error, StorageError) and fault.kind is FaultKind.RETRY_LATER:
            return RetryLater(fault.retry_after_s or RETRY_AFTER_S, text)
        return IntentOutcome("failed", events.StorageFailed(intent.task, text), error=text)
