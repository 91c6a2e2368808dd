"""What a job asks for, checked and compiled into what the decision functions and the nodes need. Writes nothing.

A refusal is a `Refused`: what is wrong, where, and what to do.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from perdure.controller.concealing import conceal
from perdure.controller.keyring import Keyring
from perdure.controller.market import Market
from perdure.controller.refusing import Refused
from perdure.controller.storage.service import StorageService
from perdure.controller.storage.stores import StorageError
from perdure.controller.store.jobs import NewTask
from perdure.recovery.job import TaskView
from perdure.recovery.policies.usual import usual_strategy
from perdure.sdk import Task
from perdure.sdk.needs import gpus_per_node, names_strategy, needs, recovery
from perdure.sdk.problems import TaskError, shown
from perdure.sdk.variables import FIELDS_WITH_REFERENCES as WITH_REFERENCES

_NO_WORK = (
    "nobody said how much work it is, so it runs on-demand until its checkpoints tell "
    "(Checkpointer(..., total_steps=N)); `work: 48h` under job_recovery lets it use spot from the start"
)
# Of a mount: not the bucket's name, by which it is made and found.
_CONCEALED = ("path", "prefix")
_SHA256 = re.compile("[0-9a-f]{64}")

# Fields of a launch request → the fields of a task's resources that they come from.
_FIELD_OF = {
    "disk_gib": "disk_size",
    "disk_tier": "disk_tier",
    "network_tier": "network_tier",
    "image_id": "image_id",
    "labels": "labels",
}


@dataclass(frozen=True)
class Compiled:
    """A job that can be accepted. `warnings`: what of it has no effect, and what will be late."""

    name: str
    tasks: list[NewTask]
    priority: int
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class Compiler:
    """Compiles jobs for what `market` offers and `storage` can make."""

    keyring: Keyring
    market: Market
    storage: StorageService

    def compile(self, name: str | None, configs: Sequence[Mapping[str, Any]], now: float) -> Compiled:
        """A job of these tasks; those without a name are named after it. Raises Refused."""
        tasks = read_tasks(configs)
        job_name = _job_name(name, [task.name for task in tasks])
        names = [t.name or (job_name if len(tasks) == 1 else f"{job_name}-{i}") for i, t in enumerate(tasks)]
        compiled = [self._compile(task, name, i, now) for i, (task, name) in enumerate(zip(tasks, names, strict=True))]
        priority = max(task.priority or 0 for task in tasks)
        return Compiled(job_name, compiled, priority, self._warnings(tasks) + self._lateness(compiled, now))

    def _warnings(self, tasks: Sequence[Task]) -> tuple[str, ...]:
        """What is accepted and has no effect: said by the tasks themselves, or true of every cloud that is usable."""
        usable = [cloud for cloud in self.market.clouds.values() if cloud.unusable() is None]
        ignored = frozenset.intersection(*(cloud.ignores for cloud in usable)) if usable else frozenset()
        names = " and ".join(cloud.name for cloud in usable)
        found = [warning for task in tasks for warning in task.warnings]
        for task in tasks:
            config = task.to_yaml_config().get("resources") or {}
            asked = sorted(_FIELD_OF[name] for name in _machine(config) if name in ignored)
            found += [f"resources.{name}: accepted, but has no effect on {names}" for name in asked]
        return tuple(dict.fromkeys(found))

    def _lateness(self, tasks: Sequence[NewTask], now: float) -> tuple[str, ...]:
        """A line for each task that even machines that stay would not end in time. Raises Refused for a time past."""
        found, ends_at = [], now
        for task in tasks:
            asked = task.view.recovery
            if asked.deadline_at is not None and asked.deadline_at <= now:
                fix = "give a later one, or a duration such as 60h, which counts from the launch"
                raise Refused("the deadline has passed", where="resources.job_recovery.deadline", fix=fix)
            if asked.deadline_at is not None and asked.work_s is None:
                found.append(f"task {task.name}: {_NO_WORK}")
            ends_at += (asked.work_s or 0.0) + self.market.view().history.start_ups.usual_s
            if asked.deadline_at is not None and ends_at > asked.deadline_at:
                late_min = (ends_at - asked.deadline_at) / 60
                found.append(
                    f"task {task.name}: even on-demand will end it about {late_min:.0f} min after its deadline"
                )
        return tuple(found)

    def _compile(self, task: Task, name: str, index: int, now: float) -> NewTask:
        config = task.to_yaml_config()
        secrets = {k: str(v) for k, v in (config.pop("secrets", None) or {}).items()}
        resources = task.resources
        try:
            storage = self.storage.plan(config.get("file_mounts") or {})
        except StorageError as error:
            raise Refused(error.message, where=error.where, fix=error.fix) from error
        view = TaskView(
            index=index,
            needs=needs(resources),
            num_nodes=task.num_nodes,
            recovery=recovery(resources, launched_at=now),
            storage_ready=not storage.wishes,
            wake_at=now if index == 0 else None,
        )
        why = "you chose it"
        if not names_strategy(resources):
            strategy, why = usual_strategy(view, self.market.view(), now)
            view = replace(view, recovery=replace(view.recovery, strategy=strategy))
        spec = {
            "setup": config.get("setup"),
            "run": config.get("run"),
            "envs": {k: str(v) for k, v in (config.get("envs") or {}).items()},
            "secret_names": sorted(secrets),
            "workdir": _concealed_workdir(config.get("workdir"), secrets),
            "uploads": [upload | {"path": conceal(upload["path"], secrets)} for upload in storage.uploads],
            "mounts": [mount | conceal({k: mount[k] for k in _CONCEALED}, secrets) for mount in storage.mounts],
            "buckets": [wish.to_json() for wish in storage.wishes],
            "gpus_per_node": gpus_per_node(resources),
            "resources": _requested(view),
            "machine": _machine(config.get("resources") or {}),
            "why_strategy": why,
        }
        for digest in uploads_of(spec):
            if not _SHA256.fullmatch(digest):
                raise Refused(f"{shown(digest)} names no upload", where=name, fix="give the sha256 of what was sent")
        sealed = self.keyring.seal(secrets) if secrets else None
        concealed = config | {field: conceal(config[field], secrets) for field in WITH_REFERENCES if field in config}
        return NewTask(view, name, concealed, spec, sealed)


def _concealed_workdir(workdir: Any, secrets: Mapping[str, str]) -> Any:
    """A git repository's address may hold a token; an upload is only a digest."""
    if not isinstance(workdir, Mapping) or "upload" in workdir:
        return workdir
    return {name: conceal(value, secrets) for name, value in workdir.items()}


def uploads_of(spec: Mapping[str, Any]) -> list[str]:
    """The uploads that a task's spec names: its workdir, its files, and what goes into its buckets."""
    files = [spec["workdir"], *spec["uploads"]]
    found = [str(one["upload"]) for one in files if isinstance(one, Mapping) and "upload" in one]
    return found + [digest for bucket in spec["buckets"] for digest in bucket["uploads"]]


def read_tasks(configs: Sequence[Mapping[str, Any]]) -> list[Task]:
    """The tasks of a submission, checked. Raises Refused with all that is wrong."""
    if not configs:
        raise Refused("the job has no task", where="tasks", fix="give at least one")
    try:
        return [Task.from_yaml_config(dict(config)) for config in configs]
    except TaskError as error:
        where = error.problems[0].field
        raise Refused(str(error), where=where, fix="correct the task and launch it again") from error


def _job_name(name: str | None, task_names: Sequence[str | None]) -> str:
    chosen = name or (task_names[0] if len(task_names) == 1 else None) or "job"
    return re.sub(r"[^A-Za-z0-9_.-]", "-", chosen)


def _requested(task: TaskView) -> str:
    """The request in a few characters, for the queue."""
    first = task.needs[0]
    parts = []
    if first.instance_type:
        parts.append(first.instance_type)
    if first.accelerators:
        parts.append(f"{first.accelerators[0]}:{first.accelerators[1]:g}")
    if first.cpus:
        parts.append(f"cpus={first.cpus}")
    if first.memory_gib:
        parts.append(f"mem={first.memory_gib}")
    text = f"{task.num_nodes}x[{', '.join(parts) or 'any'}]" + ("[Spot]" if first.use_spot else "")
    return text + (f" or {len(task.needs) - 1} more" if len(task.needs) > 1 else "")


def _machine(resources: Mapping[str, Any]) -> dict[str, Any]:
    """What a launch asks of its machines besides the offer."""
    return {name: resources[field] for name, field in _FIELD_OF.items() if resources.get(field) is not None}
