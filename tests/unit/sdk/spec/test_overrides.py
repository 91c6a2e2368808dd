"""Overrides of the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perdure.sdk import Dag, Problem, Resources, TaskError
from perdure.sdk.spec.overrides import parse_settings

PIPELINE = """
name: nightly
execution: serial
---
name: train
envs: {A: 1}
run: echo train
---
run: echo evaluate
---
run: echo publish
"""


def names(dag: Dag) -> list[str | None]:
    return [task.name for task in dag.tasks]


START = {"infra": "aws/us-east-1", "accelerators": {"A100": 8}, "cpus": "8+", "labels": {"a": "1"}}


@pytest.mark.parametrize(
    ("given", "changes"),
    [
        ({}, {}),
        ({"infra": None, "gpus": None, "ports": ()}, {}),
        ({"infra": "k8s"}, {"infra": "kubernetes"}),
        ({"infra": "none"}, {"infra": None}),
        ({"gpus": "v100"}, {"accelerators": {"V100": 1}}),
        ({"gpus": "None"}, {"accelerators": None}),
        ({"cpus": 4, "memory": "64GB"}, {"cpus": "4", "memory": "64"}),
        ({"cpus": "none"}, {"cpus": None}),
        ({"use_spot": True}, {"use_spot": True}),
        ({"use_spot": False}, {}),
        ({"job_recovery": "failover"}, {"job_recovery": {"strategy": "FAILOVER"}}),
        ({"job_recovery": "none"}, {}),
        ({"priority": -5}, {"priority": -5}),
        ({"disk_size": "1TB", "disk_tier": "HIGH"}, {"disk_size": 1024, "disk_tier": "high"}),
        ({"disk_tier": "none"}, {}),
        ({"network_tier": "best"}, {"network_tier": "best"}),
        ({"image_id": "docker:x"}, {"image_id": "docker:x"}),
        ({"instance_type": "p3.2xlarge"}, {"instance_type": "p3.2xlarge"}),
        ({"labels": {"b": "2"}}, {"labels": {"a": "1", "b": "2"}}),
        ({"ports": ("80", "90-91")}, {"ports": ["80", "90-91"]}),
    ],
)
def test_override__changes_resources(given: dict[str, Any], changes: dict[str, Any]) -> None:
    dag = Dag.from_yaml("name: x\nrun: x\n")
    dag.tasks[0].set_resources(Resources.from_yaml_config(START))
    assert dag.override(**given) is dag
    expected = {name: value for name, value in (START | changes).items() if value is not None}
    assert dag.tasks[0].to_yaml_config()["resources"] == expected


def test_override__changes_task_fields() -> None:
    dag = Dag.from_yaml(PIPELINE).override(num_nodes=2, workdir="./code", name="weekly")
    assert dag.name == "weekly"
    assert names(dag) == ["train", "weekly-1", "weekly-2"]
    assert all((task.num_nodes, task.workdir) == (2, "./code") for task in dag.tasks)
    assert dag.override(workdir="none", num_nodes=1).to_yaml_configs()[2] == {
        "name": "weekly-2",
        "run": "echo publish",
    }
    assert names(Dag.from_yaml("name: a\nrun: x\n").override(name="b")) == ["b"]


def test_override__applies_to_every_alternative() -> None:
    text = "run: x\nresources:\n  ordered: [{infra: aws, use_spot: true}, {infra: gcp}]\n"
    dag = Dag.from_yaml(text).override(gpus="T4:2")
    assert dag.tasks[0].to_yaml_config()["resources"] == {
        "ordered": [
            {"infra": "aws", "use_spot": True, "accelerators": {"T4": 2}},
            {"infra": "gcp", "accelerators": {"T4": 2}},
        ]
    }
    dag.override(infra="local", use_spot=False)
    assert dag.tasks[0].to_yaml_config()["resources"] == {"infra": "local", "accelerators": {"T4": 2}}


def test_override__strategy_keeps_the_limits() -> None:
    text = "run: x\nresources:\n  job_recovery: {strategy: failover, max_restarts_on_errors: 3}\n"
    (task,) = Dag.from_yaml(text).override(job_recovery="cheapest").tasks
    assert task.to_yaml_config()["resources"] == {"job_recovery": {"strategy": "CHEAPEST", "max_restarts_on_errors": 3}}
    (task,) = Dag.from_yaml(text).override(job_recovery="none").tasks
    assert "resources" not in task.to_yaml_config()


def test_override__reports_options_and_changes_nothing() -> None:
    dag = Dag.from_yaml(PIPELINE)
    before = dag.to_yaml_configs()
    with pytest.raises(TaskError) as error:
        dag.override(infra="asw/x", gpus="A100:x", num_nodes=0, name="other", disk_tier="hgih", job_recovery="FAILOVR")
    assert [problem.field for problem in error.value.problems] == [
        "--infra",
        "--gpus",
        "--num-nodes",
        "--disk-tier",
        "--job-recovery",
    ]
    assert error.value.problems[2] == Problem(
        "--num-nodes", "found the number 0", "allowed: a whole number from 1 to 10000"
    )
    with pytest.raises(TaskError, match=r"^--name: found 'a b'; allowed"):
        dag.override(name="a b", num_nodes=2)
    with pytest.raises(TypeError, match="unknown overrides: gpu; allowed: infra, gpus"):
        dag.override(gpu="A100")
    assert dag.to_yaml_configs() == before
    assert dag.name == "nightly"


GIT = "https://example.com/a.git"


@pytest.mark.parametrize(
    ("workdir", "given", "changed"),
    [
        ("{}", {"git_url": GIT}, {"url": GIT}),
        ("{workdir: src}", {"git_url": GIT, "git_ref": "v1"}, {"url": GIT, "ref": "v1"}),
        (f"{{workdir: {{url: '{GIT}', ref: main}}}}", {"git_ref": "v2"}, {"url": GIT, "ref": "v2"}),
        (f"{{workdir: {{url: '{GIT}', ref: main}}}}", {"git_url": "g:b"}, {"url": "g:b"}),
    ],
)
def test_override__changes_the_git_repository(workdir: str, given: dict[str, str], changed: dict[str, str]) -> None:
    assert Dag.from_yaml(workdir + "\n").override(**given).tasks[0].workdir == changed


def test_override__needs_a_repository_for_a_ref() -> None:
    with pytest.raises(TaskError, match=r"--git-ref: the task's `workdir` is no git repository; give --git-url, too"):
        Dag.from_yaml("workdir: src\n").override(git_ref="main")


def test_override__merges_settings(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text("kubernetes: {custom: {a: 1}}\naws: {vpc_name: v}\n")
    given = parse_settings(
        [str(tmp_path / "s.yaml"), "kubernetes.custom.b=[1, x]", "aws.vpc_name=w", "hooks=[{run: a}]"]
    )
    dag = Dag.from_yaml("config: {kubernetes: {custom: {c: 3}}, gcp: {d: 4}}\n").override(config=given)
    assert dag.tasks[0].to_yaml_config()["config"] == {
        "kubernetes": {"custom": {"a": 1, "b": [1, "x"], "c": 3}},
        "gcp": {"d": 4},
        "aws": {"vpc_name": "w"},
        "hooks": [{"run": "a"}],
    }
    assert [warning.partition(": accepted")[0] for warning in dag.warnings] == [
        *("line 1: config.kubernetes.custom", "line 1: config.gcp", "config.aws")
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("nowhere.yaml", "--config: 'nowhere.yaml' is neither a file nor KEY=VALUE; give one of them"),
        ("a..b=1", "--config: 'a..b=1' is not KEY=VALUE; write it like kubernetes.provision_timeout=600"),
        ("a=[1", "--config a:1: not YAML: "),
    ],
)
def test_settings__report_problems(text: str, expected: str) -> None:
    with pytest.raises(TaskError) as caught:
        parse_settings([text])
    assert str(caught.value).startswith(expected)


def test_settings__of_a_file_are_one_mapping(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text("[a]\n")
    with pytest.raises(TaskError, match=r"the file is not one mapping; write `key: value` lines"):
        parse_settings([str(tmp_path / "s.yaml")])
    with pytest.raises(TaskError, match=r"config: found a|--config"):
        Dag.from_yaml("run: x\n").override(config=parse_settings(["hooks=5"]))
