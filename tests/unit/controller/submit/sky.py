"""A cluster of a controller whose reconciler does not run, as its user sees it and as the database has it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy import Row, insert, select, update

from perdure.controller.daemon import Daemon
from perdure.controller.maintenance.cluster_upkeep import BusyJobs, ClusterUpkeep
from perdure.controller.runtime.clock import ManualClock
from perdure.controller.store import codec
from perdure.controller.store.records import clusters
from perdure.controller.store.records.jobs import KEY_SEPARATOR, Attempt, Job, Node, Task
from perdure.controller.submit.cluster.clusters import ClusterService
from perdure.controller.submit.cluster.requests import LaunchOptions
from perdure.controller.submit.requester import Requester
from perdure.controller.submit.service import Accepted, Submission
from perdure.recovery.job import Recovery
from perdure.recovery.reasons import Reason

TASK = {"run": "true"}
ADA = Requester("ada")


@dataclass
class Sky:
    """A cluster of one test. `cancelled`: the ids of the jobs that were cancelled."""

    daemon: Daemon
    service: ClusterService
    name: str
    cancelled: list[int] = field(default_factory=list)

    def launch(self, config: Any = TASK, key: str = "first", **options: Any) -> Any:
        return self.service.launch(self.name, config, ADA, f"{self.name}-{key}", LaunchOptions(**options))

    def exec(self, key: str = "exec") -> Any:
        return self.service.exec(self.name, TASK, ADA, f"{self.name}-{key}", None)

    def meanwhile(self, action: Callable[[], Any]) -> ClusterService:
        """The service, as another request uses it: `action` is done just before its first submission."""
        remaining = [action]

        def accept(submission: Submission) -> Accepted:
            while remaining:
                remaining.pop()()
            return self.service.accept(submission)

        return replace(self.service, accept=accept)

    def cluster(self) -> Row[Any]:
        with self.daemon.database.connect() as conn:
            row = clusters.find(conn, self.name, gone=True)
        assert row is not None
        return row

    def change(self, **columns: Any) -> None:
        with self.daemon.database.begin() as conn:
            clusters.change(conn, self.cluster().id, **columns)

    def hosts(self) -> list[Row[Any]]:
        """The jobs that hold machines, oldest first."""
        with self.daemon.database.connect() as conn:
            of_cluster = select(Job).where(clusters.IS_HOST, Job.c.cluster_id == self.cluster().id)
            return list(conn.execute(of_cluster.order_by(Job.c.id)))

    def jobs(self) -> list[int]:
        """The numbers of the jobs in the queue."""
        with self.daemon.database.connect() as conn:
            return list(clusters.numbered_jobs(conn, self.cluster().id))

    def recovery(self, job_id: int) -> Recovery:
        with self.daemon.database.connect() as conn:
            stored = conn.execute(select(Task.c.recovery).where(Task.c.job_id == job_id)).scalar_one()
        return codec.decode_recovery(stored)

    def spec(self, job_id: int) -> tuple[Any, bytes]:
        """What a job runs, and its sealed secrets."""
        with self.daemon.database.connect() as conn:
            row = conn.execute(select(Task.c.spec, Task.c.secrets).where(Task.c.job_id == job_id)).one()
        return row.spec, row.secrets

    def requirements(self, job_id: int) -> list[Any]:
        with self.daemon.database.connect() as conn:
            return list(conn.execute(select(Task.c.requirements).where(Task.c.job_id == job_id)).scalar_one())

    def limit_s(self, job_id: int) -> Any:
        return self.spec(job_id)[0]["slot"]["limit_s"]

    def starts(self) -> list[int]:
        """The starts of the cluster that have a host."""
        return [int(host.idempotency_key.rpartition(KEY_SEPARATOR)[2]) for host in self.hosts()]

    def end(self, job_id: int, outcome: Reason, **columns: Any) -> None:
        """The job ends, as the reconciler would record it."""
        with self.daemon.database.begin() as conn:
            ended = update(Task).where(Task.c.job_id == job_id)
            conn.execute(ended.values(outcome=outcome.value, state="ENDED", **columns))
            conn.execute(update(Job).where(Job.c.id == job_id).values(finalized=True))

    def stop(self) -> None:
        """Stop the cluster; its machines end at once."""
        self.service.stop(self.name)
        self.end(self.hosts()[-1].id, Reason.USER_CANCELLED)
        self.cancelled.clear()

    def advance(self, seconds: float) -> None:
        clock = self.daemon.api_context.clock
        assert isinstance(clock, ManualClock)
        clock.advance(seconds)

    def run_host(self, job_id: int) -> None:
        """The machines that a job holds are up, as the reconciler would record it."""
        now = self.daemon.api_context.clock.now()
        offer = {"cloud": "local", "vcpus": 8, "memory_gib": 8, "accelerators": None}
        with self.daemon.database.begin() as conn:
            conn.execute(update(Task).where(Task.c.job_id == job_id).values(state="RUNNING", has_run=True))
            attempt = {"job_id": job_id, "task_index": 0, "generation": 1, "state": "RUNNING", "running_at": now}
            attempt |= {"offer": offer, "requested_at": now, "terminating": False}
            conn.execute(insert(Attempt).values(**attempt))
            node = {"job_id": job_id, "task_index": 0, "generation": 1, "rank": 0, "phase": "running", "message": ""}
            conn.execute(insert(Node).values(**node, connected=True))

    def tick(self, busy_jobs: BusyJobs = lambda _floors: set()) -> None:
        """What `maintenance.cluster_upkeep` does every second."""
        ClusterUpkeep(self.daemon.database, self.daemon.api_context.clock, self.service, busy_jobs).tick()
