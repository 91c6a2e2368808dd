"""Jobs whose launch a quota holds back have no machine anywhere; those whose machines wait show why."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fastapi.testclient import TestClient

from perdure.controller.api.app import create_app
from perdure.controller.clouds.fake import FakeCloud
from perdure.controller.daemon import Daemon
from perdure.controller.runtime.clock import ManualClock
from perdure.controller.runtime.config.settings import Settings
from perdure.controller.store.engine.batch_writer import WriteBatch
from perdure.controller.store.records import jobs
from perdure.recovery import frozen
from perdure.recovery.job import AttemptView, NodeView
from perdure.recovery.statuses import AttemptState, TaskState
from support.worlds.job_driver import OFFERS


class QueueCloud(FakeCloud):
    """A cloud whose machines wait in a queue."""

    def why_waiting(self, controller: str, job_id: int, task: int) -> str | None:
        return f"waits in a queue: {controller} {job_id}-{task}"


def test_job__that_a_quota_holds_back_is_pending_and_nowhere(tmp_path: Path) -> None:
    daemon = Daemon(Settings(tmp_path), ManualClock())
    try:
        held = replace(daemon.api_context, launch_blocked_reason=lambda _job_id, _task: "it waits")
        clouds = {OFFERS[0].cloud: QueueCloud(ManualClock())}
        in_queue = replace(daemon.api_context, clouds=clouds)
        headers = {"Authorization": f"Bearer {daemon.api_context.keyring.user_token}"}
        free, blocked, queued = (
            TestClient(create_app(context), base_url="http://127.0.0.1", headers=headers)
            for context in (daemon.api_context, held, in_queue)
        )
        body = {"tasks": [{"run": "true"}], "key": "k"}
        assert free.post("/api/v1/jobs", json=body).status_code == 201
        now = daemon.api_context.clock.now()
        with daemon.database.begin() as conn:
            before = jobs.load(conn, [1])[1]
            attempt = AttemptView(1, AttemptState.REQUESTED, OFFERS[0], (NodeView(0),), now)
            task = frozen.replace(before.tasks[0], state=TaskState.PROVISIONING, attempts=(attempt,))
            writes = WriteBatch(conn)
            jobs.save(writes, before, before.with_task(task), now)
            writes.flush()
        launched, waiting = (client.get("/api/v1/jobs").json()["jobs"][0] for client in (free, blocked))
        assert (launched["status"], launched["zone"]) == ("STARTING", OFFERS[0].zone)
        assert (waiting["status"], waiting["message"]) == ("PENDING", "it waits")
        assert [waiting[name] for name in ("cloud", "region", "zone", "market")] == [None] * 4
        assert waiting["cluster_resources"] == ""
        shown = queued.get("/api/v1/jobs").json()["jobs"][0]
        assert (shown["status"], shown["zone"]) == ("STARTING", OFFERS[0].zone)
        assert shown["message"] == f"waits in a queue: {daemon.api_context.controller_id} 1-0"
        assert queued.get("/api/v1/jobs/1").json()["message"] == shown["message"]
    finally:
        daemon.socket.close()
        daemon.close()
