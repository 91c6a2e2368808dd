"""Routes for task YAML: that of a job, and text that a user writes in the dashboard."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fastapi import APIRouter
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse
from pydantic import Field
from sqlalchemy import select

from perdure.controller.api.access.permitted_objects import VisibleJob, no_such_job
from perdure.controller.api.auth import Reader, Slots
from perdure.controller.api.dashboard import responses
from perdure.controller.api.dashboard.task_yaml import dump_task
from perdure.controller.api.routes.jobs import RequestBody
from perdure.controller.api.schemas import error_responses, json_response
from perdure.controller.runtime.security.keyring import Keyring, UnknownKey
from perdure.controller.store.records.jobs import Task
from perdure.controller.submit.errors import RequestRejected
from perdure.sdk.dag import Dag
from perdure.sdk.spec.problems import TaskError
from perdure.sdk.spec.yaml_reader import read_text

router = APIRouter(prefix="/api/v1", tags=["jobs"], responses=error_responses(400, 401, 503))

_MAX_YAML_CHARS = 1_000_000
_TASKS = select(Task.c.index, Task.c.name, Task.c.config, Task.c.secrets).order_by(Task.c.index)


class YamlBody(RequestBody):
    yaml: str = Field(max_length=_MAX_YAML_CHARS)


@router.get("/jobs/{job_id}/spec", responses=json_response(responses.JobSpec) | error_responses(404))
def job_spec(caller: Reader, job_id: VisibleJob) -> dict[str, Any]:
    """The tasks of a job as they were submitted: as YAML, and as what `POST /jobs` takes. Values of secrets are left
    out; `secrets` has their names until the job has ended."""
    context = caller.context
    with context.database.connect() as conn:
        rows = conn.execute(_TASKS.where(Task.c.job_id == job_id)).all()
    if not rows:
        raise no_such_job(job_id)
    return {
        "tasks": [
            {
                "task_index": row.index,
                "name": row.name,
                "yaml": dump_task(row.config),
                "config": row.config,
                "secrets": _names(context.keyring, row.secrets),
            }
            for row in rows
        ]
    }


@router.post("/tasks", responses=json_response(responses.ParsedTasks))
async def parse_tasks(caller: Reader, body: YamlBody, slots: Slots) -> JSONResponse:
    """The tasks of a YAML text, as `POST /plan` and `POST /jobs` take them. Changes nothing. Files on the user's
    computer cannot be uploaded in this way; use `perdure jobs launch` for a task that names some."""
    async with slots.of(caller.name):
        return await run_in_threadpool(_parse_tasks, body)


def _parse_tasks(body: YamlBody) -> JSONResponse:
    try:
        dag = Dag.from_documents(read_text(body.yaml))
    except TaskError as error:
        raise RequestRejected(str(error), where="yaml") from error
    configs = [task.to_yaml_config() for task in dag.tasks]
    for config in configs:
        if (path := next(_local_paths(config), None)) is not None:
            raise RequestRejected(
                f"{path!r} is a file or folder of your computer, which a browser cannot send",
                where="yaml",
                fix="remove it, or use `perdure jobs launch`, which uploads it",
            )
    warnings = [warning for task in dag.tasks for warning in task.warnings]
    return JSONResponse({"name": dag.name, "tasks": configs, "warnings": warnings})


def _local_paths(config: Mapping[str, Any]) -> Iterator[str]:
    """The paths that `perdure jobs launch` would upload."""
    mounts = list((config.get("file_mounts") or {}).values())
    sources = [mount.get("source") if isinstance(mount, Mapping) else mount for mount in mounts]
    workdir = config.get("workdir")
    yield from [workdir] if isinstance(workdir, str) else []
    for source in sources:
        for path in source if isinstance(source, list) else [source]:
            if isinstance(path, str) and "://" not in path:
                yield path


def _names(keyring: Keyring, sealed: bytes | None) -> list[str]:
    try:
        return sorted(keyring.unseal(sealed))
    except UnknownKey:
        return []
