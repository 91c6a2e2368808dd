"""Envs and secrets, and references to them in other fields."""

from __future__ import annotations

import pytest

from perdure.sdk import Task, TaskError


def test_variables__are_replaced_in_the_fields_of_skypilot() -> None:
    task = Task.from_yaml_str(
        """
        envs: {SIZE: 7, BUCKET: weights, EMPTY: ''}
        secrets: {USER_DIR: me}
        name: n
        workdir: ./code-$SIZE
        file_mounts:
          /model/llama-${SIZE}b$EMPTY: s3://llama/llama-${SIZE}b
          ~/$USER_DIR: ~/$HOME_NOT_GIVEN/${USER_DIR}
          /bucket: {name: '${BUCKET}-$SIZE', source: ['./a-$SIZE']}
        service: {readiness_probe: /v$SIZE}
        volumes: {/$SIZE: v}
        resources: {labels: {size: $SIZE}}
        setup: echo $SIZE ${BUCKET}
        run: echo $SIZE ${BUCKET}
        """
    )
    config = task.to_yaml_config()
    assert config["workdir"] == "./code-7"
    assert config["file_mounts"] == {
        "/model/llama-7b": "s3://llama/llama-7b",
        "~/me": "~/$HOME_NOT_GIVEN/me",
        "/bucket": {"name": "weights-7", "source": ["./a-7"], "mode": "MOUNT"},
    }
    assert config["service"] == {"readiness_probe": {"path": "/v7"}}
    assert config["volumes"] == {"/7": "v"}
    assert config["resources"] == {"labels": {"size": "$SIZE"}}
    assert config["setup"] == config["run"] == "echo $SIZE ${BUCKET}"


def test_variables__may_refer_to_variables() -> None:
    task = Task(envs={"A": "$B-1", "B": "b", "SELF": "$SELF"}, workdir="/$A/$SELF")
    assert task.workdir == "/b-1/$SELF"
    assert Task.from_yaml_config(task.to_yaml_config()) == task


@pytest.mark.parametrize("envs", [{"A": "$B", "B": "x$A"}, {"A": "$A$A$A$A"}, {"A": "$B" * 1000, "B": "$C" * 1000}])
def test_variables__reject_endless_references(envs: dict[str, str]) -> None:
    with pytest.raises(TaskError) as error:
        Task(envs={**envs, "C": "c" * 100}, workdir="$A")
    assert str(error.value) == (
        "workdir: the variables of '$A' refer to each other without end; give them plain values"
    )


def test_variables__reject_paths_that_become_equal() -> None:
    with pytest.raises(TaskError) as error:
        Task.from_yaml_str("envs: {A: x}\nfile_mounts:\n  /x: ./1\n  /$A: ./2\n")
    assert str(error.value) == "line 4: file_mounts[/$A]: becomes '/x', which already exists; keep one of them"


def test_variables__keep_the_line_of_a_problem() -> None:
    with pytest.raises(TaskError) as error:
        Task.from_yaml_str("envs: {A: x}\nfile_mounts:\n  /$A:\n    name: abc\n    mode: MUONT\n")
    (problem,) = error.value.problems
    assert (problem.line, problem.field) == (5, "file_mounts[/x].mode")


def test_variables__given_values_replace_those_of_the_yaml() -> None:
    task = Task.from_yaml_str("envs: {A: , B: b}\nsecrets: [secrets:S]\n", envs={"A": 1, "C": "c"}, secrets={"S": "s"})
    assert task.envs == {"A": "1", "B": "b", "C": "c"}
    assert task.secrets == {"S": "s"}


def test_variable__longer_than_linux_starts_is_rejected() -> None:
    longest = "x" * (128 * 1024 - len("A=") - 1)
    assert Task(envs={"A": longest}, run="true").envs["A"] == longest
    for field in ("envs", "secrets"):
        with pytest.raises(TaskError, match=rf"{field}\.A: has 131073 bytes with its name; .*more than 131072 bytes"):
            Task.from_yaml_config({"run": "true", field: {"A": longest + "x"}})
    with pytest.raises(TaskError, match="has 131073 bytes"):
        Task(envs={"A": longest[:-1] + "é"}, run="true")


def test_variables__larger_together_than_linux_starts_are_rejected() -> None:
    envs = {f"V{number:05}": "v" * 50 for number in range(20_000)}
    Task.from_yaml_config({"run": "true", "envs": envs})
    with pytest.raises(TaskError, match=r"40000 variables have 2640000 bytes together; .*more than 1835008 bytes"):
        Task.from_yaml_config({"run": "true", "envs": envs, "secrets": {"S" + name: "s" * 49 for name in envs}})
