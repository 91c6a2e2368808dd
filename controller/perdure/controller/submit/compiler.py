"""Checks the tasks of a submission and compiles them to what the policies and the nodes need. Writes nothing; `service`
stores the result.

Bad input raises RequestRejected: what is wrong, where, what to do.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from perdure.controller.buckets.service import StorageService
from perdure.controller.buckets.stores import StorageError
from perdure.controller.clouds.base.config_section import SectionError
from perdure.controller.clouds.base.launch_warnings import WarnsOfLaunches
from perdure.controller.clouds.base.protocol import HasTaskSettings, OpensPorts
from perdure.controller.clouds.machine_options import REGISTRY_VARIABLES, boot_image
from perdure.controller.reconcile.market_state import MarketState
from perdure.controller.runtime.config.notify_config import NO_NOTIFICATIONS, NotifyConfig
from perdure.controller.runtime.security.keyring import Keyring
from perdure.controller.runtime.security.secret_refs import (
    GIT_CREDENTIALS,
    mask_secrets,
    secret_mask,
    without_credentials,
)
from perdure.controller.store.records.jobs import NewTask
from perdure.controller.submit.errors import RequestRejected
from perdure.controller.submit.mount_limits import able_to_mount
from perdure.recovery.job import TaskView
from perdure.recovery.policies.unnamed_strategy import default_strategy
from perdure.sdk import Task
from perdure.sdk.requirements import Candidate, candidates, chooses_strategy, count_candidates
from perdure.sdk.requirements import recovery as recovery_of
from perdure.sdk.spec.parse_task import size_problem
from perdure.sdk.spec.problems import TaskError, describe
from perdure.sdk.spec.resource_fields import HOOK_EVENTS
from perdure.sdk.spec.values.variables import FIELDS_WITH_REFERENCES as WITH_REFERENCES

_NO_WORK = (
    "the amount of work is unknown, so the task runs on-demand until its checkpoints report progress "
    "(Checkpointer(..., total_steps=N)); `work: 48h` under job_recovery lets it use spot from the start"
)
# The fields of a mount that may hold secrets. The bucket's name may not: buckets are created and found by it.
_MASKED_MOUNT_FIELDS = ("path", "prefix")
# Field of `job_recovery` → the strategies that use it. The others are used by all; `work` by forecasts, too.
_USED_BY = {"on_time": ("DEADLINE",), "patience": ("VALUE",), "move_cost": ("VALUE", "DEADLINE")}
# A candidate takes 4 ms with 10,000 offers, and other launches wait meanwhile.
_MAX_CANDIDATES, _MAX_CANDIDATES_OF_JOB = 500, 2_500
_HOOK_TIMEOUT_S = 3600  # as in SkyPilot
# The clouds with settings of their own in a task's `config`.
_CLOUDS_WITH_SETTINGS = {"kubernetes"}
_SHA256 = re.compile("[0-9a-f]{64}")

# Field of a launch request → the field of a task's resources that it comes from.
_RESOURCE_FIELDS = {
    "disk_gib": "disk_size",
    "disk_tier": "disk_tier",
    "network_tier": "network_tier",
    "image_id": "image_id",
    "labels": "labels",
    "ports": "ports",  # of clusters alone
}


@dataclass(frozen=True)
class CompiledJob:
    """A job that can be stored."""

    name: str
    tasks: list[NewTask]
    priority: int
    warnings: tuple[str, ...]  # fields that have no effect, and tasks that will miss their deadline


@dataclass(frozen=True)
class Compiler:
    """Compiles jobs against the clouds' offers and the stores that are configured."""

    keyring: Keyring
    market: MarketState
    storage: StorageService
    notify: NotifyConfig = NO_NOTIFICATIONS

    def compile(self, name: str | None, configs: Sequence[Mapping[str, Any]], now: float) -> CompiledJob:
        """Compile a job of these tasks; a task without a name is named after the job. Raises RequestRejected."""
        tasks = parse_tasks(configs)
        check_alternatives(tasks)
        job_name = _job_name(name, [task.name for task in tasks])
        names = [t.name or (job_name if len(tasks) == 1 else f"{job_name}-{i}") for i, t in enumerate(tasks)]
        compiled = [self._compile(task, name, i, now) for i, (task, name) in enumerate(zip(tasks, names, strict=True))]
        priority = max(task.priority or 0 for task in tasks)
        strategies = [task.view.recovery.strategy for task in compiled]
        warnings = (
            *self._warnings(tasks),
            *_unused_by_strategy(tasks, strategies),
            *self._deadline_warnings(compiled, now),
            *self._callback_warnings(compiled),
        )
        return CompiledJob(job_name, compiled, priority, tuple(dict.fromkeys(warnings)))

    def _warnings(self, tasks: Sequence[Task]) -> tuple[str, ...]:
        """Fields that are accepted but have no effect: everywhere, or on a usable cloud that the task may run on."""
        usable = [cloud for cloud in self.market.clouds.values() if self.market.unusable(cloud) is None]
        warnings = [warning for task in tasks for warning in task.warnings]
        for task in tasks:
            clouds: dict[str, set[str]] = {}  # field → the clouds that ignore it
            for candidate in candidates(task.resources):
                for cloud in usable:
                    if candidate.requirement.cloud in (None, cloud.name):
                        options = _boot_options(candidate, cloud.name)
                        for option in options.keys() & cloud.ignores:
                            clouds.setdefault(_RESOURCE_FIELDS[option], set()).add(cloud.name)
                        if isinstance(cloud, WarnsOfLaunches):
                            accelerators = candidate.requirement.accelerators
                            warnings += cloud.launch_warnings(options, accelerators, task.num_nodes or 1)
            for field, names in sorted(clouds.items()):
                where = " and ".join(sorted(names))
                warnings.append(f"resources.{field}: accepted, but has no effect on {where}")
            warnings += self._settings_warnings(task, [cloud.name for cloud in usable])
        return tuple(dict.fromkeys(warnings))

    def clouds_without_ports(self) -> list[str]:
        """The usable clouds that open no ports of machines to the internet."""
        closed = [cloud for cloud in self.market.clouds.values() if not isinstance(cloud, OpensPorts)]
        return [cloud.name for cloud in closed if self.market.unusable(cloud) is None]

    def _settings_warnings(self, task: Task, usable: Sequence[str]) -> Iterator[str]:
        """What the clouds say about their settings in the task. Raises RequestRejected for invalid ones."""
        for cloud in _CLOUDS_WITH_SETTINGS & (task.to_yaml_config().get("config") or {}).keys():
            named = {candidate.requirement.cloud for candidate in candidates(task.resources)}
            if cloud not in usable or not named & {None, cloud}:
                yield f"config.{cloud}: accepted, but has no effect: the task cannot run on {cloud}"
        for cloud, settings in self._cloud_settings(task.to_yaml_config()).items():
            checker = self.market.clouds[cloud]
            assert isinstance(checker, HasTaskSettings)
            try:
                yield from (f"config.{cloud}.{warning}" for warning in checker.check_settings(settings))
            except SectionError as error:
                raise RequestRejected(error.message, where=error.where, fix=error.fix) from error

    def _cloud_settings(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Cloud → the task's `config.<cloud>`, for the clouds that have such settings."""
        given = config.get("config") or {}
        return {
            name: given[name]
            for name, cloud in self.market.clouds.items()
            if given.get(name) and isinstance(cloud, HasTaskSettings)
        }

    def _deadline_warnings(self, tasks: Sequence[NewTask], now: float) -> tuple[str, ...]:
        """A warning for each task that would miss its deadline even without preemptions, or whose work is unknown.

        Raises RequestRejected for a deadline in the past.
        """
        warnings, ends_at = [], now
        for task in tasks:
            recovery = task.view.recovery
            if recovery.deadline_at is not None and recovery.deadline_at <= now:
                fix = "give a later one, or a duration such as 60h, which counts from the launch"
                raise RequestRejected("the deadline has passed", where="resources.job_recovery.deadline", fix=fix)
            if recovery.deadline_at is not None and recovery.work_s is None:
                warnings.append(f"task {task.name}: {_NO_WORK}")
            ends_at += (recovery.work_s or 0.0) + self.market.view().history.startup_times.mean_s
            if recovery.deadline_at is not None and ends_at > recovery.deadline_at:
                late_min = (ends_at - recovery.deadline_at) / 60
                warnings.append(
                    f"task {task.name}: even on-demand, it will end about {late_min:.0f} min after its deadline"
                )
        return tuple(warnings)

    def _callback_warnings(self, tasks: Sequence[NewTask]) -> tuple[str, ...]:
        if self.notify.runs_callbacks or not any(task.spec["event_callback"] for task in tasks):
            return ()
        return (
            "event_callback: accepted, but has no effect: this controller runs no commands of users; its administrator "
            "can allow it with notify.event_callback, or use `notify` with a channel",
        )

    def _notify(self, value: Any) -> dict[str, Any] | None:
        """The task's `notify` as a mapping with `to`, and `when` if it is given. Raises RequestRejected."""
        given = value if isinstance(value, Mapping) else {"to": value} if value else {}
        for channel in given.get("to", ()):
            if channel not in self.notify.channels:
                known = ", ".join(sorted(self.notify.channels)) or "none"
                raise RequestRejected(
                    f"there is no notification channel {describe(channel)}",
                    where="notify",
                    fix=f"channels: {known}; they are defined in notify.channels of the controller's config.yaml",
                )
        return dict(given) or None

    def _compile(self, task: Task, name: str, index: int, now: float) -> NewTask:
        config = task.to_yaml_config()
        secrets = {k: str(v) for k, v in (config.pop("secrets", None) or {}).items()}
        mask = secret_mask(secrets)
        workdir, credentials = _masked_workdir(config.get("workdir"), secrets)
        resources = task.resources
        try:
            storage = self.storage.plan(config.get("file_mounts") or {})
        except StorageError as error:
            raise RequestRejected(error.message, where=error.where, fix=error.fix) from error
        settings = self._cloud_settings(config)
        placements = able_to_mount(
            candidates(resources), storage.mounts, self.market.clouds, settings, num_nodes=task.num_nodes
        )
        view = TaskView(
            index=index,
            requirements=tuple(candidate.requirement for candidate in placements),
            num_nodes=task.num_nodes,
            recovery=recovery_of(resources, launched_at=now),
            storage_ready=not storage.buckets,
            wake_at=now if index == 0 else None,
        )
        why = "you chose it"
        if not chooses_strategy(resources):
            strategy, why = default_strategy(view, self.market.view(), now)
            view = replace(view, recovery=replace(view.recovery, strategy=strategy))
        spec = {
            "setup": config.get("setup"),
            "run": config.get("run"),
            "runtime": config.get("runtime"),
            "run_options": _run_options(config),
            "envs": {k: str(v) for k, v in (config.get("envs") or {}).items()},
            "secret_names": sorted(secrets),
            "workdir": workdir,
            "uploads": [upload | {"path": mask(upload["path"])} for upload in storage.uploads],
            "mounts": [mount | mask({k: mount[k] for k in _MASKED_MOUNT_FIELDS}) for mount in storage.mounts],
            "buckets": [bucket.to_json() for bucket in storage.buckets],
            "resources": _resources_summary(view),
            "machines": [_machine_options(candidate) for candidate in placements],
            "cloud_settings": settings,
            "strategy_reason": why,
            "hooks": [_hook(hook) for hook in config.get("config", {}).get("hooks", ())],
            "sweep": {k: [str(v) for v in values] for k, values in (config.get("sweep") or {}).items()},
            "notify": self._notify(config.get("notify")),
            "event_callback": config.get("event_callback"),
        }
        for digest in upload_digests(spec):
            if not _SHA256.fullmatch(digest):
                raise RequestRejected(
                    f"{describe(digest)} is not the digest of an upload",
                    where=name,
                    fix="give the sha256 of the uploaded file",
                )
        _check_registry({**spec["envs"], **secrets}, name)
        kept = secrets | ({} if credentials is None else {GIT_CREDENTIALS: credentials})
        sealed = self.keyring.seal(kept) if kept else None
        masked = config | {field: mask(config[field]) for field in WITH_REFERENCES if field in config}
        if "workdir" in config:
            masked["workdir"] = workdir
        return NewTask(view, name, masked, spec, sealed)


def check_alternatives(tasks: Sequence[Task]) -> None:
    """Raises RequestRejected for more alternatives than can be compared with all offers while others wait."""
    counts = [count_candidates(task.resources) for task in tasks]
    if max(counts) > _MAX_CANDIDATES or sum(counts) > _MAX_CANDIDATES_OF_JOB:
        of_task = max(counts) > _MAX_CANDIDATES
        limit, subject = (_MAX_CANDIDATES, "a task") if of_task else (_MAX_CANDIDATES_OF_JOB, "the tasks of a job")
        raise RequestRejected(
            f"{max(counts) if of_task else sum(counts):,} combinations of alternatives, accelerators and images are "
            f"too many: {subject} may have {limit:,}",
            where="resources",
            fix="give fewer of them",
        )


def _unused_by_strategy(tasks: Sequence[Task], strategies: Sequence[str]) -> Iterator[str]:
    """A warning for each field of `job_recovery` that the strategy of its task does not use."""
    for task, strategy in zip(tasks, strategies, strict=True):
        given = next(iter(task.resources)).job_recovery or {}
        for name, users in _USED_BY.items():
            if name in given and strategy not in users:
                yield f"resources.job_recovery.{name}: accepted, but has no effect with strategy {strategy}"


def _hook(hook: Mapping[str, Any]) -> dict[str, Any]:
    """An entry of `config.hooks` in the form of the agent protocol."""
    events = [event for event in HOOK_EVENTS if event in (hook.get("events") or HOOK_EVENTS)]
    return {"run": hook["run"], "events": events, "timeout_s": float(hook.get("timeout", _HOOK_TIMEOUT_S))}


def _masked_workdir(workdir: Any, secrets: Mapping[str, str]) -> tuple[Any, str | None]:
    """`workdir` without secrets, and the credentials that were written in the URL of its git repository, if any."""
    if not isinstance(workdir, Mapping) or "upload" in workdir:
        return workdir, None
    masked = {name: mask_secrets(value, secrets) for name, value in workdir.items()}
    url, credentials = without_credentials(str(masked["url"]), secrets)
    return {**masked, "url": url}, credentials


def upload_digests(spec: Mapping[str, Any]) -> list[str]:
    """The uploads that a task's spec refers to: its workdir, its files, and the files for its buckets."""
    files = [spec["workdir"], *spec["uploads"]]
    digests = [str(file["upload"]) for file in files if isinstance(file, Mapping) and "upload" in file]
    return digests + [digest for bucket in spec["buckets"] for digest in bucket["uploads"]]


def parse_tasks(configs: Sequence[Mapping[str, Any]], *, ignored: Collection[str] = ()) -> list[Task]:
    """Parse and check the tasks of a submission. Raises RequestRejected.

    `ignored`: fields that are acted on elsewhere, although a job with them is refused.
    """
    if not configs:
        raise RequestRejected("the job has no task", where="tasks", fix="give at least one")
    if problem := size_problem(configs):
        raise RequestRejected(
            f"the job {problem}", where="tasks", fix="move large values into files (workdir, file_mounts)"
        )
    try:
        tasks = [Task.from_yaml_config(dict(config)) for config in configs]
    except TaskError as error:
        raise rejection_of(error) from error
    for field in (field for task in tasks for field in task.unsupported if field.option not in ignored):
        fix = f"leave the field out; `perdure jobs launch` does it with --ignore {field.option}"
        raise RequestRejected(field.message, where=field.field, fix=fix)
    return tasks


def rejection_of(error: TaskError) -> RequestRejected:
    """The problems of a task as the rejection of a request."""
    first = error.problems[0]
    if len(error.problems) > 1:
        return RequestRejected(str(error), where=first.field, fix="correct the task and launch it again")
    fix = first.fix or "correct the task and launch it again"
    return RequestRejected(first.message, where=first.field or None, fix=fix)


def _job_name(name: str | None, task_names: Sequence[str | None]) -> str:
    chosen = name or (task_names[0] if len(task_names) == 1 else None) or "job"
    return re.sub(r"[^A-Za-z0-9_.-]", "-", chosen)


def _resources_summary(task: TaskView) -> str:
    """The requested resources in a few characters, for the queue."""
    first = task.requirements[0]
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
    return text + (f" or {len(task.requirements) - 1} more" if len(task.requirements) > 1 else "")


def _machine_options(candidate: Candidate) -> dict[str, Any]:
    """The options of a launch request that are not part of an offer."""
    given = candidate.option.to_yaml_config() | {"image_id": candidate.image_id}
    return {name: given[field] for name, field in _RESOURCE_FIELDS.items() if given.get(field) is not None}


def _boot_options(candidate: Candidate, cloud: str) -> dict[str, Any]:
    """The options of a launch on `cloud`, without a container's image that the nodes run themselves."""
    options = _machine_options(candidate)
    return {name: value for name, value in options.items() if name != "image_id" or boot_image(value, cloud)}


def _run_options(config: Mapping[str, Any]) -> list[str]:
    """The arguments of `docker run` in a task's `config.docker.run_options`, one word each."""
    given = ((config.get("config") or {}).get("docker") or {}).get("run_options") or ()
    return [word for line in given for word in shlex.split(line)]


def _check_registry(variables: Mapping[str, str], task: str) -> None:
    """Raises RequestRejected if only some of the registry's credentials are given."""
    given = [name for name in REGISTRY_VARIABLES if variables.get(name)]
    if given and len(given) < len(REGISTRY_VARIABLES):
        missing = next(name for name in REGISTRY_VARIABLES if name not in given)
        raise RequestRejected(
            f"task {task}: {given[0]} is given, but {missing} is not", where=f"secrets.{missing}", fix="give all three"
        )
