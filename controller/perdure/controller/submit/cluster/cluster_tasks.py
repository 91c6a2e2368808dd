"""Turns the task of a user into the two kinds of task of a cluster: one that holds its machines, and one per job."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from perdure.controller.clouds import registry
from perdure.controller.clouds.machine_options import is_container, machine_options
from perdure.controller.runtime.security.secret_refs import mask_secrets, resolve_secrets
from perdure.controller.store.codec import decode_offer
from perdure.controller.store.records.jobs import KEY_SEPARATOR, NewTask
from perdure.controller.submit.compiler import CompiledJob
from perdure.controller.submit.errors import RequestRejected
from perdure.recovery.frozen import replace as replace_value
from perdure.recovery.job import Recovery
from perdure.recovery.market.requirements import MachineRequirement
from perdure.recovery.market.slot_queue import DEFAULT_CPUS, SLOT_CLOUD, Demand, NodeRoom, can_ever_fit
from perdure.recovery.market.view import Market
from perdure.recovery.policies.registry import FALLBACK_STRATEGY
from perdure.recovery.policies.strategies.granted_slot import STRATEGY
from perdure.sdk import Task
from perdure.sdk.requirements import machine_requirements
from perdure.sdk.spec import accelerators
from perdure.sdk.spec.values.variables import FIELDS_WITH_REFERENCES as WITH_REFERENCES

_KEPT = "the cluster {0} keeps the {1} that it was launched with; to change it, run `perdure down {0}` first"
_UNUSED = "resources.job_recovery.{0}: accepted, but has no effect on a job of a cluster"
_CLOSED = "resources.ports: accepted, but not opened on {}; `perdure port-forward` reaches the machines there"
# Field of `job_recovery` → field of `Recovery`, of those that only concern the machines of managed jobs.
_POLICY_FIELDS = {
    "deadline": "deadline_at",
    "work": "work_s",
    "on_time": "on_time",
    "patience": "patience",
    "move_cost": "move_cost",
    "keep_on_failure": "keep_on_failure_s",
}
# Of the task of a job: what the machines of the cluster decide, or have already.
_OF_MACHINES = ("file_mounts", "volumes", "event_callback", "config", "service")
# Of the task that holds the machines: what its jobs bring.
_OF_JOBS = ("workdir", "setup", "run")


@dataclass(frozen=True)
class OnCluster:
    """Where a submission belongs: to a cluster, as one of its jobs, or as the job that holds its machines."""

    cluster_id: int
    name: str
    is_job: bool
    recovers: bool = False  # of the job that holds the machines
    starts: int = 0  # of the job that holds the machines: the start of the cluster that it belongs to
    kept_offer: Mapping[str, Any] | None = None  # of the job that holds the machines: that of the disks it has kept
    discards_disks: bool = False  # of the job that holds the machines: the disks that are kept are deleted
    demand: Demand = field(default_factory=Demand)  # of a job
    limit_s: float | None = None  # how long a job may run
    needs_up: bool = False  # whether a job is rejected if the cluster is stopped or down

    def adapt(self, compiled: CompiledJob, closed: Collection[str]) -> CompiledJob:
        """The submission's job, compiled for the cluster. Of the job that holds the machines, only the warnings about
        machines are kept: its fields are those of a job, too.

        `closed`: the clouds in use that open no ports.
        """
        if not self.is_job:
            tasks = [self._host_task(task) for task in compiled.tasks]
            return replace(compiled, tasks=tasks, warnings=tuple(_closed_ports(tasks, closed)))
        unused = [name for task in compiled.tasks for name in _unused(task.view.recovery, with_cost=self.needs_up)]
        warnings = (_UNUSED.format(name) for name in unused)
        return replace(
            compiled,
            tasks=[self._job_task(task) for task in compiled.tasks],
            warnings=tuple(dict.fromkeys((*compiled.warnings, *warnings))),
        )

    def _host_task(self, task: NewTask) -> NewTask:
        _require_machine_images(task)
        # It never moves on its own, and what its jobs do is theirs: only the limit of its cost is left.
        limit = task.view.recovery.max_cost
        recovery = Recovery(strategy=FALLBACK_STRATEGY, recovers=self.recovers, max_cost=limit)
        spec, requirements = {**task.spec, "host": True}, task.view.requirements
        if self.kept_offer is not None:  # the disks can be nowhere else
            offer = decode_offer(self.kept_offer)
            spec["machines"] = [machine_options(spec, requirements, offer)]
            place = {
                name: getattr(offer, name) for name in ("cloud", "region", "zone", "instance_type", "accelerators")
            }
            requirements = (MachineRequirement(**place, use_spot=offer.market is Market.SPOT),)
        return replace(task, view=replace_value(task.view, recovery=recovery, requirements=requirements), spec=spec)

    def _job_task(self, task: NewTask) -> NewTask:
        place = MachineRequirement(cloud=SLOT_CLOUD, region=self.name, use_spot=False)
        given = task.view.recovery
        limit_s = given.max_duration_s if self.limit_s is None else self.limit_s
        # Its machines are those of the cluster, and it ends at its limit, which the queue must know.
        recovery = Recovery(
            strategy=STRATEGY,
            max_restarts_on_errors=given.max_restarts_on_errors,
            recover_on_exit_codes=given.recover_on_exit_codes,
            stuck_after_s=given.stuck_after_s,
            restart_when_stuck_s=given.restart_when_stuck_s,
            max_run_s=limit_s,
        )
        view = replace_value(task.view, requirements=(place,), recovery=recovery)
        slot = {
            "cpus": self.demand.cpus,
            "memory_gib": self.demand.memory_gib,
            "gpus": self.demand.gpus,
            "limit_s": limit_s,
        }
        return replace(task, view=view, spec={**task.spec, "slot": slot, "machines": [{}]})


def asked_ports(config: Mapping[str, Any]) -> list[str]:
    """The ports and ranges of all alternatives of a task. Those of the one that is chosen are opened."""
    resources = config.get("resources") or {}
    options = [resources, *(resources.get("any_of") or ()), *(resources.get("ordered") or ())]
    return list(dict.fromkeys(str(port) for option in options for port in option.get("ports") or ()))


def _closed_ports(tasks: Iterable[NewTask], closed: Collection[str]) -> Iterator[str]:
    """A warning if the machines may be on a cloud that does not open the ports that they are asked for."""
    places = [place for task in tasks for place in zip(task.view.requirements, task.spec["machines"], strict=True)]
    wanted = [requirement for requirement, options in places if options.get("ports")]
    names = sorted(name for name in closed if any(one.cloud in (None, name) for one in wanted))
    if names:
        yield _CLOSED.format(" and ".join(names))


def _require_machine_images(task: NewTask) -> None:
    """Raises RequestRejected for containers, except on clouds whose machines are containers."""
    for requirement, options in zip(task.view.requirements, task.spec["machines"], strict=True):
        if is_container(options.get("image_id")) and not registry.runs_containers(requirement.cloud or ""):
            raise RequestRejected(
                "a cluster cannot run its jobs in a container yet, except on Kubernetes",
                where="resources.image_id",
                fix="add `infra: k8s`, launch it as a managed job (`perdure jobs launch`), or remove image_id",
            )


def _unused(given: Recovery, *, with_cost: bool) -> list[str]:
    """The fields of `job_recovery` that a job of a cluster does not use. `with_cost`: or that launches none."""
    default = Recovery()
    names = [name for name, field in _POLICY_FIELDS.items() if getattr(given, field) != getattr(default, field)]
    return [*names, "max_cost"] if with_cost and given.max_cost is not None else names


def host_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of the task that holds the machines which `config` asks for."""
    return {name: value for name, value in config.items() if name not in _OF_JOBS}


def masked_host_config(config: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """`host_config` without its secrets, whose names stand in the fields that may use them; and the secrets."""
    machines = host_config(config)
    secrets = {name: str(value) for name, value in (machines.pop("secrets", None) or {}).items()}
    fields = [field for field in WITH_REFERENCES if field in machines]
    return machines | {field: mask_secrets(machines[field], secrets) for field in fields}, secrets


def with_secrets(machines: Mapping[str, Any], secrets: Mapping[str, str]) -> dict[str, Any]:
    """The inverse of `masked_host_config`, without empty fields."""
    fields = [field for field in WITH_REFERENCES if field in machines]
    config = {**machines, **{field: resolve_secrets(machines[field], secrets) for field in fields}}
    return {name: value for name, value in {**config, "secrets": dict(secrets)}.items() if value}


def unchanged_warnings(name: str, kept: Mapping[str, Any], config: Mapping[str, Any]) -> tuple[str, ...]:
    """Warnings about what `config` asks of the machines of a cluster that was launched with `kept`, and keeps it."""
    fields, config = [], masked_host_config(config)[0]
    if (ports := asked_ports(config)) and ports != asked_ports(kept):
        fields.append("ports")
    if config.get("file_mounts", {}) != kept.get("file_mounts", {}):
        fields.append("file_mounts")
    if _max_cost(config) is not None and _max_cost(config) != _max_cost(kept):
        fields.append("max_cost")
    return tuple(_KEPT.format(name, field) for field in fields)


def _max_cost(config: Mapping[str, Any]) -> Any:
    recovery = (config.get("resources") or {}).get("job_recovery")
    return recovery.get("max_cost") if isinstance(recovery, Mapping) else None


def job_config(config: Mapping[str, Any], *, with_setup: bool) -> dict[str, Any]:
    """The configuration of the job that `config` describes."""
    dropped = _OF_MACHINES if with_setup else (*_OF_MACHINES, "setup")
    return {name: value for name, value in config.items() if name not in dropped}


def job_key(key: str) -> str:
    """The idempotency key of the job that a request with this key adds."""
    return f"{key}{KEY_SEPARATOR}job"


def demand_of(task: Task, *, is_launch: bool) -> Demand:
    """What a node of the job takes. The `cpus` and `memory` of a launch describe the machines, so its job takes few."""
    first = machine_requirements(task.resources)[0]
    gpus = first.accelerators[1] if first.accelerators else 0.0
    if is_launch:
        return Demand(DEFAULT_CPUS, 0.0, gpus)
    cpus = first.cpus.value if first.cpus else DEFAULT_CPUS
    return Demand(cpus, first.memory_gib.value if first.memory_gib else 0.0, gpus)


def accelerator_of(task: Task) -> str | None:
    """The name of the accelerator that a job asks for."""
    first = machine_requirements(task.resources)[0]
    return first.accelerators[0] if first.accelerators else None


def short_resources(task: Task) -> str:
    """The requested machines in a few characters, until it is known which they are."""
    first = next(iter(task.resources)).to_yaml_config()
    parts = [f"{name}={first[name]}" for name in ("cpus", "memory") if first.get(name)]
    if gpus := accelerators.choices(first.get("accelerators")):
        parts.append(" or ".join(f"{name}:{count:g}" for name, count in gpus))
    spot = "[Spot]" if first.get("use_spot") else ""
    return f"{task.num_nodes}x({', '.join(parts) or 'any'}){spot}"


def lacking(
    has: str | None, wanted: str | None, nodes: Mapping[int, NodeRoom], demand: Demand, num_nodes: int
) -> str | None:
    """What machines lack that can never take a task; None if they can. `has`, `wanted`: names of accelerators."""
    if wanted and (has or "").lower() != wanted.lower():
        return f"it has no {wanted}" + (f", but {has}" if has else "")
    if can_ever_fit(nodes, demand, num_nodes):
        return None
    if num_nodes > len(nodes):
        return f"it has {len(nodes)} node{'' if len(nodes) == 1 else 's'}, and the task takes {num_nodes}"
    room = max(nodes.values(), key=lambda node: (sum(node.gpus), node.cpus))
    pairs = (
        ("CPUs", room.cpus, demand.cpus),
        ("GiB of memory", room.memory_gib, demand.memory_gib),
        ("accelerators", sum(room.gpus), demand.gpus),
    )
    short = [f"{there:g} {what}, and the task takes {taken:g}" for what, there, taken in pairs if taken > there]
    return f"a node has {'; '.join(short) or 'too little'}" + (" on each node" if num_nodes > 1 else "")
