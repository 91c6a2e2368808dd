"""The Python SDK: tasks, resources, storage, and `jobs` to launch and follow them.

    from perdure import sdk

    sdk.jobs.launch(sdk.Task.from_yaml("train.yaml"))

Every name is imported when it is first used, so commands that only call the controller do not load the schema.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perdure.sdk import jobs as jobs
    from perdure.sdk.dag import Dag as Dag
    from perdure.sdk.resources import Alternatives as Alternatives
    from perdure.sdk.resources import Resources as Resources
    from perdure.sdk.spec.problems import Problem as Problem
    from perdure.sdk.spec.problems import TaskError as TaskError
    from perdure.sdk.storage import Storage as Storage
    from perdure.sdk.storage import StorageMode as StorageMode
    from perdure.sdk.storage import StoreType as StoreType
    from perdure.sdk.task import Task as Task

_HOMES = {
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

__all__ = [  # noqa: PLE0604  # names of `_HOMES`
    "jobs",
    *_HOMES,
]


def __getattr__(name: str) -> Any:
    if name == "jobs":
        return import_module("perdure.sdk.jobs")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"perdure.sdk.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
