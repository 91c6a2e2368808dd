"""Any daemon serves any call; a job outlives the daemon that owned it."""

from __future__ import annotations

import hashlib
import io
import re
import signal
import tarfile
import time

import pytest

from e2e.peers.cluster import StartCluster
from perdure.sdk.connection.endpoint import Endpoint
from perdure.sdk.connection.health import is_healthy
from support.helpers.postgres_server import Postgres
from support.helpers.timing import pause, scaled

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

COUNT = "for i in $(seq {n}); do echo line $i of {n}; sleep {pause}; done"


def lines(log: str) -> list[int]:
    return [int(i) for i in re.findall(r"^line (\d+) of", log, re.MULTILINE)]


def folder_with(name: str, content: bytes) -> tuple[str, bytes]:
    """A tar.gz of one file, as the client makes of a working directory: (sha256, bytes)."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        entry = tarfile.TarInfo(name)
        entry.size = len(content)
        tar.addfile(entry, io.BytesIO(content))
    return hashlib.sha256(packed.getvalue()).hexdigest(), packed.getvalue()


def test_any_daemon__serves_any_job(several: StartCluster) -> None:
    cluster = several("a", "b")
    a, b = cluster.client_of("a"), cluster.client_of("b")
    first = cluster.submit(COUNT.format(n=20, pause=0.1), client=a)
    second = cluster.submit("sleep 600", client=b)
    assert cluster.owner(first) == "a"
    assert cluster.owner(second) == "b"

    with b.logs(first, follow=True) as stream:  # to its end, by a daemon that does not have the job
        assert lines(b"".join(stream).decode()) == list(range(1, 21))
    assert cluster.until_status(first, "SUCCEEDED")["status"] == "SUCCEEDED"

    digest, archive = folder_with("greeting", b"hello from b\n")
    b.put_upload(digest, io.BytesIO(archive), len(archive))
    assert a.has_upload(digest)
    third = cluster.submit("cat greeting", client=a, workdir={"upload": digest})
    cluster.until_status(third, "SUCCEEDED")
    assert "hello from b" in cluster.log(third, b)

    cluster.until_status(second, "RUNNING")
    assert a.cancel(ids=[second])["cancelled"] == [second]
    cluster.until_status(second, "CANCELLED")
    assert cluster.job(first)["recovery_count"] == 0


def test_killed_daemon__jobs_move_and_nothing_runs_twice(several: StartCluster) -> None:
    cluster = several("a", "b")
    job = cluster.submit(COUNT.format(n=100, pause=0.1), client=cluster.client_of("a"))
    cluster.until_status(job, "RUNNING")
    cluster.until(lambda: len(lines(cluster.log(job))) > 5, "a few lines of the log")
    killed_at = time.monotonic()
    cluster.kill("a")
    cluster.until(lambda: cluster.owner(job) == "b", "b has the job")
    took_s = time.monotonic() - killed_at
    print(f"\na killed controller's job moved in {took_s:.1f} s, with a lease of {cluster.lease_duration_s} s")

    done = cluster.until_status(job, "SUCCEEDED")
    assert done["generation"] == 1
    assert done["recovery_count"] == 0
    assert lines(cluster.log(job)) == list(range(1, 101))
    assert len(cluster.machines()) == 1


def test_frozen_daemon__changes_nothing_when_it_wakes_up(several: StartCluster) -> None:
    cluster = several("a", "b")
    job = cluster.submit(COUNT.format(n=150, pause=scaled(0.1)), client=cluster.client_of("a"))
    cluster.until_status(job, "RUNNING")
    cluster.signal("a", signal.SIGSTOP)
    cluster.until(lambda: cluster.owner(job) == "b", "b has the job")
    cluster.client.preempt(job)  # b has to buy another machine, while a still believes in the old one
    cluster.until(lambda: cluster.job(job)["generation"] == 2, "the second attempt")
    cluster.signal("a", signal.SIGCONT)

    def a_noticed() -> bool:
        return "lease.lapsed" in (cluster.home("a") / "controller.log").read_text()

    cluster.until(a_noticed, "a notices that it was away")
    done = cluster.until_status(job, "SUCCEEDED")
    assert cluster.owner(job) == "b"
    assert done["generation"] == 2
    assert done["recovery_count"] == 1
    assert len(cluster.machines()) == 2
    first, second = lines(cluster.log(job)), list(range(1, 151))
    assert first[-150:] == second, "the second attempt ran from its beginning to its end, once"
    assert first[:-150] == list(range(1, len(first) - 149))


def test_database_restart__loses_nothing(several: StartCluster, postgres: Postgres) -> None:
    cluster = several("a", "b")
    jobs = [cluster.submit(COUNT.format(n=100, pause=0.1), client=cluster.client_of(name)) for name in ("a", "b")]
    for job in jobs:
        cluster.until_status(job, "RUNNING")
    postgres.restart()
    postgres.stop("immediate")
    pause(5)  # longer than the lease: every controller loses it at once
    postgres.start()
    for job in jobs:
        assert cluster.until_status(job, "SUCCEEDED")["generation"] == 1
        assert lines(cluster.log(job)) == list(range(1, 101))
    assert len(cluster.machines()) == 2


def test_daemon_without_database__releases_its_nodes(several: StartCluster) -> None:
    """Only this daemon is cut off. Its nodes would count as silent and be replaced, if it kept their connections."""
    cluster = several("a", "b", with_lines=["a"])
    port = cluster.relay.backends.pop("b")
    job = cluster.submit(COUNT.format(n=250, pause=0.1))
    cluster.until(lambda: cluster.node_connection(job) == "a", "the node to connect to a")
    cluster.until(lambda: len(lines(cluster.log(job))) > 5, "a few lines of the log")
    cluster.relay.backends["b"] = port
    healthy = Endpoint(f"http://127.0.0.1:{cluster.relay.backends['a']}", cluster.token)
    assert is_healthy(healthy)
    cut_at = time.monotonic()
    cluster.lines["a"].cut()
    cluster.until(lambda: cluster.owner(job) == "b", "b has the job")
    cluster.until(lambda: cluster.node_connection(job) == "b", "the node to connect to b")
    took_s = time.monotonic() - cut_at
    assert not is_healthy(healthy), "a balancer calls others meanwhile"
    print(
        f"\ntakeover of the job and the node of an isolated daemon: {took_s:.1f} s, lease {cluster.lease_duration_s} s"
    )
    cluster.lines["a"].join()
    cluster.until(lambda: is_healthy(healthy), "a is back")
    done = cluster.until_status(job, "SUCCEEDED")
    assert (done["generation"], done["recovery_count"]) == (1, 0)
    assert lines(cluster.log(job)) == list(range(1, 251))
    assert cluster.owner(job) == "b"
    assert len(cluster.machines()) == 1
