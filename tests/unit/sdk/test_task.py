"""Tasks, resources and storage as Python objects."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from perdure.sdk import Alternatives, Resources, Storage, StorageMode, StoreType, Task, TaskError


def test_task__python_equals_yaml() -> None:
    task = Task(
        name="minGPT-ddp",
        resources=Resources(cpus="4+", accelerators="L4:4", infra="aws/us-east-1", use_spot=True),
        workdir=".",
        num_nodes=2,
        file_mounts={"~/.vimrc": "~/.vimrc"},
        storage_mounts={"/ckpt": Storage(name="my-bucket", mode=StorageMode.MOUNT_CACHED, stores=[StoreType.S3])},
        envs={"A": 1},
        secrets=[("B", "x")],
        setup=["pip install a", "pip install b"],
        run=["cd x", "torchrun main.py"],
    )
    assert task == Task.from_yaml_str(
        """
        name: minGPT-ddp
        resources: {cpus: 4+, accelerators: L4:4, infra: aws/us-east-1, use_spot: true}
        workdir: .
        num_nodes: 2
        file_mounts:
          ~/.vimrc: ~/.vimrc
          /ckpt: {name: my-bucket, mode: MOUNT_CACHED, store: s3}
        envs: {A: 1}
        secrets: {B: x}
        setup: |-
          pip install a
          pip install b
        run: |-
          cd x
          torchrun main.py
        """
    )
    assert task.setup == "pip install a\npip install b"
    assert task.num_nodes == 2
    assert task.storage_mounts["/ckpt"].store is StoreType.S3
    assert task.file_mounts == {"~/.vimrc": "~/.vimrc"}


def test_task__empty() -> None:
    task = Task()
    assert task.to_yaml_config() == {}
    assert (task.name, task.run, task.num_nodes, task.priority) == (None, None, 1, 0)
    assert task.resources == Alternatives((Resources(),))


def test_task__changes_through_methods() -> None:
    task = Task("a", run="x", envs={"A": "1"})
    bucket = Storage(name="abc")
    assert task.set_resources({Resources(infra="gcp"), Resources(infra="aws")}) is task
    assert [option.cloud for option in task.resources] == ["aws", "gcp"]
    assert not task.resources.ordered
    task.set_resources([Resources(infra="gcp"), Resources(infra="aws")])
    assert [option.cloud for option in task.resources] == ["gcp", "aws"]
    assert task.resources.ordered
    task.update_envs({"B": 2}).update_envs([("A", "3")]).update_secrets({"S": "s"})
    assert task.envs == {"A": "3", "B": "2"}
    assert task.secrets == {"S": "s"}
    task.set_file_mounts({"/x": "./x"}).set_storage_mounts({"/b": bucket}).update_file_mounts({"/y": "s3://y"})
    assert task.file_mounts == {"/x": "./x", "/y": "s3://y"}
    assert task.storage_mounts == {"/b": bucket}
    task.set_file_mounts(None)
    assert list(task.to_yaml_config()["file_mounts"]) == ["/b"]
    task.set_storage_mounts(None).set_volumes({"/v": "v"})
    assert "file_mounts" not in task.to_yaml_config()
    task.name = "b"
    assert task.name == "b"


def test_task__invalid_change_changes_nothing() -> None:
    task = Task("a", run="x")
    before = task.to_yaml_config()
    with pytest.raises(TaskError):
        task.update(num_nodes=0, name="b")
    assert task.to_yaml_config() == before


def test_task__returns_copies() -> None:
    task = Task("a", envs={"A": "1"}, file_mounts={"/x": {"upload": "s"}}, config={"k": {"a": 1}})
    task.envs["A"] = "2"
    task.file_mounts["/x"]["upload"] = "t"  # type: ignore[index]
    task.to_yaml_config()["config"]["k"]["a"] = 2
    assert task.to_yaml_config() == {
        "name": "a",
        "envs": {"A": "1"},
        "file_mounts": {"/x": {"upload": "s"}},
        "config": {"k": {"a": 1}},
    }


def test_task__redacts_secrets() -> None:
    task = Task("a", secrets={"KEY": "hunter2"})
    assert "hunter2" not in repr(task)
    assert task.to_yaml_config(redact_secrets=True)["secrets"] == {"KEY": "<redacted>"}
    assert task.to_yaml_config()["secrets"] == {"KEY": "hunter2"}


# Variables


# Warnings


# Resources and storage


# Local paths


def test_check_local_paths__reports_missing_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "code").mkdir()
    (tmp_path / "file").write_text("")
    good = Task(
        workdir="~/code",
        file_mounts={"/a": "file", "/b": "~/code", "/c": "s3://bucket", "/d": {"upload": "x"}},
        storage_mounts={"/e": Storage(name="abc", source=["file", "./code"]), "/f": Storage(source="s3://x")},
    )
    assert good.check_local_paths() == []
    assert good.workdir == "~/code"
    bad = Task(
        workdir="file",
        file_mounts={"/a": "nope"},
        storage_mounts={"/e": Storage(name="abc", source=["file", "./nope"])},
    )
    start = f"relative paths start at {os.getcwd()}"
    assert [str(problem) for problem in bad.check_local_paths()] == [
        f"workdir: 'file' is not a directory; {start}",
        f"file_mounts[/a]: 'nope' does not exist; {start}",
        f"file_mounts[/e].source: './nope' does not exist; {start}",
    ]
    assert Task(workdir={"url": "https://x/y"}).check_local_paths() == []


def test_check_local_paths__says_what_applies_to_the_path() -> None:
    def problem(path: str) -> str:
        (problem,) = Task(workdir=path).check_local_paths()
        return str(problem)

    assert problem("~/no/such") == "workdir: '~/no/such' does not exist"
    assert problem("/no/such") == "workdir: '/no/such' does not exist"
    assert problem("${HOMEX}/y").endswith("; ${HOMEX} is replaced only if HOMEX is in `envs`, or given as --env")
    assert problem("$HOMEX/y").endswith("; $HOMEX is replaced only if HOMEX is in `envs`, or given as --env")


def test_check_local_paths__names_file_and_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = "run: x\nworkdir: nope\nfile_mounts:\n  /a: gone\n  /b: {name: abc, source: [lost]}\n"
    (tmp_path / "t.yaml").write_text(text)
    task = Task.from_yaml("t.yaml")
    assert [problem.place for problem in task.check_local_paths()] == ["t.yaml:2", "t.yaml:4", "t.yaml:5"]
    task.update(workdir="other")  # by an option, so no line of the file is to blame
    assert task.check_local_paths()[0].place == ""
