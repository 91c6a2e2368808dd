"""Envs and secrets: their values, and `${NAME}` in the fields where SkyPilot replaces it.

`setup` and `run` are not changed: the shell on the node expands the variables.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from perdure.sdk.spec.problem_list import Report
from perdure.sdk.spec.problems import FieldPath, describe
from perdure.sdk.spec.task_fields import SECRETS, VARIABLES
from perdure.sdk.spec.validators import validate
from perdure.sdk.spec.yaml_reader import Document

FIELDS_WITH_REFERENCES = ("file_mounts", "workdir", "service", "volumes")

_REFERENCE = r"\$(?:\{([A-Za-z_][A-Za-z0-9_]*)\}|([A-Za-z_][A-Za-z0-9_]*))"
_MAX_ROUNDS = 10
_MAX_CHARS = 65_536
_MAX_EXPANDED_CHARS = 8 * 2**20  # of all texts together: a short variable may be replaced thousands of times

# Linux starts no process with a longer string (MAX_ARG_STRLEN), or with more in all than a quarter of its stack's
# limit, usually 2 MiB. Of that, a part is left to the variables that Perdure sets.
_MAX_VARIABLE_BYTES = 128 * 1024
_MAX_TOTAL_BYTES = 2 * 1024 * 1024 - 256 * 1024
_USE_A_FILE = "put large values into a file, and upload it with `file_mounts`"
_POINTER_BYTES = 8  # the kernel counts one for each variable


def resolve_envs(config: Mapping[str, Any], given: Mapping[str, object] | None, report: Report) -> dict[str, str]:
    """The task's envs, replaced by those that the caller gives. A variable without a value is a problem."""
    own = validate(VARIABLES, config["envs"], ("envs",), report) if config.get("envs") is not None else {}
    return _values(own, given, ("envs",), "--env", report)


def resolve_secrets(config: Mapping[str, Any], given: Mapping[str, object] | None, report: Report) -> dict[str, str]:
    """As `resolve_envs`. A list names secrets whose values the caller has to give."""
    own = validate(SECRETS, config["secrets"], ("secrets",), report) if config.get("secrets") is not None else {}
    if isinstance(own, list):
        own = {name: None for name in own if name}
    return _values(own, given, ("secrets",), "--secret", report)


def check_total_size(envs: Mapping[str, str], secrets: Mapping[str, str], report: Report) -> None:
    """Report envs and secrets that are together too large for the environment of a process."""
    total_bytes = sum(_size(name, value) + _POINTER_BYTES for name, value in {**envs, **secrets}.items())
    if total_bytes > _MAX_TOTAL_BYTES:
        report.add_problem(
            ("envs",) if envs else ("secrets",),
            f"{len(envs) + len(secrets)} variables have {total_bytes} bytes together",
            f"Linux starts no process with more than {_MAX_TOTAL_BYTES} bytes of them; {_USE_A_FILE}",
        )


def substitute(document: Document, variables: Mapping[str, str], report: Report) -> dict[Any, Any]:
    """The document's mapping with the variables replaced in the fields that may refer to them, including keys."""
    config = dict(document.value)
    expansion = _Expansion(variables, document, report)
    for name in FIELDS_WITH_REFERENCES:
        if name in config:
            config[name] = expansion.substitute(config[name], (name,))
    return config


def _values(
    own: dict[str, str | None] | None, given: Mapping[str, object] | None, path: FieldPath, option: str, report: Report
) -> dict[str, str]:
    override = validate(VARIABLES, dict(given or {}), (option,), report)
    values: dict[str, str] = {}
    for name, value in {**(own or {}), **override}.items():
        if value is not None:
            values[name] = value
            if (size_bytes := _size(name, value)) > _MAX_VARIABLE_BYTES:
                report.add_problem(
                    (*path, name),
                    f"has {size_bytes} bytes with its name",
                    f"Linux starts no process with a variable of more than {_MAX_VARIABLE_BYTES} bytes; {_USE_A_FILE}",
                )
            continue
        fix = f"pass {option} {name}=VALUE"
        if name in os.environ:
            fix += f", or {option} {name} to take it from your environment"
        report.add_problem((*path, name), "has no value", fix)
    return values


def _size(name: str, value: str) -> int:
    """The bytes of `NAME=value` and the zero byte at its end."""
    return len(f"{name}={value}".encode("utf-8", "surrogatepass")) + 1


class _Expansion:
    """Replaces the references to variables in one document."""

    def __init__(self, variables: Mapping[str, str], document: Document, report: Report) -> None:
        self._variables, self._document, self._report = variables, document, report
        self._chars = 0  # of what the expanded texts have become

    def substitute(self, value: Any, path: FieldPath) -> Any:  # the shape of `value`
        match value:
            case str():
                return self._expand(value, path)
            case list() | tuple():
                return [self.substitute(item, (*path, index)) for index, item in enumerate(value)]
            case dict():
                result: dict[Any, Any] = {}
                for key, item in value.items():
                    new = self._expand(key, (*path, key)) if isinstance(key, str) else key
                    if new != key:
                        self._document.rename((*path, key), (*path, new))
                    if new in result:
                        message = f"becomes {describe(new)}, which already exists"
                        self._report.add_problem((*path, key), message, "keep one of them")
                    result[new] = self.substitute(item, (*path, new))
                return result
            case _:
                return value

    def _expand(self, text: str, path: FieldPath) -> str:
        """Replace the references to variables that have a value, until no such reference is left.

        A task is parsed again after it went through JSON, and must not change then.
        """
        original, variables = text, self._variables
        for _ in range(_MAX_ROUNDS):
            references = [match[1] or match[2] for match in re.finditer(_REFERENCE, text)]
            if len(text) + sum(len(variables.get(name, "")) for name in references) > _MAX_CHARS:
                break
            replaced = re.sub(_REFERENCE, lambda match: variables.get(match[1] or match[2], match[0]), text)
            if replaced == text:
                return text
            text = replaced
            self._chars += len(text)
            if self._chars > _MAX_EXPANDED_CHARS:
                self._report.add_problem(path, "the variables make the task far too large", "use shorter values")
                self._report.raise_if_invalid()
        self._report.add_problem(
            path, f"the variables of {describe(original)} refer to each other without end", "give them plain values"
        )
        return original
