"""What the command line may say over a task's YAML."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perdure.sdk.forms import read_as
from perdure.sdk.report import Report
from perdure.sdk.resource_rules import finish_all_resources, finish_resources
from perdure.sdk.schema import RESOURCE_FIELDS, TASK_FIELDS

# Override → field of every alternative of `resources`.
IN_RESOURCES = {
    "infra": "infra",
    "gpus": "accelerators",
    "instance_type": "instance_type",
    "cpus": "cpus",
    "memory": "memory",
    "use_spot": "use_spot",
    "job_recovery": "job_recovery",
    "priority": "priority",
    "disk_size": "disk_size",
    "disk_tier": "disk_tier",
    "network_tier": "network_tier",
    "image_id": "image_id",
    "labels": "labels",
    "ports": "ports",
}
IN_TASK = ("name", "num_nodes", "workdir")
OVERRIDES = (*IN_RESOURCES, *IN_TASK)


def apply(config: dict[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a canonical task configuration that change. Raises `TaskError`; `TypeError` for an unknown name."""
    unknown = given.keys() - set(OVERRIDES)
    if unknown:
        raise TypeError(f"unknown overrides: {', '.join(sorted(unknown))}; there are {', '.join(OVERRIDES)}")
    report = Report()
    said = {name: value for name, value in given.items() if value is not None and value != ()}
    read = {name: _read(name, value, report) for name, value in said.items()}
    report.finish()
    changed = {name: value for name, value in read.items() if name in IN_TASK}
    in_resources = {name: value for name, value in read.items() if name in IN_RESOURCES}
    if in_resources:
        changed["resources"] = _resources(config.get("resources", {}), in_resources)
    return changed


def _read(name: str, value: Any, report: Report) -> Any:
    if isinstance(value, str) and value.lower() == "none":
        return None
    field = RESOURCE_FIELDS[IN_RESOURCES[name]] if name in IN_RESOURCES else TASK_FIELDS[name]
    return read_as(field.form, value, (f"--{name.replace('_', '-')}",), report)


def _resources(config: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """The alternatives, each with the overrides; those that become the same are one."""
    kind = "ordered" if "ordered" in config else "any_of"
    options = config.get(kind) or [config]
    overridden = [_one(option, given) for option in options]
    return finish_all_resources({kind: overridden}, {}, ("resources",), Report())


def _one(option: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    changed = dict(option)
    for name, value in given.items():
        field = IN_RESOURCES[name]
        if name == "labels":
            value = {**option.get("labels", {}), **(value or {})}
        if value is None:
            changed.pop(field, None)
        else:
            changed[field] = value
    recovery = given.get("job_recovery")
    if recovery is not None:  # the limits of the YAML stay in force under another strategy
        changed = finish_resources(changed, {}, (), Report())
        changed["job_recovery"] = option.get("job_recovery", {}) | changed["job_recovery"]
    return changed
