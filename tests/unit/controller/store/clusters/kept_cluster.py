"""A cluster on the fake cloud whose machines are stopped and started."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sqlalchemy import select, update

from perdure.controller.clouds.base.protocol import InstanceState
from perdure.controller.execute.unneeded_resources import UnneededResources
from perdure.controller.maintenance.orphan_sweep import OrphanSweep
from perdure.controller.store.clusters import cluster_disks
from perdure.controller.store.clusters.tables import ClusterRow
from perdure.controller.store.records import clusters
from perdure.controller.store.records.clusters import Cluster, host_key
from perdure.recovery import events
from perdure.recovery.job import Recovery
from perdure.recovery.market.requirements import Amount, MachineRequirement
from perdure.recovery.statuses import NodePhase
from unit.controller.world import World

ON_DEMAND = MachineRequirement(cpus=Amount(4), use_spot=False)
HOUR_S = 3600.0


class KeptCluster:
    """A cluster of on-demand machines on the fake cloud. `jobs`: those that have held its machines."""

    def __init__(self, world: World, *, nodes: int = 1) -> None:
        self.world, self.nodes, self.jobs = world, nodes, list[int]()
        world.stoppable = frozenset({"fake"})
        world.current = world.controller(world.owner)
        self.sweep = OrphanSweep({"fake": world.cloud}, "test", world.database, world.inbox.owned_views, list.__len__)
        row = ClusterRow(
            name="dev", active_name="dev", wanted="UP", created_at=0, launched_at=0, active_at=0, config={}
        )
        with world.database.begin() as conn:
            self.id = clusters.insert_cluster(conn, {**row.model_dump(exclude={"id"}), "starts": 1})

    def start(self, *, recovers: bool = False, is_spot: bool = False) -> int:
        """Launch the machines, or start them again, and wait until they run."""
        self.want("UP")
        key = host_key(self.id, len(self.jobs) + 1)
        self.jobs.append(
            self.world.submit(
                nodes=self.nodes,
                spec={"host": True},
                need=replace(ON_DEMAND, use_spot=is_spot),
                job={"cluster_id": self.id, "idempotency_key": key},
                recovery=Recovery(recovers=recovers),
            )
        )
        self.world.run(self.jobs[-1], self.generation, self.nodes)
        return self.jobs[-1]

    def begin_start(self, *, recovers: bool = False) -> int:
        """Request a start, as `start` does in the cluster's own zone, without waiting until the machines run."""
        self.want("UP")
        zone = self.rows()[0].offer["zone"]
        self.jobs.append(
            self.world.submit(
                nodes=self.nodes,
                spec={"host": True},
                need=replace(ON_DEMAND, zone=zone),
                job={"cluster_id": self.id, "idempotency_key": host_key(self.id, len(self.jobs) + 1)},
                recovery=Recovery(recovers=recovers),
            )
        )
        return self.jobs[-1]

    @property
    def generation(self) -> int:
        return self.world.view(self.jobs[-1]).tasks[0].attempts[-1].generation

    def switch(self, *, on: bool) -> None:
        """Start the controller again with another `clusters.keep_disks`."""
        self.world.keep_disks = on
        self.world.restart(self.world.owner + "+")

    def want(self, wanted: str) -> None:
        with self.world.database.begin() as conn:
            conn.execute(update(Cluster).values(wanted=wanted))

    def end_host(self) -> None:
        """Cancel the job that holds the machines, whose agents then end in order."""
        generation = self.generation
        self.world.deliver(self.jobs[-1], events.CancelRequested(60.0))
        for rank in range(self.nodes):
            self.world.report(self.jobs[-1], NodePhase.ENDED, generation=generation, rank=rank, interrupted=True)
        self.world.pass_time(10)

    def stop(self) -> None:
        self.want("STOPPED")
        self.end_host()

    def down(self) -> None:
        self.want("DOWN")
        for _ in range(2):
            UnneededResources(self.world.database, {"fake": self.world.cloud}, "test").tick()
            self.world.pass_time(5)

    def machines(self) -> dict[str, InstanceState]:
        """Those that are not gone."""
        return {one.id: one.state for one in self.world.cloud.list_owned("test")}

    def rows(self) -> list[Any]:
        with self.world.database.connect() as conn:
            return list(conn.execute(select(cluster_disks.Disk)))

    def row(self) -> Any:
        with self.world.database.connect() as conn:
            return clusters.get(conn, self.id)

    def cost(self) -> float:
        return sum(cluster_disks.cost_of(row, self.world.clock.now()) for row in self.rows())
