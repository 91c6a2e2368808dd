"""A daemon's API with users of every role, and jobs, a cluster and an upload of two of them: made once."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from sqlalchemy import delete, insert, select, update
from starlette.testclient import TestClient

from perdure.controller.api.app import application
from perdure.controller.api.routes import jobs
from perdure.controller.api.serve import proxies
from perdure.controller.daemon import Daemon
from perdure.controller.runtime.clock import ManualClock
from perdure.controller.runtime.config.settings import Settings
from perdure.controller.store.codec import encode_recovery
from perdure.controller.store.records.clusters import Cluster
from perdure.controller.store.records.jobs import Attempt, Job, Node, Task, insert_batch
from perdure.controller.store.records.notifications import add_all
from perdure.controller.store.services.records import Services, Versions, insert_replica
from perdure.recovery.job import Recovery
from perdure.recovery.statuses import NodePhase

URL = "http://127.0.0.1:8080"
OFFER = {
    "cloud": "local", "region": "r", "zone": "z", "instance_type": "local-2", "market": "spot", "price_per_hour": 1.0,
    "on_demand_price_per_hour": 2.0, "vcpus": 2, "memory_gib": 8, "accelerators": None,
}  # fmt: skip
UPLOADED = b"files of alice"
DIGEST = hashlib.sha256(UPLOADED).hexdigest()
BOBS, ALICES, HOST, MISSING = 3, 71, 72, 4242
"""The ids of jobs; `HOST` holds the machines of alice's cluster, and there is no job `MISSING`."""
CLUSTER, CLUSTER_ID = "zebra-dev", 31
"""Alice's service and her schedule, which is paused, have the name of her cluster, too."""
SERVICE_ID, PAUSED = 33, True
SERVICE_TASK = {"service": {"readiness_probe": "/up"}, "resources": {"ports": 8080}, "run": "serve"}
USERS = {"alice": "user", "bob": "user", "vera": "viewer", "oscar": "operator", "anna": "admin"}


@dataclass
class Installation:
    """`tokens`: of each user, and of `root`, which is the controller's own."""

    daemon: Daemon
    clock: ManualClock
    app: Any
    tokens: dict[str, str] = field(default_factory=dict)

    def client(self, user: str) -> TestClient:
        return TestClient(self.app, base_url=URL, headers={"Authorization": f"Bearer {self.tokens[user]}"})

    def call(self, user: str, method: str, path: str, body: Any = None, **more: Any) -> Any:
        sent = {"json": body} if body is not None else {}
        return self.client(user).request(method, f"/api/v1{path}", **sent, **more)

    def new_token(self, user: str, **more: Any) -> dict[str, Any]:
        made = self.call("root", "POST", "/tokens", {"user": user, **more})
        assert made.status_code == 201, made.text
        return dict(made.json())

    def audit(self, **wanted: Any) -> list[dict[str, Any]]:
        self.daemon.api_context.access.tick()
        return list(self.call("root", "GET", "/audit", params={"limit": 1000, **wanted}).json())

    def cancelled(self) -> list[int]:
        """The jobs to whose owners a cancel was sent."""
        with self.daemon.database.connect() as conn:
            rows = conn.exec_driver_sql("SELECT DISTINCT job_id FROM peer_message ORDER BY job_id")
            return [row[0] for row in rows]

    def forget_cancels(self) -> None:
        with self.daemon.database.begin() as conn:
            conn.exec_driver_sql("DELETE FROM peer_message")


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    clock = ManualClock()
    with pytest.MonkeyPatch.context() as patch:  # no reconciler runs, so waiting for it is in vain
        patch.setattr(jobs, "_CANCEL_VISIBLE_TIMEOUT_S", 0.0)
        patch.setattr(proxies, "OPEN_TIMEOUT_S", 0.0)  # nor does anything open endpoints
        patch.setattr(proxies, "find_haproxy", lambda: "/usr/sbin/haproxy")
        yield from _serve(tmp_path_factory, clock)


def _serve(tmp_path_factory: pytest.TempPathFactory, clock: ManualClock) -> Iterator[Installation]:
    daemon = Daemon(Settings(tmp_path_factory.mktemp("home")), clock)
    one = Installation(daemon, clock, application(daemon.api_context))
    one.tokens["root"] = daemon.api_context.keyring.user_token
    for user, role in USERS.items():
        made = one.call("root", "POST", "/users", {"name": user, "role": role})
        assert made.status_code == 201, made.text
        one.tokens[user] = one.new_token(user)["token"]
    add_things(daemon, clock.now())
    assert one.call("alice", "PUT", f"/uploads/{DIGEST}", content=UPLOADED).status_code == 201
    add_lasting_things(one)
    yield one
    daemon.socket.close()
    daemon.close()


def add_things(daemon: Daemon, now: float) -> None:
    with daemon.database.begin() as conn:
        columns = {"name": "filler", "submitted_at": now, "user": "bob", "priority": 0, "num_tasks": 1}
        ids = insert_batch(conn, columns, batch_size=HOST)
        kept = {BOBS: ("bob", "bobs"), ALICES: ("alice", "zebra"), HOST: ("alice", CLUSTER)}
        conn.execute(delete(Job).where(Job.c.id.not_in(kept)))
        assert ids[-1] == HOST
        cluster = {
            "id": CLUSTER_ID, "name": CLUSTER, "active_name": CLUSTER, "user": "alice", "wanted": "UP", "cause": "",
            "created_at": now, "launched_at": now, "active_at": now, "autostop_down": False, "recover": False,
            "next_job": 2, "config": {}, "resources": "", "command": "", "starts": 1,
        }  # fmt: skip
        conn.execute(insert(Cluster).values(cluster))
        for job_id, (user, name) in kept.items():
            of_cluster = CLUSTER_ID if job_id == HOST else None
            values = {"user": user, "name": name, "cluster_id": of_cluster, "owner": "somebody", "sweep_id": None}
            values |= {"sweep_id": ALICES} if job_id == ALICES else {}
            conn.execute(update(Job).where(Job.c.id == job_id).values(**values))
            spec: dict[str, Any] = {
                "setup": None, "run": None, "envs": {}, "gpus_per_node": 0, "uploads": [], "mounts": [], "buckets": [],
                "workdir": None,
            }  # fmt: skip
            states = {"status": "RUNNING", "state": "RUNNING", "reason": "SUBMITTED", "message": "", "name": name}
            row = {"job_id": job_id, "index": 0, "task_id": f"{name}-task", "config": {"run": name}, "spec": spec}
            conn.execute(insert(Task).values(**row, **states, requirements=[], recovery=encode_recovery(Recovery())))
            key = {"job_id": job_id, "task_index": 0, "generation": 1}
            times = {"requested_at": now - 3600, "booted_at": now - 3600, "running_at": now - 3600}
            conn.execute(insert(Attempt).values(**key, state="RUNNING", offer=OFFER, **times))
            node = {
                "rank": 0,
                "phase": NodePhase.RUNNING.value,
                "message": "",
                "instance_id": f"i-{name}",
                "launched_at": now - 3600,
            }
            conn.execute(insert(Node).values(**key, **node))
            body = {"data": {"user": user, "job_name": name}}
            row = {"event_id": name, "channel": name, "kind": "job.stuck", "job_id": job_id, "at": now, "body": body}
            add_all(conn, [row])
        assert set(conn.scalars(select(Job.c.id))) == set(kept)


def add_lasting_things(one: Installation) -> None:
    """A service of alice's with a replica that has no job yet, and a schedule of hers."""
    made = one.call("alice", "POST", "/services", {"name": CLUSTER, "task": SERVICE_TASK, "key": "of-the-service"})
    assert made.status_code == 201, made.text
    with one.daemon.database.begin() as conn:
        conn.execute(update(Services).values(id=SERVICE_ID))
        conn.execute(update(Versions).values(service_id=SERVICE_ID))
        insert_replica(conn, SERVICE_ID, 1, is_spot=False, now=one.clock.now())
    body = {"cron": "0 0 1 1 *", "tasks": [{"run": "true"}]}
    assert one.call("alice", "PUT", f"/schedules/{CLUSTER}", body).status_code == 200
    assert one.call("alice", "POST", f"/schedules/{CLUSTER}/pause").status_code == 200
