"""Creates the buckets that keep the homes of clusters whose disks end with a stop, or cannot be kept.

Removes those of clusters that are down, the disks that these have kept, and the rules that opened their ports.

Called every few seconds. The row comes before the bucket, so a crash leaves no bucket that nobody knows. Any controller
may do it, and twice does no harm. A store that fails costs the cluster nothing but its home: `perdure status` says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import structlog
from sqlalchemy import Engine
from sqlalchemy.exc import IntegrityError

from perdure.controller.buckets.service import StorageService
from perdure.controller.buckets.stores import Store
from perdure.controller.clouds.base.protocol import Cloud
from perdure.controller.execute.unneeded_resources import UnneededResources
from perdure.controller.runtime.clock import Clock
from perdure.controller.runtime.failpoints import failpoint
from perdure.controller.store.clusters import cluster_disks, cluster_homes, home_rescues

log = structlog.get_logger(__name__)

INTERVAL_S = 2.0
_RETRY_S = 600.0
_RESCUE_RETRY_S = 20.0  # machines that are paid for wait for it
_STORE_OF_CLOUD = {"local": "local", "aws": "s3", "gcp": "gcs", "azure": "azure"}
_HERE = "local"  # the cloud, and the store that only its machines can reach


@dataclass(frozen=True)
class ClusterHomes:
    """The homes of the clusters of an installation."""

    database: Engine
    clock: Clock
    stores: Mapping[str, Store]
    controller_id: str
    default_store: str
    account: str | None = None  # the Azure storage account of new containers
    clouds: Mapping[str, Cloud] = field(default_factory=dict)

    @classmethod
    def of(cls, storage: StorageService, controller_id: str, clouds: Mapping[str, Cloud]) -> ClusterHomes:
        own = (storage.database, storage.clock, storage.stores)
        return cls(*own, controller_id, storage.default_store, storage.account, clouds)

    def tick(self) -> None:
        """Look at every cluster once. Raises what the database raises."""
        UnneededResources(self.database, self.clouds, self.controller_id).tick()
        now = self.clock.now()
        with self.database.connect() as conn:
            missing, unneeded = cluster_homes.missing(conn, now - _RETRY_S), cluster_homes.unneeded(conn)
            missing = [row for row in missing if not cluster_disks.keeps_disks(conn, row.job_id, row.generation)]
            rescued = cluster_homes.missing_for_rescues(conn, now - _RESCUE_RETRY_S)
        for row in (*missing, *rescued):
            if (store := self._store_for(row.cloud)) is not None:
                self._create(row.cluster_id, store, now)
            elif row in rescued:
                with self.database.begin() as conn:
                    home_rescues.fail(
                        conn, row.cluster_id, f"no object store is set up that machines of {row.cloud} reach"
                    )
        for row in unneeded:
            self._remove(row.cluster_id, row.store, row.bucket)

    def _store_for(self, cloud: str) -> str | None:
        name = _STORE_OF_CLOUD.get(cloud, self.default_store)
        usable = name in self.stores and (name != _HERE or cloud == _HERE) and (name != "azure" or self.account)
        return name if usable else None

    def _create(self, cluster_id: int, store: str, now: float) -> None:
        bucket = f"perdure-home-{self.controller_id[:8].lower()}-{cluster_id}"
        bucket = f"{self.account}/{bucket}" if store == "azure" else bucket
        try:
            with self.database.begin() as conn:
                cluster_homes.add(conn, cluster_id, store, bucket, now)
        except IntegrityError:  # another try, whose bucket has the same name unless its store is another
            with self.database.begin() as conn:
                cluster_homes.change(conn, cluster_id, tried_at=now)
            with self.database.connect() as conn:
                known = cluster_homes.of_clusters(conn, [cluster_id]).get(cluster_id)
            if known is None:
                return
            store, bucket = known.store, known.bucket
        failpoint("home.creating")
        try:
            self.stores[store].ensure(bucket)
        except Exception as error:  # noqa: BLE001 - any: the cluster works without it
            log.warning("home.not_kept", cluster=cluster_id, bucket=bucket, error=str(error))
            with self.database.begin() as conn:
                cluster_homes.change(conn, cluster_id, problem=f"bucket {bucket} ({store}): {error}")
            return
        with self.database.begin() as conn:
            cluster_homes.change(conn, cluster_id, is_ready=True, problem="")

    def _remove(self, cluster_id: int, store: str, bucket: str) -> None:
        try:
            self.stores[store].remove(bucket)
        except Exception as error:  # noqa: BLE001 - tried again
            log.warning("home.not_removed", cluster=cluster_id, bucket=bucket, error=str(error))
            return
        with self.database.begin() as conn:
            cluster_homes.change(conn, cluster_id, removed_at=self.clock.now())
