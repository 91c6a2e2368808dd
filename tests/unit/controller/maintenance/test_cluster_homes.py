"""The buckets of clusters' homes: their stores, failures, and when they are removed. On both databases."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from sqlalchemy import Engine, insert, select, update

from perdure.controller.maintenance.cluster_homes import ClusterHomes
from perdure.controller.runtime.clock import ManualClock
from perdure.controller.store.clusters import cluster_disks, cluster_homes, home_rescues
from perdure.controller.store.clusters.tables import ClusterRow
from perdure.controller.store.records import clusters, intents
from perdure.controller.store.records.clusters import Cluster, host_key
from perdure.controller.store.records.intents import UNSAVED, Intent, IntentKind
from perdure.controller.store.records.jobs import Attempt, Job, Task, insert_batch


@dataclass
class MemoryStore:
    """A store that remembers its buckets, or fails."""

    name: str
    buckets: set[str] = field(default_factory=set)
    fails: bool = False

    def ensure(self, bucket: str) -> bool:
        if self.fails:
            raise PermissionError("AccessDenied")
        self.buckets.add(bucket)
        return True

    def remove(self, bucket: str) -> None:
        if self.fails:
            raise PermissionError("AccessDenied")
        self.buckets.discard(bucket)


class Installation:
    """A database with one cluster whose machines are of a cloud, and the stores of a controller."""

    def __init__(self, database: Engine, cloud: str) -> None:
        self.database, self.clock = database, ManualClock()
        self.stores: dict[str, Any] = {name: MemoryStore(name) for name in ("local", "s3")}
        self.homes = ClusterHomes(database, self.clock, self.stores, "ABCDEF0123456789", "s3")
        row = ClusterRow(
            name="dev", active_name="dev", wanted="UP", created_at=0, launched_at=0, active_at=0, config={}
        )
        columns = {"name": "dev", "submitted_at": 0.0, "user": "", "priority": 0, "num_tasks": 1}
        with database.begin() as conn:
            cluster = {**row.model_dump(exclude={"id"}), "starts": 1}
            self.cluster = clusters.insert_cluster(conn, cluster)
            key = {"cluster_id": self.cluster, "idempotency_key": host_key(self.cluster, 1)}
            (self.host,) = insert_batch(conn, columns | key)
            about = {"task_id": "t", "status": "RUNNING", "config": {}, "spec": {}, "requirements": [], "recovery": {}}
            more = {"state": "RUNNING", "reason": "STARTED", "message": "", "name": "t"}
            conn.execute(insert(Task).values(job_id=self.host, index=0, **about, **more))
            attempt = {"job_id": self.host, "task_index": 0, "generation": 1, "state": "BOOTING", "requested_at": 0.0}
            conn.execute(insert(Attempt).values(**attempt, offer={"cloud": cloud}))

    @property
    def row(self) -> Any:
        with self.database.connect() as conn:
            return conn.execute(select(cluster_homes.Home)).one_or_none()

    @property
    def bucket(self) -> str:
        return f"perdure-home-abcdef01-{self.cluster}"

    def end(self) -> None:
        with self.database.begin() as conn:
            conn.execute(update(Cluster).values(wanted="DOWN", active_name=None))

    def finalize(self) -> None:
        with self.database.begin() as conn:
            conn.execute(update(Job).values(finalized=True))


@pytest.mark.parametrize(
    ("cloud", "store"), [("local", "local"), ("aws", "s3"), ("kubernetes", "s3"), ("gcp", None), ("azure", None)]
)
def test_home__is_in_the_store_of_the_cloud(database: Engine, cloud: str, store: str | None) -> None:
    installation = Installation(database, cloud)
    installation.homes.tick()
    installation.homes.tick()
    assert [name for name, one in installation.stores.items() if one.buckets] == ([store] if store else [])
    with database.connect() as conn:
        wanted = cluster_homes.wanted_of(conn, installation.cluster)
    assert (wanted.bucket if wanted else None) == (installation.bucket if store else None)


@pytest.mark.parametrize("keeps_disks", [False, True])
def test_home__has_a_bucket_unless_the_disks_of_the_machines_are_kept(database: Engine, keeps_disks: bool) -> None:
    installation = Installation(database, "aws")
    request = {"keeps_disks": True} if keeps_disks else {}
    with database.begin() as conn:
        intents.add_all(conn, [Intent(UNSAVED, installation.host, 0, 1, IntentKind.LAUNCH, "token", request, 0.0)])
    installation.homes.tick()
    assert bool(installation.stores["s3"].buckets) is not keeps_disks


def test_home__has_a_bucket_once_the_cloud_does_not_stop_the_machines(database: Engine) -> None:
    installation = Installation(database, "aws")
    with database.begin() as conn:
        request = {"keeps_disks": True}
        intents.add_all(conn, [Intent(UNSAVED, installation.host, 0, 1, IntentKind.LAUNCH, "token", request, 0.0)])
        conn.execute(update(Cluster).values(wanted="STOPPED"))
    installation.homes.tick()
    assert installation.row is None
    with database.begin() as conn:
        refused = cluster_disks.StopRefused(installation.host, 1, num_nodes=2)
        cluster_disks.record(conn, installation.cluster, refused, installation.clock.now())
    installation.homes.tick()
    assert installation.stores["s3"].buckets == {installation.bucket}
    with database.connect() as conn:
        rescue = home_rescues.of_attempt(conn, installation.cluster, installation.host, 1)
    assert rescue is not None
    assert rescue.outcome(installation.clock.now()) is None
    installation.end()
    with database.connect() as conn:
        rescue = home_rescues.of_attempt(conn, installation.cluster, installation.host, 1)
    assert rescue is not None
    assert rescue.outcome(installation.clock.now()) == "the cluster is down"


def begin_rescue(installation: Installation) -> None:
    with installation.database.begin() as conn:
        conn.execute(update(Cluster).values(wanted="STOPPED"))
        home_rescues.begin(conn, installation.cluster, installation.host, 1, 1, installation.clock.now())


def outcome(installation: Installation) -> str | None:
    with installation.database.connect() as conn:
        rescue = home_rescues.of_attempt(conn, installation.cluster, installation.host, 1)
    assert rescue is not None
    return rescue.outcome(installation.clock.now())


def test_rescue__tries_to_have_the_bucket_again_and_again(database: Engine) -> None:
    installation = Installation(database, "aws")
    installation.stores["s3"].fails = True
    installation.homes.tick()
    installation.clock.advance(100.0)
    begin_rescue(installation)
    assert outcome(installation) is None
    installation.homes.tick()
    assert outcome(installation) is None
    installation.stores["s3"].fails = False
    installation.clock.advance(30.0)
    installation.homes.tick()
    assert installation.row.is_ready


@pytest.mark.parametrize("tried_in_time", [True, False])
def test_rescue__ends_if_the_bucket_cannot_be_had(database: Engine, tried_in_time: bool) -> None:
    installation = Installation(database, "aws")
    installation.stores["s3"].fails = True
    installation.homes.tick()
    installation.clock.advance(100.0)
    begin_rescue(installation)
    installation.clock.advance(home_rescues.LIMIT_S)
    if tried_in_time:
        installation.homes.tick()
    ended = outcome(installation)
    assert ended is not None
    assert ended.startswith("0 of 1 home folders were saved within 15 minutes")
    assert ("AccessDenied" in ended) is tried_in_time


def test_rescue__ends_at_once_without_a_store(database: Engine) -> None:
    installation = Installation(database, "gcp")
    begin_rescue(installation)
    installation.homes.tick()
    ended = outcome(installation)
    assert ended is not None
    assert "0 of 1 home folders were saved" in ended
    assert "no object store is set up that machines of gcp reach" in ended


def test_store_that_fails__is_reported_and_tried_again_later(database: Engine) -> None:
    installation = Installation(database, "aws")
    installation.stores["s3"].fails = True
    installation.homes.tick()
    assert "AccessDenied" in installation.row.problem
    installation.stores["s3"].fails = False
    installation.homes.tick()
    assert not installation.row.is_ready, "not so soon"
    installation.clock.advance(3600.0)
    installation.homes.tick()
    assert (installation.row.is_ready, installation.row.problem) == (True, "")


def test_death_before_the_bucket__is_made_up_for(database: Engine) -> None:
    installation = Installation(database, "aws")
    with database.begin() as conn:
        cluster_homes.add(conn, installation.cluster, "s3", installation.bucket, installation.clock.now())
    installation.homes.tick()
    assert installation.stores["s3"].buckets == {installation.bucket}


def test_bucket__is_removed_once_the_machines_of_a_cluster_that_is_down_have_ended(database: Engine) -> None:
    installation = Installation(database, "aws")
    installation.homes.tick()
    installation.end()
    with database.connect() as conn:
        assert cluster_homes.wanted_of(conn, installation.cluster) is None, "its machines save nothing"
    installation.homes.tick()
    assert installation.stores["s3"].buckets, "they may still write"
    installation.finalize()
    installation.stores["s3"].fails = True
    installation.homes.tick()
    assert installation.row.removed_at is None
    installation.stores["s3"].fails = False
    installation.homes.tick()
    assert installation.stores["s3"].buckets == set()
    assert installation.row.removed_at is not None
