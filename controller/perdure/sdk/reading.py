"""From a YAML document to a task's canonical configuration."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from perdure.sdk import variables
from perdure.sdk.forms import read_as
from perdure.sdk.problems import Path, Problem, TaskError, shown
from perdure.sdk.report import Report
from perdure.sdk.schema import TASK
from perdure.sdk.yaml_reader import Document

Config = dict[str, Any]

_MOST_BITS = 63
# NUL ends a string of the system's, and half of a surrogate pair is no character.
_UNWRITABLE = re.compile("[\0\ud800-\udfff]")


def read_task(
    document: Document,
    *,
    envs: Mapping[str, object] | None = None,
    secrets: Mapping[str, object] | None = None,
) -> tuple[Config, list[Problem]]:
    """The canonical configuration and the warnings of a task.

    `envs` and `secrets` are put over the document's own. Raises `TaskError` with everything that is wrong. Reading a
    canonical configuration gives it back unchanged.
    """
    try:
        return _read_task(Report(document), document, envs, secrets)
    except RecursionError:
        raise TaskError([Problem("", "nested too deeply to be a task", file=document.file)]) from None


def _read_task(
    report: Report,
    document: Document,
    envs: Mapping[str, object] | None,
    secrets: Mapping[str, object] | None,
) -> tuple[Config, list[Problem]]:
    if not TASK.takes(document.value):
        TASK.mismatch(document.value, (), report)
        report.finish()
    if not _is_storable(document.value, (), report):
        report.finish()
    values = {
        "envs": variables.envs(document.value, envs, report),
        "secrets": variables.secrets(document.value, secrets, report),
    }
    raw = variables.substitute(document, {**values["envs"], **values["secrets"]}, report)
    raw.pop("envs", None)
    raw.pop("secrets", None)
    config = read_as(TASK, raw, (), report)
    report.finish()
    config |= values
    if config.get("num_nodes") == 1:
        del config["num_nodes"]
    return {name: value for name, value in config.items() if value not in ({}, [], "")}, report.warnings


def _is_storable(value: object, path: Path, report: Report) -> bool:
    """Report what no file, shell or database could hold, keys included. False if there is any."""
    match value:
        case str() if _UNWRITABLE.search(value):
            fix = "leave out the characters that are no text"
        case bool():
            return True
        case int() if value.bit_length() > _MOST_BITS:
            report.problem(path, f"found a number of {value.bit_length()} bits", "write it in quotes if it is text")
            return False
        case list() | tuple():
            return all([_is_storable(item, (*path, index), report) for index, item in enumerate(value)])
        case dict():
            keys = [_is_storable(key, path, report) for key in value]
            return all(keys) and all([_is_storable(item, (*path, key), report) for key, item in value.items()])
        case _:
            return True
    report.problem(path, f"found {shown(value)}", fix)
    return False
