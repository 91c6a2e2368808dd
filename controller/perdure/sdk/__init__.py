"""The Python SDK: tasks, resources, storage, clusters, `jobs` for managed jobs, `serve` for services, and `aio`.

    from perdure import sdk

    sdk.jobs.launch(sdk.Task.from_yaml("train.yaml"))

Every name is imported when it is first used, so commands that only call the controller do not load the schema.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    __version__: str

    from perdure.sdk import aio as aio
    from perdure.sdk import jobs as jobs
    from perdure.sdk import serve as serve
    from perdure.sdk.clusters import autostop as autostop
    from perdure.sdk.clusters import cancel as cancel
    from perdure.sdk.clusters import down as down
    from perdure.sdk.clusters import download_logs as download_logs
    from perdure.sdk.clusters import exec as exec
    from perdure.sdk.clusters import job_status as job_status
    from perdure.sdk.clusters import launch as launch
    from perdure.sdk.clusters import queue as queue
    from perdure.sdk.clusters import start as start
    from perdure.sdk.clusters import status as status
    from perdure.sdk.clusters import stop as stop
    from perdure.sdk.clusters import tail_logs as tail_logs
    from perdure.sdk.clusters.requests import get as get
    from perdure.sdk.clusters.requests import stream_and_get as stream_and_get
    from perdure.sdk.dag import Dag as Dag
    from perdure.sdk.jobs import schedules as schedules
    from perdure.sdk.resources import Alternatives as Alternatives
    from perdure.sdk.resources import Resources as Resources
    from perdure.sdk.spec.problems import Problem as Problem
    from perdure.sdk.spec.problems import TaskError as TaskError
    from perdure.sdk.storage import Storage as Storage
    from perdure.sdk.storage import StorageMode as StorageMode
    from perdure.sdk.storage import StoreType as StoreType
    from perdure.sdk.task import Task as Task

_HOMES = {
    **dict.fromkeys(("launch", "exec", "start", "stop", "down", "autostop", "status", "queue"), "clusters"),
    **dict.fromkeys(("job_status", "cancel", "tail_logs", "download_logs"), "clusters"),
    **dict.fromkeys(("get", "stream_and_get"), "clusters.requests"),
    "Alternatives": "resources",
    "Dag": "dag",
    "Problem": "spec.problems",
    "Resources": "resources",
    "Storage": "storage",
    "StorageMode": "storage",
    "StoreType": "storage",
    "Task": "task",
    "TaskError": "spec.problems",
}

_MODULES = {"aio": "aio", "jobs": "jobs", "schedules": "jobs.schedules", "serve": "serve"}

# Names of SkyPilot's `sky` that do not exist here → what to use.
_NO_REQUESTS = "calls return their results at once, so leave it out"
_WHERE = "name the cloud as text: Resources(infra='aws/us-east-1')"
_STATUSES = "statuses are text, such as 'RUNNING'; for enum members: perdure.recovery.statuses.Status"
_ELSEWHERE = {
    "cost_report": "use sdk.jobs.queue, whose records have `cost_usd`",
    "optimize": "use sdk.jobs.plan",
    "OptimizeTarget": "policies choose offers: Resources(job_recovery='CHEAPEST')",
    "RequestId": _NO_REQUESTS,
    "check": "run `perdure check`",
    "list_accelerators": "run `perdure gpus -o json`",
    "api_info": "run `perdure controller status`",
    "api_status": _NO_REQUESTS,
    "api_start": "run `perdure controller start`",
    "api_stop": "run `perdure controller stop`",
    "api_login": "set PERDURE_ENDPOINT and PERDURE_TOKEN",
    "storage_ls": "buckets belong to your account: use the cloud's own tools",
    "storage_delete": "buckets belong to your account: use the cloud's own tools",
    "endpoints": "nothing listens on a machine: run `perdure port-forward CLUSTER PORT`",
    "volumes": "volumes are not supported: use Storage",
    **dict.fromkeys(("AWS", "GCP", "Azure", "Kubernetes", "Lambda", "OCI", "clouds"), _WHERE),
    **dict.fromkeys(("ManagedJobStatus", "JobStatus", "ClusterStatus"), _STATUSES),
    "StatusRefreshMode": "statuses are always up to date, so leave `refresh` out",
    "DagExecution": "the tasks of a Dag run one after another",
}

__all__ = [  # noqa: PLE0604  # names of `_HOMES`
    *_MODULES,
    *_HOMES,
]


if not TYPE_CHECKING:  # for a type checker, a name that does not exist is an error

    def __getattr__(name: str) -> Any:
        if name in _MODULES:
            return import_module(f"perdure.sdk.{_MODULES[name]}")
        if name == "__version__":
            from importlib.metadata import version

            return version("perdure")
        if name not in _HOMES:
            hint = f": {_ELSEWHERE[name]}" if name in _ELSEWHERE else ""
            message = f"module {__name__!r} has no attribute {name!r}{hint}"
            raise AttributeError(message, name=name, obj=sys.modules[__name__])
        value = getattr(import_module(f"perdure.sdk.{_HOMES[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
