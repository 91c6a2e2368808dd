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


def any_of(count: int) -> dict[str, Any]:
    return {"any_of": [{"cpus": i + 1, "labels": {"a": "b"} if i % 2 else {}} for i in range(count)]}


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        (lambda: {"sweep": {"a": [1] * 60_000}}, "sweep.a: found a list of 60000; give at most 10000"),
        (lambda: {"sweep": {"a": [1] * 10_000}}, "'1' is listed twice"),
        (lambda: {"sweep": {f"v{i}": [1] for i in range(101)}}, "sweep: found a mapping of 101; give at most 100"),
        (
            lambda: {"envs": {"A": 1}, "_metadata": [1] * 200_000},
            "has more than 100,000 values, which is too large to be a task",
        ),
        (lambda: {"_metadata": {str(i): [1] for i in range(60_000)}}, "has more than 100,000 values"),
        (lambda: {"resources": any_of(201)}, "resources.any_of: found a list of 201; give at most 200"),
        (
            lambda: {"resources": any_of(200) | {"labels": {f"key{i}": "v" * 100 for i in range(400)}}},
            "resources.any_of: 200 alternatives repeat the fields beside them, 9 MB in all",
        ),
        (lambda: {"resources": {"memory": "1" + " " * 5_000 + "x"}}, "resources.memory: found '1 "),
        (lambda: {"resources": {"cpus": "1" + " " * 200_000 + "x"}}, "resources.cpus: found '1 "),
        (
            lambda: {"envs": {"A": "x" * 60_000}, "file_mounts": {"/a": {"name": "b", "source": ["${A}"] * 90_000}}},
            "the variables make the task far too large",
        ),
        (lambda: {"file_mounts": {f"/{i}": "s3://a" for i in range(1_001)}}, "found a mapping of 1001; give at most"),
        (lambda: {"config": {"docker": {"run_options": "a" * 20_000}}}, "found 20000 characters; give at most 16384"),
        (lambda: {"_metadata": deep()}, "nested too deeply to be a task"),
        (lambda: {"num_nodes": "x", **{f"field{i}": 1 for i in range(90_000)}}, "has 1000 problems"),
    ],
)
def test_task__too_large(config: Callable[[], dict[str, Any]], problem: str) -> None:
    began = time.process_time()
    with pytest.raises(TaskError) as raised:
        Task.from_yaml_config({"run": "true"} | config())
    assert problem in str(raised.value)
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


def test_task__spaces_between_accelerators() -> None:
    began = time.process_time()
    task = Task.from_yaml_config({"run": "true", "resources": {"accelerators": "A100 : 8" + " " * 200_000 + "H100"}})
    assert task.to_yaml_config()["resources"]["accelerators"] == {"A100:8": None, "H100:1": None}
    assert time.process_time() - began < scaled(MAX_S)


def test_yaml__many_renamed_keys() -> None:
    mounts = "".join(f"  /${{A}}/{i}: s3://bucket\n" for i in range(900))
    many = "".join(f"  k{i}: 1\n" for i in range(20_000))
    began = time.process_time()
    task = Task.from_yaml_str(f"envs: {{A: x}}\nfile_mounts:\n{mounts}config:\n{many}")
    assert "/x/899" in task.to_yaml_config()["file_mounts"]
    assert time.process_time() - began < scaled(5.0)


def test_yaml__position_below_a_renamed_key() -> None:
    text = "envs: {A: x}\nfile_mounts:\n  /${A}:\n    name: bucket\n    mode: WRONG\n"
    with pytest.raises(TaskError) as raised:
        Task.from_yaml_str(text)
    assert str(raised.value).startswith("line 5: file_mounts[/x].mode: unknown value 'WRONG'")
