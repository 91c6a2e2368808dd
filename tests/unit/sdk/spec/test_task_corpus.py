"""The task YAMLs of tests/data/task_yaml: what Perdure does with each, and what SkyPilot does."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from perdure.sdk.dag import Dag
from perdure.sdk.spec import file_mount_fields, resource_fields, task_fields
from perdure.sdk.spec.problems import TaskError
from perdure.sdk.spec.validators import Record
from support.helpers.timing import scaled

CORPUS = Path(__file__).parents[3] / "data/task_yaml"
SKYPILOT_PYTHON = os.environ.get("PERDURE_SKYPILOT_PYTHON", "")
JUDGE = Path(__file__).with_name("skypilot_judge.py")
FIELDS: dict[str, list[str]] = json.loads((CORPUS / "skypilot_fields.json").read_text())  # of SkyPilot 0.14.1
CASES: dict[str, dict[str, Any]] = {
    f"{file.stem}/{name}": case
    for file in sorted(CORPUS.glob("*.yaml"))
    for name, case in yaml.safe_load(file.read_text()).items()
}


def verdict(text: str) -> str:
    try:
        dag = Dag.from_yaml(text)
    except TaskError:
        return "rejects"
    if any(task.unsupported for task in dag.tasks):
        return "refuses"
    return "warns" if dag.warnings else "runs"


@pytest.mark.parametrize("name", CASES)
def test_corpus__is_read_as_stated(name: str) -> None:
    assert verdict(CASES[name]["task"]) == CASES[name]["perdure"]


def test_corpus__gives_a_reason_for_each_difference() -> None:
    assert len(CASES) > 200
    differing = {
        name for name, case in CASES.items() if (case["perdure"] == "rejects") != (case["skypilot"] == "rejects")
    }
    assert differing == {name for name, case in CASES.items() if "why" in case}


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case["perdure"] != "rejects"])
def test_corpus__canonical_form_is_read_alike(name: str) -> None:
    """A task that is sent to the controller, or loaded from its database, means the same there."""
    for task in Dag.from_yaml(CASES[name]["task"]).tasks:
        again = type(task).from_yaml_config(task.to_yaml_config())
        assert again == task
        assert [field.option for field in again.unsupported] == [field.option for field in task.unsupported]


@pytest.mark.parametrize(
    ("mapping", "ours"),
    [
        ("task", task_fields.TASK),
        ("resources", resource_fields.RESOURCES),
        ("storage", file_mount_fields.STORAGE),
        ("storage.config", file_mount_fields.STORAGE_CONFIG),
        ("storage.config.mount", file_mount_fields.MOUNT),
        ("storage.config.mount_cached", file_mount_fields.MOUNT_CACHED),
    ],
)
def test_schema__has_every_field_of_skypilot(mapping: str, ours: Record) -> None:
    assert not set(FIELDS[mapping]) - ours.fields.keys()


@pytest.mark.skipif(not SKYPILOT_PYTHON, reason="PERDURE_SKYPILOT_PYTHON names no Python with SkyPilot")
def test_corpus__is_judged_by_skypilot_as_stated() -> None:
    texts = json.dumps({name: case["task"] for name, case in CASES.items()})
    command = [SKYPILOT_PYTHON, str(JUDGE)]
    done = subprocess.run(command, input=texts, capture_output=True, text=True, check=True, timeout=scaled(120))
    answer = json.loads(done.stdout.splitlines()[-1])
    found = {name: "rejects" if error else "accepts" for name, error in answer["verdicts"].items()}
    assert found == {name: case["skypilot"] for name, case in CASES.items()}
    assert answer["fields"] == FIELDS
