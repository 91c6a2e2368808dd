"""What `perdure status` and `perdure queue` cost among many clusters, measured on this machine.

    python -m benchmarks.scale.clusters [--clusters 1000]

Launches one cluster on the local cloud, runs jobs on it, and fills the database with copies of it that look as if they
were up: their machines are rows that the reconciler leaves alone. The target is the CPU time of the whole command.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from typing import Any

from benchmarks.latency import Figure, exit_code, median_cost, report, running_controller
from benchmarks.machine import print_machine
from benchmarks.scale.queue import cpu_s, daemon_pid
from sqlalchemy import Connection, Table, func, insert, select

from perdure.controller.store.engine.database import open_database
from perdure.controller.store.records.clusters import host_key
from perdure.controller.store.tables import AttemptRow, ClusterRow, JobRow, NodeRow, TaskRow
from perdure.sdk import Resources, Task, clusters
from perdure.sdk.clusters import queues
from perdure.sdk.connection import discovery
from perdure.sdk.connection.client import Client
from perdure.sdk.connection.endpoint import home_dir

TARGET_S, CALLS = 0.2, 20
ALL_TARGET_S = 0.3  # of the queues of all clusters, with three jobs each
IDLE_TARGET_S = 0.2  # of the daemon, each second
PEER_S = 2.8  # of SkyPilot's pull request 4802, after it
JOBS = 3
NAME = "bench"
_OF_JOB: tuple[Table, ...] = tuple(
    row.__table__  # type: ignore[attr-defined]
    for row in (TaskRow, AttemptRow, NodeRow)
)
_CLUSTER: Table = ClusterRow.__table__  # type: ignore[attr-defined]
_JOB: Table = JobRow.__table__  # type: ignore[attr-defined]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--clusters", type=int, default=1000)
    count = parser.parse_args().clusters
    print_machine()
    with running_controller():
        run_one()
        subprocess.run([sys.executable, "-m", "perdure.cli", "controller", "stop"], check=True, capture_output=True)
        engine = open_database(f"sqlite:///{home_dir() / 'perdure.db'}")
        with engine.begin() as conn:
            fill(conn, count)
        engine.dispose()
        figures = measure(count)
        remove_copies()
        clusters.get(clusters.down(NAME))
    report(figures)
    return exit_code(figures)


def run_one() -> None:
    """The cluster that is copied, which stays up, with jobs that have ended."""
    launched = clusters.launch_job(Task(run="true", resources=Resources(cpus=2)), NAME, job=False)
    clusters.wait_up(launched, lambda _line: None)
    numbers = [clusters.exec_job(Task(run="true"), NAME).number for _ in range(JOBS)]
    clusters.wait_ended(NAME, [number for number in numbers if number is not None])


def fill(conn: Connection, count: int) -> None:
    """Have `count` clusters in all, with hosts that are finalized in the database, but shown as running."""
    (cluster,) = conn.execute(select(_CLUSTER)).mappings().all()
    originals = conn.execute(select(_JOB).where(_JOB.c.cluster_id == cluster["id"])).mappings().all()
    parts = {
        table: conn.execute(select(table).where(table.c.job_id.in_([job["id"] for job in originals]))).mappings().all()
        for table in _OF_JOB
    }
    next_job = int(conn.execute(select(func.max(_JOB.c.id))).scalar_one()) + 1
    rows: dict[Table, list[dict[str, Any]]] = {table: [] for table in (_CLUSTER, _JOB, *_OF_JOB)}
    for copy in range(1, count):
        id, name = cluster["id"] + copy, f"{NAME}-{copy}"
        key = f"copy-{copy}"
        rows[_CLUSTER].append({**cluster, "id": id, "name": name, "active_name": name, "idempotency_key": key})
        for job in originals:
            own = {"id": next_job, "cluster_id": id, "finalized": True, "idempotency_key": _key(job, id)}
            rows[_JOB].append({**job, **own, "name": name if job["cluster_job"] is None else job["name"]})
            for table, of_jobs in parts.items():
                distinct = ("task_id",) if table is TaskRow.__table__ else ()  # type: ignore[attr-defined]
                rows[table] += [
                    {**row, "job_id": next_job, **{column: f"{row[column]}-{next_job}" for column in distinct}}
                    for row in of_jobs
                    if row["job_id"] == job["id"]
                ]
            next_job += 1
    for table, copies in rows.items():
        for start in range(0, len(copies), 500):
            conn.execute(insert(table), copies[start : start + 500])


def _key(job: Any, cluster_id: int) -> str:
    """That of a host names its cluster."""
    is_host = job["cluster_job"] is None
    return host_key(cluster_id, 1) if is_host else f"copy-{cluster_id}-{job['cluster_job']}"


def measure(count: int) -> list[Figure]:
    """CPU times of whole commands, and of the daemon for one call."""
    listed = clusters.clusters()
    assert len(listed) == count, len(listed)
    assert {one["status"] for one in listed} == {"UP"}, {one["status"] for one in listed}
    client, figures = Client(discovery.ensure()), []
    for words, target in (
        (("status",), TARGET_S),
        (("status", NAME), TARGET_S),
        (("queue", NAME), TARGET_S),
        (("queue",), ALL_TARGET_S),
    ):
        peer = (PEER_S, "sky status, of few clusters") if words == ("status",) else ()
        figures.append(Figure(f"perdure {' '.join(words)}, CPU", median_cost(*words).cpu_s, "s", target, *peer))
    pid = daemon_pid()
    figures.append(Figure("the daemon without calls, CPU each second", _idle_cpu_s(pid), "s", IDLE_TARGET_S))
    for name, call in (
        ("the same, CPU of the daemon: status", lambda: clusters.clusters(client=client)),
        ("… queue of one", lambda: clusters.cluster_queue(NAME, client=client)),
        ("… queues of all", lambda: queues.fetch(client=client)),
    ):
        idle_s = _idle_cpu_s(pid)
        begun, before = time.monotonic(), cpu_s(pid)
        taken = [call() for _ in range(CALLS)]
        spent = cpu_s(pid) - before - idle_s * (time.monotonic() - begun)
        figures.append(Figure(name, max(0.0, spent) / len(taken), "s", TARGET_S))
    return figures


def _idle_cpu_s(pid: int) -> float:
    """CPU seconds that the daemon uses in a second without calls."""
    shares = []
    for _ in range(3):
        begun, before = time.monotonic(), cpu_s(pid)
        time.sleep(1.0)
        shares.append((cpu_s(pid) - before) / (time.monotonic() - begun))
    return statistics.median(shares)


def remove_copies() -> None:
    """Take the copies down as their user would: they have no machines."""
    engine = open_database(f"sqlite:///{home_dir() / 'perdure.db'}")
    with engine.begin() as conn:
        copies = _CLUSTER.c.name != NAME
        conn.execute(_CLUSTER.update().where(copies).values(wanted="DOWN", active_name=None))
    engine.dispose()


if __name__ == "__main__":
    sys.exit(main())
