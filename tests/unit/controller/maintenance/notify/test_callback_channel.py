"""A callback that cannot be started."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import Engine, update

from perdure.controller.maintenance.notify.callback_channel import CallbackChannel
from perdure.controller.maintenance.notify.channel_protocol import Delivered, Message, NotDelivered
from perdure.controller.store.records.jobs import Task
from support.helpers.past_jobs import KINDS, NOW, PastJobs


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("exit 3", Delivered("exit code 3")),
        ("# " + "x" * 200_000, NotDelivered("the callback cannot be started: Argument list too long")),
    ],
)
def test_script__that_is_too_long_counts_as_a_try(
    database: Engine, tmp_path: Path, script: str, expected: Delivered | NotDelivered
) -> None:
    job = PastJobs(database, {}).add("bert", [KINDS[0]], NOW)
    with database.begin() as conn:
        conn.execute(update(Task).where(Task.c.job_id == job).values(spec={"event_callback": script}))
    data = {"job_id": job, "task": 0, "task_id": "t", "task_name": "n", "job_name": "j", "status": "FAILED"}
    message = Message("evt_1", "job.failed", "", "", {"data": data})
    assert CallbackChannel(database, tmp_path / "callbacks").deliver(message) == expected
