"""Takeover with the default lease, and a database outage longer than any lease."""

from __future__ import annotations

import re
import signal
import time

import pytest

from e2e.peers.cluster import Several, StartCluster
from support.helpers.postgres_server import Postgres
from support.helpers.timing import pause

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

COUNT = "for i in $(seq {n}); do echo line $i of {n}; sleep 0.5; done"


def lines(log: str) -> list[int]:
    return [int(i) for i in re.findall(r"^line (\d+) of", log, re.MULTILINE)]


def until_moved(cluster: Several, jobs: list[int], away: str) -> float:
    """Seconds until every job belongs to a live daemon."""
    began = time.monotonic()
    for job in jobs:
        cluster.until(lambda job=job: cluster.owner(job) not in ("", away), f"job {job} moves")  # type: ignore[misc]
    return time.monotonic() - began


def test_takeover__happens_within_twice_the_lease(several: StartCluster) -> None:
    cluster = several("a", "b", "c", lease_duration_s=10.0)
    every = [cluster.submit(COUNT.format(n=150), client=cluster.client_of(name)) for name in "abc"]
    for job in every:
        cluster.until_status(job, "RUNNING")
    cluster.kill("a")
    killed_s = until_moved(cluster, every[:1], "a")
    of_b = [job for job in every if cluster.owner(job) == "b"]
    cluster.signal("b", signal.SIGSTOP)
    frozen_s = until_moved(cluster, of_b, "b")
    print(f"\nlease 10 s: a killed controller's jobs moved in {killed_s:.1f} s, a frozen one's in {frozen_s:.1f} s")
    pause(10)
    cluster.signal("b", signal.SIGCONT)
    cluster.begin("a")
    for job in every:
        assert cluster.until_status(job, "SUCCEEDED", timeout_s=300)["generation"] == 1
        assert lines(cluster.log(job)) == list(range(1, 151))
    assert len(cluster.machines()) == 3
    assert killed_s <= 20
    assert frozen_s <= 20


def test_database_outage__of_a_minute_loses_nothing(several: StartCluster, postgres: Postgres) -> None:
    cluster = several("a", "b")
    names = {cluster.submit(COUNT.format(n=160), client=cluster.client_of(name)): name for name in ("a", "b")}
    short = cluster.submit("echo short; sleep 20", client=cluster.client_of("a"))
    for job in (*names, short):
        cluster.until_status(job, "RUNNING")
    postgres.stop("immediate")
    pause(60)
    assert all(process.poll() is None for process in cluster.daemons.values())
    postgres.start()
    back_at = time.monotonic()
    cluster.until_status(short, "SUCCEEDED")  # it ended while no controller could record it
    print(f"\nan end that came during the outage was recorded {time.monotonic() - back_at:.1f} s after it")
    for job, name in names.items():
        assert cluster.until_status(job, "SUCCEEDED", timeout_s=300)["generation"] == 1
        assert lines(cluster.log(job)) == list(range(1, 161))
        assert cluster.owner(job) == name, "after a common outage, each controller keeps its jobs"
    assert "short" in cluster.log(short)
    assert len(cluster.machines()) == 3
