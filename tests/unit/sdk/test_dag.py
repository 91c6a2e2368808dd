"""Jobs of one and of several tasks, and what the command line says over them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perdure.sdk import Dag, Problem, Resources, Task, TaskError

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


def test_a_pipeline() -> None:
    dag = Dag.from_yaml(PIPELINE, envs={"A": "2"}, secrets={"S": "s"})
    assert dag.name == "nightly"
    assert names(dag) == ["train", "nightly-1", "nightly-2"]
    assert [task.run for task in dag.tasks] == ["echo train", "echo evaluate", "echo publish"]
    assert all(task.envs == {"A": "2"} and task.secrets == {"S": "s"} for task in dag.tasks)
    assert dag.to_yaml_configs()[1] == {
        "name": "nightly-1",
        "run": "echo evaluate",
        "envs": {"A": "2"},
        "secrets": {"S": "s"},
    }


@pytest.mark.parametrize(
    ("text", "name", "dag_name", "task_names"),
    [
        ("name: a\nrun: x", None, "a", ["a"]),
        ("run: x\n", None, None, [None]),
        ("run: x\n", "given", "given", ["given"]),
        ("name: a\nrun: x", "given", "given", ["given"]),
        ("name: only\n", None, "only", ["only"]),
        ("name: p\n---\nrun: x\n", None, "p", ["p"]),
        ("name: p\n---\nname: t\nrun: x\n", None, "p", ["p"]),
        ("run: a\n---\nrun: b\n", None, None, [None, None]),
        ("run: a\n---\nrun: b\n", "given", "given", ["given-0", "given-1"]),
        (PIPELINE, "given", "given", ["train", "given-1", "given-2"]),
        ("---\nname: p\n---\n---\nrun: x\n---\nrun: y\n---\n", None, "p", ["p-0", "p-1"]),
    ],
)
def test_names(text: str, name: str | None, dag_name: str | None, task_names: list[str | None]) -> None:
    dag = Dag.from_yaml(text if "\n" in text else text + "\n", name=name)
    assert dag.name == dag_name
    assert names(dag) == task_names


def test_from_a_file_and_from_text(tmp_path: Path) -> None:
    file = tmp_path / "t.yaml"
    file.write_text(PIPELINE)
    for source in (file, str(file), PIPELINE):
        assert names(Dag.from_yaml(source)) == ["train", "nightly-1", "nightly-2"]
    assert Dag.from_yaml("run: echo hi").tasks[0].run == "echo hi"
    with pytest.raises(TaskError) as refused:
        Dag.from_yaml("missing.yaml")
    assert str(refused.value) == (
        "missing.yaml: can not be read: No such file or directory; give the path of a task YAML"
    )


def test_from_a_command() -> None:
    dag = Dag.from_command("echo a: b && sleep 1", name="hi")
    assert dag.to_yaml_configs() == [{"name": "hi", "run": "echo a: b && sleep 1"}]
    assert Dag.from_command(["python", "train.py"]).to_yaml_configs() == [{"run": "python train.py"}]


def test_problems_of_all_documents_at_once() -> None:
    with pytest.raises(TaskError) as refused:
        Dag.from_yaml("name: 5\n---\nrum: x\n---\nnum_nodes: 0\n")
    assert [(problem.line, problem.field) for problem in refused.value.problems] == [
        (1, "name"),
        (3, "rum"),
        (5, "num_nodes"),
    ]


def test_job_groups_are_refused() -> None:
    with pytest.raises(TaskError) as refused:
        Dag.from_yaml(
            "name: g\nexecution: parallel\nprimary_tasks: [a]\ntermination_delay: 30s\n---\nname: a\nrun: x\n"
        )
    assert str(refused.value) == (
        "line 2: execution: job groups, whose tasks run side by side, are not supported yet; "
        "leave it out to run the tasks in order, or launch a job for each"
    )


def test_python_pipelines() -> None:
    outside = Task("outside", run="x")
    with Dag("p") as dag:
        c = Task("c", run="c")
        a = Task(run="a")
        b = Task.from_yaml_config({"name": "b", "run": "b"})
        a >> b >> c
    assert names(dag) == ["p-0", "b", "c"]
    with Dag("q") as dag:
        outside >> Task("inside", run="y")
    assert names(dag) == ["outside", "inside"]
    with Dag() as dag:
        Task("alone", run="x")
    assert (dag.name, names(dag)) == ("alone", ["alone"])


@pytest.mark.parametrize("edges", ["", "ab", "ab,ac", "ab,ba", "ac,bc", "ab,bc,ca", "aa,ab,bc", "ab,bc,ab"])
def test_python_pipelines_that_are_no_chain(edges: str) -> None:
    with pytest.raises(TaskError) as refused, Dag("p"):  # noqa: PT012
        tasks = {name: Task(name, run=name) for name in "abc"}
        for edge in filter(None, edges.split(",")):
            tasks[edge[0]] >> tasks[edge[1]]
    assert str(refused.value) == "the 3 tasks of the Dag are not one chain; connect every task once: `a >> b >> c`"


def test_an_error_within_a_dag_is_the_users_own() -> None:
    with pytest.raises(ZeroDivisionError), Dag():  # noqa: PT012
        Task("a")
        Task("b")
        1 / 0  # noqa: B018
    Task("c")


def test_warnings_of_all_tasks() -> None:
    dag = Dag.from_yaml("name: p\n---\nservice: {a: 1}\n---\npool: {a: 1}\n")
    assert dag.warnings == (
        "line 3: service: accepted, but has no effect: Perdure runs jobs, not services or pools",
        "line 5: pool: accepted, but has no effect: Perdure runs jobs, not services or pools",
    )


# Overrides

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
def test_overrides_of_resources(given: dict[str, Any], changes: dict[str, Any]) -> None:
    dag = Dag.from_yaml("name: x\nrun: x\n")
    dag.tasks[0].set_resources(Resources.from_yaml_config(START))
    assert dag.override(**given) is dag
    expected = {name: value for name, value in (START | changes).items() if value is not None}
    assert dag.tasks[0].to_yaml_config()["resources"] == expected


def test_overrides_of_tasks() -> None:
    dag = Dag.from_yaml(PIPELINE).override(num_nodes=2, workdir="./code", name="weekly")
    assert dag.name == "weekly"
    assert names(dag) == ["train", "weekly-1", "weekly-2"]
    assert all((task.num_nodes, task.workdir) == (2, "./code") for task in dag.tasks)
    assert dag.override(workdir="none", num_nodes=1).to_yaml_configs()[2] == {
        "name": "weekly-2",
        "run": "echo publish",
    }
    assert names(Dag.from_yaml("name: a\nrun: x\n").override(name="b")) == ["b"]


def test_overrides_reach_every_alternative() -> None:
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


def test_another_strategy_keeps_the_limits() -> None:
    text = "run: x\nresources:\n  job_recovery: {strategy: failover, max_restarts_on_errors: 3}\n"
    (task,) = Dag.from_yaml(text).override(job_recovery="cheapest").tasks
    assert task.to_yaml_config()["resources"] == {"job_recovery": {"strategy": "CHEAPEST", "max_restarts_on_errors": 3}}
    (task,) = Dag.from_yaml(text).override(job_recovery="none").tasks
    assert "resources" not in task.to_yaml_config()


def test_wrong_overrides_are_named_as_options_and_change_nothing() -> None:
    dag = Dag.from_yaml(PIPELINE)
    before = dag.to_yaml_configs()
    with pytest.raises(TaskError) as refused:
        dag.override(infra="asw/x", gpus="A100:x", num_nodes=0, name="other", disk_tier="hgih", job_recovery="FAILOVR")
    assert [problem.field for problem in refused.value.problems] == [
        "--infra",
        "--gpus",
        "--num-nodes",
        "--disk-tier",
        "--job-recovery",
    ]
    assert refused.value.problems[2] == Problem(
        "--num-nodes", "found the number 0", "allowed: a whole number from 1 to 10000"
    )
    with pytest.raises(TaskError, match=r"^--name: found 'a b'; allowed"):
        dag.override(name="a b", num_nodes=2)
    with pytest.raises(TypeError, match="unknown overrides: gpu; there are infra, gpus"):
        dag.override(gpu="A100")
    assert dag.to_yaml_configs() == before
    assert dag.name == "nightly"
