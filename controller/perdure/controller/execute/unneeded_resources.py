"""Deletes the stopped machines of clusters that are down, with their disks, and closes the ports of these clusters.

Called every few seconds. Any controller may do it, and twice does no harm. It is repeated until the cloud reports that
the machines are gone; what it misses is left to the sweep, which ends machines that no cluster keeps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import structlog
from sqlalchemy import Engine, Row

from perdure.controller.clouds.base.protocol import Cloud, EventuallyConsistent, InstanceState, OpensPorts
from perdure.controller.runtime.failpoints import failpoint
from perdure.controller.store.clusters import cluster_disks, cluster_ports

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class UnneededResources:
    """The disks that clusters of an installation have kept, and the ports that they have opened."""

    database: Engine
    clouds: Mapping[str, Cloud]
    controller: str  # the installation's id

    def tick(self) -> None:
        """Look at every cluster that is down once. Raises what the database raises."""
        self._remove_disks()
        self._close_ports()

    def _close_ports(self) -> None:
        with self.database.connect() as conn:
            unneeded = cluster_ports.unneeded(conn)
        for row in unneeded:
            cloud = self.clouds.get(row.cloud)
            if not isinstance(cloud, OpensPorts) or cloud.unusable() is not None:
                continue
            try:
                cloud.close_ports(row.region, cluster_ports.rule_name(self.controller, row.cluster_id))
            except EventuallyConsistent:
                continue
            except Exception as error:  # noqa: BLE001 - tried again
                log.warning("ports.not_closed", cloud=row.cloud, error=cloud.classify(error).message)
                continue
            with self.database.begin() as conn:
                cluster_ports.remove(conn, row)

    def _remove_disks(self) -> None:
        with self.database.connect() as conn:
            unneeded = cluster_disks.unneeded(conn)
        by_region: dict[tuple[str, str], list[Row[Any]]] = {}
        for row in unneeded:
            by_region.setdefault((row.offer["cloud"], row.offer["region"]), []).append(row)
        for (name, region), rows in by_region.items():
            cloud = self.clouds.get(name)
            if cloud is None or cloud.unusable() is not None:
                continue
            ids = [row.instance_id for row in rows]
            try:
                failpoint("disk.removing")
                cloud.terminate(region, ids)
                failpoint("disk.removed")
                there = {one.id for one in cloud.describe(region, ids) if one.state is not InstanceState.GONE}
            except Exception as error:  # noqa: BLE001 - tried again
                log.warning("disks.not_removed", cloud=name, instances=ids, error=cloud.classify(error).message)
                continue
            with self.database.begin() as conn:
                cluster_disks.forget(conn, [row for row in rows if row.instance_id not in there])
