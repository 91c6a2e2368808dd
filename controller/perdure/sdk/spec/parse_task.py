"""Parses a YAML document to the canonical configuration of a task."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from perdure.sdk.spec.problem_list import Report
from perdure.sdk.spec.problems import FieldPath, Problem, TaskError, UnsupportedField, describe
from perdure.sdk.spec.task_fields import TASK
from perdure.sdk.spec.validators import validate
from perdure.sdk.spec.values import variables
from perdure.sdk.spec.yaml_reader import MAX_DEPTH, MAX_VALUES, Document

Config = dict[str, Any]

_MAX_BITS = 63
# System calls end strings at NUL, and half of a surrogate pair is not a character.
_UNWRITABLE = re.compile("[\0\ud800-\udfff]")


def parse_task(
    document: Document,
    *,
    envs: Mapping[str, object] | None = None,
    secrets: Mapping[str, object] | None = None,
) -> tuple[Config, list[Problem], list[UnsupportedField]]:
    """The canonical configuration of a task, its warnings, and the fields for which a launch is refused.

    `envs` and `secrets` replace those of the document. Raises TaskError with all problems. A canonical configuration is
    returned unchanged.
    """
    if problem := size_problem([document.value]):
        raise TaskError([Problem("", problem, file=document.file)])
    try:
        return _parse_task(Report(document), document, envs, secrets)
    except RecursionError:
        raise TaskError([Problem("", "nested too deeply to be a task", file=document.file)]) from None


def size_problem(documents: Iterable[object]) -> str | None:
    """Why documents are too large together, or nested too deeply, to be the tasks of a job; None if they are not.

    The limits are those of a YAML text, of which a few kilobytes could stand for millions of values.
    """
    level, count, depth = list(documents), 0, 0
    while level:
        if depth > MAX_DEPTH:
            return "nested too deeply to be a task"
        below: list[Any] = []
        for value in level:
            items = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
            count += len(items)
            if count > MAX_VALUES:
                return f"has more than {MAX_VALUES:,} values, which is too large to be a task"
            below.extend(items)
        level, depth = below, depth + 1
    return None


def _parse_task(
    report: Report,
    document: Document,
    envs: Mapping[str, object] | None,
    secrets: Mapping[str, object] | None,
) -> tuple[Config, list[Problem], list[UnsupportedField]]:
    if not TASK.accepts(document.value):
        TASK.add_kind_problem(document.value, (), report)
        report.raise_if_invalid()
    if not _is_storable(document.value, (), report):
        report.raise_if_invalid()
    values = {
        "envs": variables.resolve_envs(document.value, envs, report),
        "secrets": variables.resolve_secrets(document.value, secrets, report),
    }
    variables.check_total_size(values["envs"], values["secrets"], report)
    raw = variables.substitute(document, {**values["envs"], **values["secrets"]}, report)
    raw.pop("envs", None)
    raw.pop("secrets", None)
    config = validate(TASK, raw, (), report)
    report.raise_if_invalid()
    config |= values
    if config.get("num_nodes") == 1:
        del config["num_nodes"]
    config = {name: value for name, value in config.items() if value not in ({}, [], "")}
    return config, report.warnings, report.unsupported


def _is_storable(value: object, path: FieldPath, report: Report) -> bool:
    """Whether files, shells and databases can hold the value and its keys. Reports the parts that they cannot hold."""
    match value:
        case str() if _UNWRITABLE.search(value):
            fix = "remove the characters that are not text"
        case bool():
            return True
        case int() if value.bit_length() > _MAX_BITS:
            report.add_problem(path, f"found a number of {value.bit_length()} bits", "write it in quotes if it is text")
            return False
        case list() | tuple():
            return all([_is_storable(item, (*path, index), report) for index, item in enumerate(value)])
        case dict():
            keys = [_is_storable(key, path, report) for key in value]
            return all(keys) and all([_is_storable(item, (*path, key), report) for key, item in value.items()])
        case _:
            return True
    report.add_problem(path, f"found {describe(value)}", fix)
    return False
