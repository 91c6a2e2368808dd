"""The fields of a task's YAML that the command line can override, or leave out (`--ignore`)."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from perdure.sdk.spec import yaml_reader
from perdure.sdk.spec.problem_list import Report
from perdure.sdk.spec.problems import Problem, TaskError, choice_fix
from perdure.sdk.spec.resource_fields import (
    HOOK_EVENTS,
    JOB_RECOVERY_FIELDS,
    RESOURCE_FIELDS,
    canonical_alternatives,
    canonical_resources,
    unsupported_image,
)
from perdure.sdk.spec.task_fields import TASK_FIELDS
from perdure.sdk.spec.validators import validate

# Override → the field of each alternative of `resources` that it replaces.
IN_RESOURCES = {
    "infra": "infra",
    "gpus": "accelerators",
    "instance_type": "instance_type",
    "cpus": "cpus",
    "memory": "memory",
    "use_spot": "use_spot",
    "job_recovery": "job_recovery",
    "keep_on_failure": "job_recovery",
    "priority": "priority",
    "disk_size": "disk_size",
    "disk_tier": "disk_tier",
    "network_tier": "network_tier",
    "image_id": "image_id",
    "labels": "labels",
    "ports": "ports",
}
IN_TASK = ("name", "num_nodes", "workdir", "config")
OF_GIT = {"git_url": "url", "git_ref": "ref"}  # override → the field of `workdir` that it replaces
OVERRIDES = (*IN_RESOURCES, *IN_TASK, *OF_GIT)

# What `--ignore` takes, in full: the fields for which a launch is refused otherwise.
IGNORABLE = (
    *("volumes", "volume_mounts", "service", "pool", "config.hooks"),
    *(f"resources.{name}" for name in ("image_id", "volumes", "hooks", "autostop.hook")),
)


def ignored_options(fields: Collection[str]) -> frozenset[str]:
    """The options of IGNORABLE that `fields` names, in full or by their end (`image_id`). Raises TaskError."""
    for name in fields:
        if not any(_names(name, option) for option in IGNORABLE):
            raise TaskError([Problem("--ignore", f"unknown field {name!r}", choice_fix(name, IGNORABLE))])
    return frozenset(option for option in IGNORABLE if any(_names(name, option) for name in fields))


def without(config: dict[str, Any], options: Collection[str]) -> dict[str, Any]:
    """A canonical task configuration without what a launch is refused for under each of `options`."""
    for option in options:
        first, *rest = option.split(".")
        hooks = config.get("config", {}).get("hooks", ())
        if option == "config.hooks" and (running := [hook for hook in hooks if _runs(hook)]):
            config = config | {"config": config["config"] | {"hooks": running}}
        elif first == "resources" and first in config:
            resources = config[first]
            kind = next((kind for kind in ("any_of", "ordered") if kind in resources), None)
            kept = {kind: [_drop(one, rest) for one in resources[kind]]} if kind else _drop(resources, rest)
            config = config | {first: kept}
        else:
            config = _drop(config, [first, *rest])
    return config


def _names(given: str, option: str) -> bool:
    return option == given or option.endswith(f".{given}")


def _drop(mapping: dict[str, Any], path: list[str]) -> dict[str, Any]:
    name, *rest = path
    value = mapping.get(name)
    if rest:
        return mapping | {name: _drop(value, rest)} if isinstance(value, dict) else mapping
    if name == "image_id" and not unsupported_image(value):
        return mapping
    return {key: item for key, item in mapping.items() if key != name}


def _runs(hook: Mapping[str, Any]) -> bool:
    return bool(set(hook.get("events") or HOOK_EVENTS) & set(HOOK_EVENTS))


def apply(config: dict[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The changed fields of a canonical task configuration. Raises TaskError; TypeError for an unknown name."""
    unknown = given.keys() - set(OVERRIDES)
    if unknown:
        raise TypeError(f"unknown overrides: {', '.join(sorted(unknown))}; allowed: {', '.join(OVERRIDES)}")
    report = Report()
    given_values = {name: value for name, value in given.items() if value is not None and value != ()}
    git = {OF_GIT[name]: given_values.pop(name) for name in OF_GIT if name in given_values}
    parsed = {name: _parse(name, value, report) for name, value in given_values.items()}
    if git:
        parsed["workdir"] = _git_workdir(config.get("workdir"), git, report)
    report.raise_if_invalid()
    changed = {name: value for name, value in parsed.items() if name in IN_TASK}
    if "config" in changed:
        changed["config"] = _merged(config.get("config", {}), changed["config"] or {})
    in_resources = {name: value for name, value in parsed.items() if name in IN_RESOURCES}
    if in_resources:
        changed["resources"] = _override_resources(config.get("resources", {}), in_resources)
    return changed


def parse_settings(given: Sequence[str]) -> dict[str, Any]:
    """The settings of `--config`: each a YAML file, or `key.key=value` with a value in YAML. The last one wins.

    Raises TaskError.
    """
    settings: dict[str, Any] = {}
    for text in given:
        settings = _merged(settings, _setting(text) if "=" in text else _settings_file(text))
    return settings


def _setting(text: str) -> dict[str, Any]:
    key, _, value = text.partition("=")
    names = key.split(".")
    if not all(name.strip() for name in names):
        fix = "write it like kubernetes.provision_timeout=600"
        raise TaskError([Problem("--config", f"{text!r} is not KEY=VALUE", fix)])
    setting: Any = yaml_reader.read_text(value, file=f"--config {key}")[0].value if value.strip() else ""
    for name in reversed(names):
        setting = {name.strip(): setting}
    return dict(setting)


def _settings_file(path: str) -> dict[str, Any]:
    if not os.path.isfile(os.path.expanduser(path)):
        raise TaskError([Problem("--config", f"{path!r} is neither a file nor KEY=VALUE", "give one of them")])
    document, *others = yaml_reader.read_file(path)
    if others or not isinstance(document.value, dict):
        raise TaskError([Problem("--config", "the file is not one mapping", "write `key: value` lines", file=path)])
    return document.value


def _merged(settings: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`settings` with `changes`; mappings in both are merged."""
    merged = dict(settings)
    for name, value in changes.items():
        known = merged.get(name)
        merged[name] = _merged(known, value) if isinstance(known, dict) and isinstance(value, dict) else value
    return merged


def _git_workdir(workdir: Any, git: dict[str, Any], report: Report) -> Any:
    """The repository of `--git-url` and `--git-ref`; the latter alone changes that of the YAML."""
    if "url" not in git:
        if not isinstance(workdir, dict) or "url" not in workdir:
            report.add_problem(("--git-ref",), "the task's `workdir` is no git repository", "give --git-url, too")
            return None
        git = {"url": workdir["url"], **git}
    return validate(TASK_FIELDS["workdir"].validator, git, ("--git-url",), report)


def _parse(name: str, value: Any, report: Report) -> Any:
    if isinstance(value, str) and value.lower() == "none":
        return None
    if name in JOB_RECOVERY_FIELDS:
        field = JOB_RECOVERY_FIELDS[name]
    else:
        field = RESOURCE_FIELDS[IN_RESOURCES[name]] if name in IN_RESOURCES else TASK_FIELDS[name]
    return validate(field.validator, value, (f"--{name.replace('_', '-')}",), report)


def _override_resources(config: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """The alternatives, each with the overrides, without duplicates."""
    kind = "ordered" if "ordered" in config else "any_of"
    options = config.get(kind) or [config]
    overridden = [_override_one(option, given) for option in options]
    return canonical_alternatives({kind: overridden}, {}, ("resources",), Report())


def _override_one(option: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    changed = dict(option)
    for name, value in given.items():
        if name in JOB_RECOVERY_FIELDS:
            continue
        field = IN_RESOURCES[name]
        if name == "labels":
            value = {**option.get("labels", {}), **(value or {})}
        if value is None:
            changed.pop(field, None)
        else:
            changed[field] = value
    recovery = given.get("job_recovery")
    if recovery is not None:  # another strategy keeps the limits of the YAML
        changed = canonical_resources(changed, {}, (), Report())
        changed["job_recovery"] = option.get("job_recovery", {}) | changed["job_recovery"]
    if "keep_on_failure" in given:
        kept = {"keep_on_failure": given["keep_on_failure"]} if given["keep_on_failure"] else {}
        others = {k: v for k, v in changed.get("job_recovery", {}).items() if k != "keep_on_failure"}
        changed["job_recovery"] = others | kept
        if not changed["job_recovery"]:
            del changed["job_recovery"]
    return changed
