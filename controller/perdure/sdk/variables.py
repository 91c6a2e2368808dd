"""Envs and secrets: their values, and `${NAME}` in the fields where SkyPilot puts them in.

`setup` and `run` are left alone: the shell on the machine sees the variables itself.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from perdure.sdk.forms import read_as
from perdure.sdk.problems import Path, shown
from perdure.sdk.report import Report
from perdure.sdk.schema import SECRETS, VARIABLES
from perdure.sdk.yaml_reader import Document

FIELDS_WITH_REFERENCES = ("file_mounts", "workdir", "service", "volumes")

_REFERENCE = r"\$(?:\{([A-Za-z_][A-Za-z0-9_]*)\}|([A-Za-z_][A-Za-z0-9_]*))"
_MAX_ROUNDS = 10
_MAX_CHARS = 65_536


def envs(config: Mapping[str, Any], given: Mapping[str, object] | None, report: Report) -> dict[str, str]:
    """The task's envs, with what the caller gives put over them. One that is left without a value is a problem."""
    own = read_as(VARIABLES, config["envs"], ("envs",), report) if config.get("envs") is not None else {}
    return _values(own, given, ("envs",), "--env", report)


def secrets(config: Mapping[str, Any], given: Mapping[str, object] | None, report: Report) -> dict[str, str]:
    """As `envs`. A list names secrets whose values the caller has to give."""
    own = read_as(SECRETS, config["secrets"], ("secrets",), report) if config.get("secrets") is not None else {}
    if isinstance(own, list):
        own = {name: None for name in own if name}
    return _values(own, given, ("secrets",), "--secret", report)


def substitute(document: Document, variables: Mapping[str, str], report: Report) -> dict[Any, Any]:
    """The document's mapping with variables put into the fields that may refer to them, keys of mappings included."""
    config = dict(document.value)
    for name in FIELDS_WITH_REFERENCES:
        if name in config:
            config[name] = _substituted(config[name], (name,), variables, document, report)
    return config


def _values(
    own: dict[str, str | None] | None, given: Mapping[str, object] | None, path: Path, option: str, report: Report
) -> dict[str, str]:
    override = read_as(VARIABLES, dict(given or {}), (option,), report)
    values: dict[str, str] = {}
    for name, value in {**(own or {}), **override}.items():
        if value is not None:
            values[name] = value
            continue
        fix = f"pass {option} {name}=VALUE"
        if name in os.environ:
            fix += f", or {option} {name} to take it from your environment"
        report.problem((*path, name), "has no value", fix)
    return values


def _substituted(
    value: Any, path: Path, variables: Mapping[str, str], document: Document, report: Report
) -> Any:  # the shape of `value`
    match value:
        case str():
            return _expanded(value, path, variables, report)
        case list() | tuple():
            return [_substituted(item, (*path, index), variables, document, report) for index, item in enumerate(value)]
        case dict():
            result: dict[Any, Any] = {}
            for key, item in value.items():
                new = _expanded(key, (*path, key), variables, report) if isinstance(key, str) else key
                if new != key:
                    document.rename((*path, key), (*path, new))
                if new in result:
                    report.problem((*path, key), f"becomes {shown(new)}, which is there already", "keep one of them")
                result[new] = _substituted(item, (*path, new), variables, document, report)
            return result
        case _:
            return value


def _expanded(text: str, path: Path, variables: Mapping[str, str], report: Report) -> str:
    """`text` with every reference to a variable that has a value replaced, until none is left.

    Until none is left, because a task that went through JSON is read again, and has to stay what it is.
    """
    found = text
    for _ in range(_MAX_ROUNDS):
        references = [match[1] or match[2] for match in re.finditer(_REFERENCE, text)]
        if len(text) + sum(len(variables.get(name, "")) for name in references) > _MAX_CHARS:
            break
        replaced = re.sub(_REFERENCE, lambda match: variables.get(match[1] or match[2], match[0]), text)
        if replaced == text:
            return text
        text = replaced
    report.problem(path, f"the variables of {shown(found)} refer to each other without end", "give them plain values")
    return found
