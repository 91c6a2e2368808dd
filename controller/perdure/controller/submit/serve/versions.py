"""Compares versions of a service: what becomes of the replicas of one when another one shall run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perdure.controller.submit.serve.replica_tasks import probe_of, replica_config
from perdure.sdk import Task
from perdure.sdk.spec import service_fields as schema_service

_OF_PROGRAM = ("name", "service", "setup", "run", "envs", "secrets", "workdir", "file_mounts")
"""The fields of a task that a machine can get anew, while it is the machine of a replica: all but buckets."""
_UPLOAD = "upload"


def uses_spot(task: Task) -> bool:
    return any(bool(one.to_yaml_config().get("use_spot")) for one in task.resources)


def run_the_same(earlier: Mapping[str, Any], config: Mapping[str, Any], *, on_spot: bool) -> bool:
    """Whether replicas of an earlier task can go on as those of a new one: they run, and are probed, in the same way.

    Files are compared by the digests of what was uploaded.
    """

    def of_replicas(one: Mapping[str, Any]) -> tuple[Any, ...]:
        port = schema_service.service_port(one)
        return replica_config(one, 0, is_spot=True, uses_spot=on_spot), port, probe_of(one["service"], port)

    return of_replicas(earlier) == of_replicas(config)


def fit_the_same_machines(earlier: Mapping[str, Any], config: Mapping[str, Any]) -> bool:
    """Whether a machine of an earlier task can become one of a new one: only the program differs, with its files."""

    def of_machine(one: Mapping[str, Any]) -> tuple[Any, ...]:
        rest = {name: value for name, value in one.items() if name not in _OF_PROGRAM}
        mounts = {path: what for path, what in (one.get("file_mounts") or {}).items() if not _is_upload(what)}
        return rest, mounts

    return of_machine(earlier) == of_machine(config)


def _is_upload(what: Any) -> bool:
    return isinstance(what, Mapping) and _UPLOAD in what


def machines_text(task: Task) -> str:
    """The requested machine in a few characters."""
    first = next(iter(task.resources)).to_yaml_config()
    parts = [f"{name}={first[name]}" for name in ("cpus", "memory") if first.get(name)]
    if accelerators := first.get("accelerators"):
        parts.insert(0, f"gpus={', '.join(_names_of(accelerators))}")
    return f"1x({', '.join(parts) or 'any'})" + ("[Spot]" if first.get("use_spot") else "")


def _names_of(accelerators: Any) -> list[str]:
    """`A100:8` for each of the accelerators that a task accepts."""
    if isinstance(accelerators, Mapping):
        return [name if count is None else f"{name}:{count:g}" for name, count in accelerators.items()]
    return [accelerators] if isinstance(accelerators, str) else list(accelerators)
