"""Tasks, resources and storage as Python objects."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from perdure.sdk import Alternatives, Resources, Storage, StorageMode, StoreType, Task, TaskError


def test_python_and_yaml_say_the_same() -> None:
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


def test_an_empty_task() -> None:
    task = Task()
    assert task.to_yaml_config() == {}
    assert (task.name, task.run, task.num_nodes, task.priority) == (None, None, 1, 0)
    assert task.resources == Alternatives((Resources(),))


def test_changes_through_methods() -> None:
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


def test_a_wrong_change_changes_nothing() -> None:
    task = Task("a", run="x")
    before = task.to_yaml_config()
    with pytest.raises(TaskError):
        task.update(num_nodes=0, name="b")
    assert task.to_yaml_config() == before


def test_what_a_task_hands_out_is_a_copy() -> None:
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


def test_secrets_are_not_shown() -> None:
    task = Task("a", secrets={"KEY": "hunter2"})
    assert "hunter2" not in repr(task)
    assert task.to_yaml_config(redact_secrets=True)["secrets"] == {"KEY": "<redacted>"}
    assert task.to_yaml_config()["secrets"] == {"KEY": "hunter2"}


# Variables


def test_variables_go_where_they_do_in_skypilot() -> None:
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
        service: {replicas: $SIZE}
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
    assert config["service"] == {"replicas": "7"}
    assert config["volumes"] == {"/7": "v"}
    assert config["resources"] == {"labels": {"size": "$SIZE"}}
    assert config["setup"] == config["run"] == "echo $SIZE ${BUCKET}"


def test_variables_that_refer_to_variables() -> None:
    task = Task(envs={"A": "$B-1", "B": "b", "SELF": "$SELF"}, workdir="/$A/$SELF")
    assert task.workdir == "/b-1/$SELF"
    assert Task.from_yaml_config(task.to_yaml_config()) == task


@pytest.mark.parametrize("envs", [{"A": "$B", "B": "x$A"}, {"A": "$A$A$A$A"}, {"A": "$B" * 1000, "B": "$C" * 1000}])
def test_variables_without_end(envs: dict[str, str]) -> None:
    with pytest.raises(TaskError) as refused:
        Task(envs={**envs, "C": "c" * 100}, workdir="$A")
    assert str(refused.value) == (
        "workdir: the variables of '$A' refer to each other without end; give them plain values"
    )


def test_paths_that_become_the_same() -> None:
    with pytest.raises(TaskError) as refused:
        Task.from_yaml_str("envs: {A: x}\nfile_mounts:\n  /x: ./1\n  /$A: ./2\n")
    assert str(refused.value) == "line 4: file_mounts[/$A]: becomes '/x', which is there already; keep one of them"


def test_a_problem_behind_a_variable_keeps_its_line() -> None:
    with pytest.raises(TaskError) as refused:
        Task.from_yaml_str("envs: {A: x}\nfile_mounts:\n  /$A:\n    name: abc\n    mode: MUONT\n")
    (problem,) = refused.value.problems
    assert (problem.line, problem.field) == (5, "file_mounts[/x].mode")


def test_given_variables_go_over_the_yamls() -> None:
    task = Task.from_yaml_str("envs: {A: , B: b}\nsecrets: [secrets:S]\n", envs={"A": 1, "C": "c"}, secrets={"S": "s"})
    assert task.envs == {"A": "1", "B": "b", "C": "c"}
    assert task.secrets == {"S": "s"}


# Warnings

INERT = """
resources:
  autostop: 10
  ports: 8080
  local_disk: nvme
  accelerators: tpu-v2-8
  accelerator_args: {tpu_vm: true}
  priority_class: high
  volumes: [{path: /mnt}]
  infra: local
  image_id: docker:x
volumes: {/v: v}
managed_secrets: [a]
config:
  aws: {vpc_name: x}
  hooks: [{run: x}]
service: {replicas: 1}
pool: {workers: 1}
event_callback: echo
inputs: {a: 1}
outputs: {a: 1}
api_server_access: true
file_mounts:
  /a: {name: abc, config: {mount_cached: {transfers: 1}}}
run: x
"""


def test_every_field_without_effect_is_named_once_with_its_line() -> None:
    task = Task.from_yaml_str(INERT)
    named = [warning.split(": accepted, but has no effect")[0] for warning in task.warnings]
    assert sorted(named, key=lambda place: int(place.split(":")[0].removeprefix("line "))) == [
        "line 3: resources.autostop",
        "line 4: resources.ports",
        "line 5: resources.local_disk",
        "line 7: resources.accelerator_args",
        "line 8: resources.priority_class",
        "line 9: resources.volumes",
        "line 11: resources.image_id",
        "line 12: volumes",
        "line 13: managed_secrets",
        "line 15: config.aws",
        "line 16: config.hooks",
        "line 17: service",
        "line 18: pool",
        "line 19: event_callback",
        "line 20: inputs",
        "line 21: outputs",
        "line 22: api_server_access",
        "line 24: file_mounts[/a].config.mount_cached",
    ]
    before = task.warnings
    task.name = "x"
    assert task.warnings == before
    task.update(config=None, service=None)
    assert len(task.warnings) == len(before) - 3


def test_saying_no_to_what_is_not_done_warns_of_nothing() -> None:
    task = Task.from_yaml_str("resources: {autostop: false, ports: []}\napi_server_access: false\nservice: {}\n")
    assert task.warnings == ()


# Resources and storage


def test_resources_copy() -> None:
    aws = Resources(infra="aws/us-east-1", cpus=4, use_spot=True, labels={"a": "b"})
    assert (aws.cloud, aws.region, aws.zone, aws.cpus) == ("aws", "us-east-1", None, "4")
    assert aws.copy() == aws
    assert aws.copy(cpus="8+", use_spot=False) == Resources("aws", region="us-east-1", cpus="8+", labels={"a": "b"})
    assert aws.copy(infra="gcp") == Resources("gcp", cpus=4, use_spot=True, labels={"a": "b"})
    assert aws.copy(zone="z").infra == "*/*/z"
    assert aws.copy(infra=None).cloud is None
    assert hash(aws) == hash(aws.copy())
    assert len({aws, aws.copy(), aws.copy(cpus=8)}) == 2
    assert Resources.from_yaml_config(aws.to_yaml_config()) == aws


def test_storage() -> None:
    storage = Storage(
        name="abc",
        source="./data",
        stores=StoreType.GCS,
        persistent=False,
        mode="mount_cached",
        file_mount_type="dataset_ro",
        mount_cached_config={"transfers": 4},
        mount_config={"read_only": True},
    )
    assert storage.mode is StorageMode.MOUNT_CACHED
    assert storage.store is StoreType.GCS
    assert storage.local_sources == ("./data",)
    assert storage.bucket is None
    assert Storage.from_yaml_config(storage.to_yaml_config()) == storage
    assert Storage(source="s3://x/y").store is StoreType.S3
    assert Storage(source="s3://x/y").local_sources == ()


# Local paths


def test_local_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_importing_the_sdk_loads_nothing_heavy() -> None:
    heavy = "http", "http.client", "socket", "ssl", "yaml", "json", "difflib", "asyncio", "subprocess", "urllib"
    code = f"""
import sys, perdure.sdk
assert not [name for name in sys.modules if name.startswith("perdure.sdk.")]
from perdure.sdk import Dag, Resources, Storage, Task
Task("a", run="x", resources=Resources(accelerators="A100:8"))
print([name for name in {heavy!r} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-I", "-S", "-c", f"import sys; sys.path[:0] = {sys.path!r}\n{code}"],
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_unknown_names_of_the_sdk() -> None:
    import perdure.sdk

    with pytest.raises(AttributeError, match="has no attribute 'nope'"):
        perdure.sdk.nope  # noqa: B018
    assert perdure.sdk.jobs.__name__ == "perdure.sdk.jobs"


def test_an_image_for_this_machine_is_named_wherever_it_is_written() -> None:
    text = "resources:\n  image_id: docker:x\n  any_of:\n    - infra: aws\n    - infra: local\n"
    assert Task.from_yaml_str(text).warnings == (
        "line 5: resources.any_of[1].image_id: accepted, but has no effect: the local cloud runs jobs on this machine",
    )
