"""Node specs: each node gets its own, of the machine that was bought; an error concerns one task alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert, select, update

from perdure.controller.buckets.service import StorageService
from perdure.controller.clouds import registry
from perdure.controller.nodes.node_spec import NodeSpecBuilder
from perdure.controller.runtime.security.keyring import Keyring
from perdure.controller.store.clusters import cluster_homes, home_rescues
from perdure.controller.store.clusters.tables import ClusterRow
from perdure.controller.store.records import clusters, intents
from perdure.controller.store.records.intents import UNSAVED, Intent, IntentKind
from perdure.controller.store.records.jobs import Attempt, Task, insert_batch
from perdure.recovery import events
from perdure.recovery.job import Timeouts
from perdure.recovery.market.offers import OfferKey
from unit.controller.world import World

OFFER = {"cloud": "fake", "region": "fake-1", "zone": "fake-1a"}
SPEC = {"setup": None, "run": "x", "envs": {}, "workdir": None, "uploads": [], "mounts": []}


@pytest.fixture
def jobs(world: World) -> list[int]:
    ids = [world.submit(nodes=2) for _ in range(3)]
    with world.database.begin() as conn:
        conn.execute(update(Task).values(spec=SPEC))
    return ids


@pytest.fixture
def builder(world: World) -> NodeSpecBuilder:
    storage = StorageService({}, world.database, world.owner, Path, world.clock)
    return NodeSpecBuilder(Keyring(b"k" * 32, "user"), storage, {}, Timeouts())


def test_build_all__gives_each_node_its_own(world: World, jobs: list[int], builder: NodeSpecBuilder) -> None:
    places = [((job, 0, 1), rank) for rank in (1, 0) for job in reversed(jobs)]
    with world.database.connect() as conn:
        specs = builder.build_all(conn, places)
        alone = [builder.build(conn, place) for place in places]
    assert specs == alone
    assert [(s["job_id"], s["rank"]) for s in specs if isinstance(s, dict)] == [(k[0], rank) for k, rank in places]


def test_build_all__error_concerns_one_task(world: World, jobs: list[int], builder: NodeSpecBuilder) -> None:
    with world.database.begin() as conn:
        conn.execute(update(Task).where(Task.c.job_id == jobs[1]).values(secrets=b"not sealed"))
    with world.database.connect() as conn:
        first, second, third = builder.build_all(conn, [((job, 0, 1), 0) for job in jobs])
        assert isinstance(second, Exception)
        with pytest.raises(type(second)):
            builder.build(conn, ((jobs[1], 0, 1), 0))
    assert isinstance(first, dict)
    assert isinstance(third, dict)


def test_build_all__attempt_that_is_gone_or_unknown_has_none(
    world: World, jobs: list[int], builder: NodeSpecBuilder
) -> None:
    world.deliver(jobs[0], events.CancelRequested(0))
    world.pass_time(60)
    with world.database.connect() as conn:
        specs = builder.build_all(conn, [((jobs[0], 0, 1), 0), ((jobs[1], 0, 2), 0), ((10**6, 0, 1), 0)])
    assert specs == [None, None, None]


@pytest.mark.parametrize(("market", "variable"), [("spot", {"PERDURE_MEAN_UPTIME_S": "5400"}), ("on-demand", {})])
def test_mean_uptime__of_a_machine_that_can_be_interrupted(
    world: World, jobs: list[int], builder: NodeSpecBuilder, market: str, variable: dict[str, str]
) -> None:
    """Whatever the user's own variables are."""
    asked: list[OfferKey] = []

    def mean_uptime_s(offer: OfferKey) -> float:
        asked.append(offer)
        return 5400.4

    with world.database.begin() as conn:
        offer = {**conn.execute(select(Attempt.c.offer)).scalars().first(), "market": market}  # type: ignore[dict-item]
        conn.execute(update(Attempt).values(offer=offer))
        conn.execute(update(Task).values(spec={**SPEC, "envs": {"PERDURE_MEAN_UPTIME_S": "1"} if variable else {}}))
    with world.database.connect() as conn:
        spec = replace(builder, mean_uptime_s=mean_uptime_s).build(conn, ((jobs[0], 0, 1), 0))
    assert spec is not None
    assert {name: value for name, value in spec["env"].items() if name.startswith("PERDURE_")} == variable
    assert [(one.cloud, one.market) for one in asked] == ([("fake", "spot")] if variable else [])


class NoMounts:
    def node_mounts(self, _mounts: Any, *, cloud: str) -> list[Any]:
        return []


@pytest.mark.parametrize(
    ("accelerators", "count"), [(["L4", 4.0], 4), (["A100", 1.0], 1), (["A100", 0.5], 1), (None, 0)]
)
def test_gpus_per_node__are_those_of_the_machine_that_was_bought(
    world: World, accelerators: list[Any] | None, count: int
) -> None:
    """The task may have alternatives with other numbers of them, such as `{L4: 4, A100: 1}`."""
    spec = {"setup": None, "run": None, "envs": {}, "workdir": None, "uploads": [], "mounts": []}
    with world.database.begin() as conn:
        columns = {"name": "j", "submitted_at": 0.0, "user": "", "priority": 0, "num_tasks": 1}
        (job,) = insert_batch(conn, columns)
        about = {"task_id": "t", "status": "RUNNING", "config": {}, "spec": spec, "requirements": [], "recovery": {}}
        more = {"state": "ACTIVE", "reason": "STARTED", "message": "", "name": "t"}
        conn.execute(insert(Task).values(job_id=job, index=0, **about, **more))
        attempt = {"job_id": job, "task_index": 0, "generation": 1, "state": "RUNNING", "requested_at": 0.0}
        conn.execute(insert(Attempt).values(**attempt, offer={**OFFER, "accelerators": accelerators}))
    builder = NodeSpecBuilder(Keyring(b"k" * 32, "user"), NoMounts(), {}, Timeouts())  # type: ignore[arg-type]
    with world.database.connect() as conn:
        built = builder.build(conn, ((job, 0, 1), 0))
    assert built is not None
    assert built["gpus_per_node"] == count


class S3:
    """Stores with buckets on S3, which machines mount as they are."""

    stores = ("s3",)

    def node_mounts(self, mounts: Any, *, cloud: str) -> list[Any]:
        return list(mounts)


@pytest.mark.parametrize(
    ("launch", "is_refused", "is_mounted"),
    [
        ({}, False, True),
        ({"keeps_disks": True}, False, True),
        ({"keeps_disks": True, "resumes": ["i"]}, False, False),
        ({"keeps_disks": True, "resumes": ["i"]}, True, True),
    ],
)
def test_home__is_restored_unless_it_is_on_the_disks_that_start_again(
    world: World, launch: dict[str, Any], is_refused: bool, is_mounted: bool
) -> None:
    """A cluster of spot machines has saved it, and is started on-demand. `is_refused`: its cloud does not stop it."""
    spec = {"setup": None, "run": None, "envs": {}, "workdir": None, "uploads": [], "mounts": [], "host": True}
    row = ClusterRow(name="dev", active_name="dev", wanted="UP", created_at=0, launched_at=0, active_at=0, config={})
    with world.database.begin() as conn:
        cluster = clusters.insert_cluster(conn, {**row.model_dump(exclude={"id"}), "starts": 2})
        cluster_homes.add(conn, cluster, "s3", "perdure-home-1", 0.0)
        cluster_homes.change(conn, cluster, is_ready=True)
        columns = {"name": "j", "submitted_at": 0.0, "user": "", "priority": 0, "num_tasks": 1, "cluster_id": cluster}
        (job,) = insert_batch(conn, columns)
        about = {"task_id": "t", "status": "RUNNING", "config": {}, "spec": spec, "requirements": [], "recovery": {}}
        more = {"state": "ACTIVE", "reason": "STARTED", "message": "", "name": "t"}
        conn.execute(insert(Task).values(job_id=job, index=0, **about, **more))
        attempt = {"job_id": job, "task_index": 0, "generation": 1, "state": "RUNNING", "requested_at": 0.0}
        conn.execute(insert(Attempt).values(**attempt, offer={**OFFER, "cloud": "aws", "accelerators": None}))
        intents.add_all(conn, [Intent(UNSAVED, job, 0, 1, IntentKind.LAUNCH, "token", launch, 0.0)])
        if is_refused:
            home_rescues.begin(conn, cluster, job, 1, 1, 0.0)
    builder = NodeSpecBuilder(Keyring(b"k" * 32, "user"), S3(), {}, Timeouts())  # type: ignore[arg-type]
    with world.database.connect() as conn:
        built = builder.build(conn, ((job, 0, 1), 0))
    assert built is not None
    assert (built["home"] is not None) is is_mounted
    assert built["rescue"] is is_refused
    assert built["awaits_rescue"] is False, "a machine of AWS that powers itself off is stopped"


@pytest.mark.parametrize(("cloud", "stops"), [("aws", True), ("gcp", True), ("azure", False), ("local", True)])
def test_power_off__is_a_stop_unless_the_machine_is_billed_on(cloud: str, stops: bool) -> None:
    """The nodes of the others await a rescue of their homes."""
    assert registry.power_off_stops(cloud) is stops
