"""Where ports of clusters are open: recorded with the launch, and closed after the last machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from sqlalchemy import select, update

from perdure.controller.clouds.base.protocol import EventuallyConsistent, Instance, LaunchRequest, OpenPorts
from perdure.controller.clouds.fake import FakeCloud
from perdure.controller.execute.unneeded_resources import UnneededResources
from perdure.controller.store.clusters import cluster_ports
from perdure.controller.store.clusters.cluster_ports import Ports, ranges
from perdure.controller.store.clusters.tables import ClusterRow
from perdure.controller.store.records import clusters
from perdure.controller.store.records.clusters import Cluster
from perdure.recovery import events
from perdure.recovery.market.requirements import MachineRequirement
from unit.controller.world import World

PORTS = ["8080", "9000-9010"]


class OpeningCloud(FakeCloud):
    """Remembers the rules that are there."""

    rules: dict[str, OpenPorts]

    def launch(self, request: LaunchRequest) -> Sequence[Instance]:
        if request.open_ports is not None:
            self.rules[request.open_ports.name] = request.open_ports
        return super().launch(request)

    def public_addresses(self, region: str, ids: Sequence[str]) -> Mapping[str, str]:
        return {}

    def close_ports(self, region: str, name: str) -> None:
        if any(one.region == region for one in self.list_owned("test")):
            raise EventuallyConsistent("a machine uses it")
        self.rules.pop(name, None)


@pytest.fixture
def cloud(world: World) -> OpeningCloud:
    world.cloud = OpeningCloud(world.clock)
    world.cloud.rules = {}
    world.opens_ports = frozenset({"fake"})
    world.current = world.controller(world.owner)
    return world.cloud


def launch(world: World, *machines: dict[str, Any], host: bool = True, **needs: Any) -> int:
    """`machines`: the options of each alternative. `needs`: the alternatives, as in World.submit."""
    row = ClusterRow(name="dev", active_name="dev", wanted="UP", created_at=0, launched_at=0, active_at=0, config={})
    with world.database.begin() as conn:
        cluster_id = clusters.insert_cluster(conn, {**row.model_dump(exclude={"id"}), "starts": 1})
    return world.submit(spec={"host": host, "machines": list(machines)}, job={"cluster_id": cluster_id}, **needs)


def recorded(world: World) -> int:
    with world.database.connect() as conn:
        return len(conn.execute(select(Ports)).all())


def tick(world: World) -> None:
    UnneededResources(world.database, {"fake": world.cloud}, "test").tick()


def test_launch__opens_what_the_cluster_asks_for(world: World, cloud: OpeningCloud) -> None:
    launch(world, {"ports": PORTS})
    ((name, rule),) = cloud.rules.items()
    assert (name, rule.ranges) == (cluster_ports.rule_name("test", 1), ((8080, 8080), (9000, 9010)))
    assert recorded(world) == 1


def test_launch__opens_the_ports_of_the_alternative_that_is_chosen(world: World, cloud: OpeningCloud) -> None:
    """Those of the others are open nowhere."""
    needs = [MachineRequirement(region="fake-1", rank=1), MachineRequirement(region="fake-2", rank=0)]
    launch(world, {"ports": ["22"]}, {"ports": [8080, "9000-9010"]}, need=needs[0], or_need=needs[1:])
    (rule,) = cloud.rules.values()
    assert rule.ranges == ((8080, 8080), (9000, 9010))


def test_launch__of_a_job_opens_none(world: World, cloud: OpeningCloud) -> None:
    launch(world, {"ports": PORTS}, host=False)
    assert (cloud.rules, recorded(world)) == ({}, 0)


def test_launch__of_a_cluster_without_ports_opens_none(world: World, cloud: OpeningCloud) -> None:
    launch(world, {})
    assert (cloud.rules, recorded(world)) == ({}, 0)


def test_ports__are_closed_after_the_last_machine_of_a_cluster_that_is_down(world: World, cloud: OpeningCloud) -> None:
    job = launch(world, {"ports": PORTS})
    tick(world)
    assert cloud.rules, "it is up"
    with world.database.begin() as conn:
        conn.execute(update(Cluster).values(wanted="DOWN"))
    tick(world)
    assert cloud.rules, "its machines run"
    world.deliver(job, events.CancelRequested(0.0))
    world.pass_time(30)
    for _ in range(2):
        tick(world)
        assert (cloud.rules, recorded(world)) == ({}, 0)


def test_ranges__of_ports_and_ranges() -> None:
    assert ranges(["1", "20-30"]) == ((1, 1), (20, 30))
