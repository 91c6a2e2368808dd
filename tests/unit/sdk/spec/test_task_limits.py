"""Tasks that did not come from a YAML text, and are too large: a readable TaskError, at once."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from perdure.sdk import Task
from perdure.sdk.spec.parse_task import size_problem
from perdure.sdk.spec.problems import TaskError
from support.helpers.timing import scaled

MAX_S = 2.0


def deep() -> Any:
    value: Any = "x"
    for _ in range(5_000):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        (lambda: {"sweep": {"a": [1] * 60_000}}, "sweep.a: found a list of 60000; give at most 10000"),
        (lambda: {"sweep": {"a": [1] * 10_000}}, "the number 1 is listed twice"),
        (lambda: {"sweep": {f"v{i}": [1] for i in range(101)}}, "sweep: found a mapping of 101; give at most 100"),
        (
            lambda: {"envs": {"A": 1}, "_metadata": [1] * 200_000},
            "has more than 100,000 values, which is too large to be a task",
        ),
        (lambda: {"_metadata": {str(i): [1] for i in range(60_000)}}, "has more than 100,000 values"),
        (lambda: {"_metadata": deep()}, "nested too deeply to be a task"),
        (lambda: {"num_nodes": "x", **{f"field{i}": 1 for i in range(90_000)}}, "has 1000 problems"),
    ],
)
def test_task__too_large(config: Callable[[], dict[str, Any]], problem: str) -> None:
    began = time.process_time()
    with pytest.raises(TaskError) as raised:
        Task.from_yaml_config({"run": "true"} | config())
    assert problem.replace("the number 1", "'1'") in str(raised.value)
    assert time.process_time() - began < scaled(MAX_S)


def test_task__largest_sweep() -> None:
    began = time.process_time()
    task = Task.from_yaml_config({"run": "true", "sweep": {"a": list(range(10_000))}})
    assert len(task.to_yaml_config()["sweep"]["a"]) == 10_000
    assert time.process_time() - began < scaled(MAX_S)


def test_task__warnings_are_limited() -> None:
    task = Task.from_yaml_config({"run": "true", "config": {f"k{i}": 1 for i in range(20_000)}})
    assert len(task.warnings) == 1_000


def test_size_problem__counts_all_documents() -> None:
    half = {"a": [1] * 60_000}
    assert size_problem([half]) is None
    assert size_problem([half, half]) == "has more than 100,000 values, which is too large to be a task"
