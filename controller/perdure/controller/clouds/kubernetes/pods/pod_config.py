"""`pod_config`: fields of a pod that users set. It is merged into the pods by SkyPilot's rules, and checked before use.

Mappings are merged deeply. Lists of named things are merged by their key (`MERGE_KEYS`), some lists are replaced, all
others are appended. A container without a name means the task's own. `null` removes a field.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from perdure.controller.clouds.base.config_section import SectionError

CONTAINER = "perdure"
# The task's container in SkyPilot, which configurations name.
_OWN_CONTAINER_NAMES = (CONTAINER, "ray-node")
# Field → the key by which its entries are merged.
MERGE_KEYS = {
    **dict.fromkeys(
        ("containers", "initContainers", "ephemeralContainers", "volumes", "env", "resourceClaims", "claims"), "name"
    ),
    "volumeMounts": "mountPath",
    "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey",
    "ports": "containerPort",
    "volumeDevices": "devicePath",
}
REPLACED = ("args", "command", "imagePullSecrets")
_SCHEMA = Path(__file__).with_name("pod_schema.json")
_ROOTS = {"metadata": "ObjectMeta", "spec": "PodSpec"}
# What Perdure alone decides: the names of pods are how a launch is repeated safely.
_RESERVED = (("metadata", "name"), ("metadata", "namespace"), ("metadata", "generateName"), ("spec", "restartPolicy"))
_PYTHON_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "object": (dict,),
    "quantity": (str, int, float),
}


def merged(base: Any, over: Any, where: str = "pod_config", field: str = "") -> Any:
    """`base` with `over` merged into it; neither is changed. Raises SectionError for values of different kinds."""
    if over is None or base is None:
        return copy.deepcopy(over)
    if isinstance(base, Mapping) and isinstance(over, Mapping):
        result = dict(copy.deepcopy(base))
        for name, value in over.items():
            if value is None:
                result.pop(name, None)
            elif name in result:
                result[name] = merged(result[name], value, f"{where}.{name}", name)
            else:
                result[name] = _without_nulls(value)
        return result
    if isinstance(base, list) and isinstance(over, list):
        return _merged_list(base, over, where, field)
    if isinstance(base, Mapping | list) or isinstance(over, Mapping | list):
        kinds = f"{_kind(over)} where the pod has {_kind(base)}"
        raise SectionError(f"is {kinds}", where=where, fix=f"write {_kind(base)}")
    return over


def repaired(config: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """`config` with `limits` and `requests` of containers where they belong, and a warning for each that was moved.

    SkyPilot's guide to training prints them beside an empty `resources`, one level too high. Taken literally, this
    would remove the request for GPUs.
    """
    result, warnings = copy.deepcopy(dict(config)), []
    spec = result.get("spec")
    for kind in ("containers", "initContainers"):
        listed = spec.get(kind) if isinstance(spec, dict) else None
        for index, container in enumerate(listed if isinstance(listed, list) else ()):
            if not isinstance(container, dict) or container.get("resources") is not None:
                continue
            misplaced = [name for name in ("limits", "requests") if name in container]
            if misplaced:
                container["resources"] = {name: container.pop(name) for name in misplaced}
                names = " and ".join(misplaced)
                warnings.append(f"pod_config.spec.{kind}[{index}]: {names} moved below `resources`: indent them there")
    return result, warnings


def grants_fuse(config: Mapping[str, Any]) -> bool:
    """Whether a container may mount file systems: it is privileged, or requests a device that is called after FUSE."""
    for container in (config.get("spec") or {}).get("containers") or ():
        if (container.get("securityContext") or {}).get("privileged") is True:
            return True
        resources = container.get("resources") or {}
        amounts = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
        if any("fuse" in name.lower() for name in amounts):
            return True
    return False


def check(config: Any, where: str) -> None:
    """Raises SectionError that names the first field that a pod does not have, or whose value has a wrong type."""
    if not isinstance(config, Mapping):
        raise SectionError(f"{config!r} is not a mapping", where=where, fix="write `spec:` and `metadata:`")
    for part in config:
        if part not in _ROOTS and part not in ("apiVersion", "kind"):
            raise SectionError("no such field", where=f"{where}.{part}", fix="write `metadata:` or `spec:`")
    for part, name in _RESERVED:
        if isinstance(config.get(part), Mapping) and name in config[part]:
            raise SectionError("is set by Perdure", where=f"{where}.{part}.{name}", fix="leave it out")
    for problem_at, message in _problems(config):
        raise SectionError(message, where=f"{where}.{problem_at}", fix="see `kubectl explain pod`")


def _problems(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for part, kind in _ROOTS.items():
        if part in config and config[part] is not None:
            yield from _check_value(config[part], kind, part)


def _check_value(value: Any, kind: str, where: str) -> Iterator[tuple[str, str]]:
    if value is None:
        return  # removes the field
    if kind.startswith("[]"):
        if not isinstance(value, list):
            yield where, f"{_kind(value)} where a list is needed"
            return
        for index, one in enumerate(value):
            yield from _check_value(one, kind[2:], f"{where}[{index}]")
    elif kind.startswith("{}"):
        if not isinstance(value, Mapping):
            yield where, f"{_kind(value)} where a mapping is needed"
            return
        for name, one in value.items():
            yield from _check_value(one, kind[2:], f"{where}.{name}")
    elif kind in _PYTHON_TYPES:
        is_boolean = isinstance(value, bool)
        if not isinstance(value, _PYTHON_TYPES[kind]) or is_boolean is not (kind == "boolean"):
            yield where, f"{value!r} is not of type {kind}"
    elif kind != "any":
        yield from _check_fields(value, _schema()[kind], where)


def _check_fields(value: Any, fields: Any, where: str) -> Iterator[tuple[str, str]]:
    if isinstance(fields, str):
        yield from _check_value(value, fields, where)
    elif not isinstance(value, Mapping):
        yield where, f"{_kind(value)} where a mapping is needed"
    else:
        for name, one in value.items():
            if name not in fields or name == "!":
                yield f"{where}.{name}", "no such field"
            else:
                yield from _check_value(one, fields[name], f"{where}.{name}")


@cache
def _schema() -> dict[str, Any]:
    """The fields of a pod in the newest version of Kubernetes that is known; made by `scripts/pod_schema.py`."""
    schema: dict[str, Any] = json.loads(_SCHEMA.read_text())
    return schema


def _merged_list(base: list[Any], over: list[Any], where: str, field: str) -> list[Any]:
    if field in REPLACED:
        return copy.deepcopy(over)
    key = MERGE_KEYS.get(field)
    result = copy.deepcopy(base)
    if key is None:
        return result + [_without_nulls(one) for one in over]
    for index, one in enumerate(over):
        position = _position(result, one, key, field) if isinstance(one, Mapping) else None
        if position is None:
            result.append(_without_nulls(one))
            continue
        own_name = result[position].get("name")
        result[position] = merged(result[position], one, f"{where}[{index}]")
        if field == "containers" and position == 0:
            result[position]["name"] = own_name
    return result


def _position(entries: list[Any], one: Mapping[str, Any], key: str, field: str) -> int | None:
    """The index of the entry that `one` is merged into; None if it is another one."""
    wanted = one.get(key)
    if field == "containers" and (wanted is None or wanted in _OWN_CONTAINER_NAMES):
        return 0 if entries else None
    known = (index for index, entry in enumerate(entries) if isinstance(entry, Mapping) and entry.get(key) == wanted)
    return next(known, None)


def _without_nulls(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _without_nulls(one) for name, one in value.items() if one is not None}
    return [_without_nulls(one) for one in value] if isinstance(value, list) else copy.deepcopy(value)


def _kind(value: Any) -> str:
    return "a mapping" if isinstance(value, Mapping) else "a list" if isinstance(value, list) else "a single value"
