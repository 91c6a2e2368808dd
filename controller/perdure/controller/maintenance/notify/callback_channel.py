"""Runs a task's `event_callback` on the controller's computer, with SkyPilot's variables."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, select

from perdure.controller.maintenance.notify.channel_protocol import Delivered, Message, NotDelivered
from perdure.controller.reconcile.reports.notification_outbox import CALLBACK_STATUSES
from perdure.controller.store.engine.database import UNAVAILABLE
from perdure.controller.store.records import jobs
from perdure.controller.store.records.jobs import Task

LIMIT_S = 60.0
_MAX_LOG_BYTES = 2**20
_KEPT = ("PATH", "HOME", "USER", "LANG", "LC_ALL", "TZ", "SHELL", "TMPDIR")


@dataclass(frozen=True)
class CallbackChannel:
    """The commands run in bash, in a process group of their own, for at most `LIMIT_S`; their output is appended to a
    file in `folder`. They see the task's `envs`, but no secrets and nothing else of the daemon's environment.

    Their exit code is recorded and has no other effect.
    """

    database: Engine
    folder: Path

    def deliver(self, message: Message) -> Delivered | NotDelivered:
        data = message.body["data"]
        try:
            with self.database.connect() as conn:
                key = (Task.c.job_id == data["job_id"], Task.c.index == data["task"])
                row = conn.execute(select(Task.c.spec).where(*key)).first()
                ids = jobs.task_ids(conn, data["job_id"])
        except UNAVAILABLE as error:
            return NotDelivered(f"the database is unavailable: {error}")
        script = row.spec.get("event_callback") if row is not None else None
        if row is None or not script:
            return Delivered("the job is deleted")
        statuses = CALLBACK_STATUSES.get(message.kind, ()) or (_final_status(str(data["status"])),)
        results = []
        for status in statuses:
            environ = dict(_environment(message, row.spec.get("envs") or {}, ids, status))
            try:
                results.append(self._run(script, environ, f"jobs-callback-{data['job_id']}-{data['task']}.log"))
            except OSError as error:  # such as a script that is too long for an argument, or a full disk
                return NotDelivered(f"the callback cannot be started: {error.strerror or error}")
        return Delivered("; ".join(results))

    def _run(self, script: str, environ: dict[str, str], log_name: str) -> str:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self.folder / log_name
        with contextlib.suppress(OSError):
            if path.stat().st_size > _MAX_LOG_BYTES:
                path.unlink()
        with open(path, "ab") as output:
            process = subprocess.Popen(
                ["/bin/bash", "-c", script],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environ,
                cwd=self.folder,
                start_new_session=True,
            )
            try:
                return f"exit code {process.wait(LIMIT_S)}"
            except subprocess.TimeoutExpired:
                return f"killed after {LIMIT_S:.0f} s"
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # also what it left in the background
                process.wait()


def _final_status(status: str) -> str:
    """SkyPilot calls every FAILED_… status FAILED."""
    return "FAILED" if status.startswith("FAILED") else status


def _environment(
    message: Message, envs: dict[str, Any], task_ids: tuple[str, ...], status: str
) -> Iterator[tuple[str, str]]:
    data = message.body["data"]
    yield from ((name, os.environ[name]) for name in _KEPT if name in os.environ)
    yield from ((str(name), str(value)) for name, value in envs.items())
    yield "SKYPILOT_TASK_ID", str(data["task_id"])
    yield "SKYPILOT_TASK_IDS", "\n".join(task_ids)
    yield "TASK_ID", str(data["task"])
    yield "TASK_NAME", str(data["task_name"])
    yield "JOB_ID", str(data["job_id"])
    yield "JOB_STATUS", status
    yield "CLUSTER_NAME", f"{data['job_name']}-{data['job_id']}"
    yield "EVENT_TYPE", "Spot"
    yield "PERDURE_EVENT", message.kind
    yield "PERDURE_EVENT_ID", message.id
