"""Jobs of one task and pipelines."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.sdk import Dag, Task, TaskError

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


def test_pipeline__names_unnamed_tasks_after_the_job() -> None:
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
def test_dag__names_job_and_tasks(
    text: str, name: str | None, dag_name: str | None, task_names: list[str | None]
) -> None:
    dag = Dag.from_yaml(text if "\n" in text else text + "\n", name=name)
    assert dag.name == dag_name
    assert names(dag) == task_names


def test_dag_from_yaml__accepts_files_and_text(tmp_path: Path) -> None:
    file = tmp_path / "t.yaml"
    file.write_text(PIPELINE)
    for source in (file, str(file), PIPELINE):
        assert names(Dag.from_yaml(source)) == ["train", "nightly-1", "nightly-2"]
    assert Dag.from_yaml("run: echo hi").tasks[0].run == "echo hi"
    with pytest.raises(TaskError) as error:
        Dag.from_yaml("missing.yaml")
    assert str(error.value) == ("missing.yaml: cannot be read: No such file or directory; give the path of a task YAML")


def test_dag_from_command__makes_one_task() -> None:
    dag = Dag.from_command("echo a: b && sleep 1", name="hi")
    assert dag.to_yaml_configs() == [{"name": "hi", "run": "echo a: b && sleep 1"}]
    assert Dag.from_command(["python", "train.py"]).to_yaml_configs() == [{"run": "python train.py"}]


def test_dag__reports_problems_of_all_documents() -> None:
    with pytest.raises(TaskError) as error:
        Dag.from_yaml("name: 5\n---\nrum: x\n---\nnum_nodes: 0\n")
    assert [(problem.line, problem.field) for problem in error.value.problems] == [
        (1, "name"),
        (3, "rum"),
        (5, "num_nodes"),
    ]


def test_header__rejects_parallel_execution() -> None:
    with pytest.raises(TaskError) as error:
        Dag.from_yaml(
            "name: g\nexecution: parallel\nprimary_tasks: [a]\ntermination_delay: 30s\n---\nname: a\nrun: x\n"
        )
    assert str(error.value) == (
        "line 2: execution: job groups, whose tasks run at the same time, are not supported yet; "
        "remove it to run the tasks in order, or launch a job for each"
    )


def test_dag_block__collects_tasks_in_order() -> None:
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
def test_dag_block__rejects_tasks_that_are_not_one_chain(edges: str) -> None:
    with pytest.raises(TaskError) as error, Dag("p"):  # noqa: PT012
        tasks = {name: Task(name, run=name) for name in "abc"}
        for edge in filter(None, edges.split(",")):
            tasks[edge[0]] >> tasks[edge[1]]
    assert str(error.value) == "the 3 tasks of the Dag are not one chain; connect every task once: `a >> b >> c`"


def test_dag_block__passes_the_users_error_on() -> None:
    with pytest.raises(ZeroDivisionError), Dag():  # noqa: PT012
        Task("a")
        Task("b")
        1 / 0  # noqa: B018
    Task("c")


def test_dag_warnings__include_all_tasks() -> None:
    dag = Dag.from_yaml("name: p\n---\noutputs: {a: 1}\n---\ninputs: {a: 1}\n")
    assert dag.warnings == (
        "line 3: outputs: accepted, but has no effect in Perdure",
        "line 5: inputs: accepted, but has no effect in Perdure",
    )


# Overrides


def test_dag_warnings__include_the_header() -> None:
    dag = Dag.from_yaml("name: p\nprimary_tasks: [a]\n---\nname: a\nrun: x\n")
    assert dag.warnings == (
        "line 2: primary_tasks: accepted, but has no effect: the tasks of a job run one after another",
    )
