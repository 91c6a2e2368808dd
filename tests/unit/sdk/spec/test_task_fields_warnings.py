"""The warnings for fields that have no effect, and the fields for which a launch is refused."""

from __future__ import annotations

import pytest

from perdure.sdk import Task
from perdure.sdk.spec.overrides import IGNORABLE
from perdure.sdk.spec.problems import TaskError
from perdure.sdk.spec.resource_fields import AUTOSTOP, RESOURCES
from perdure.sdk.spec.task_fields import TASK
from perdure.sdk.spec.validators import Record

MODES = ("MOUNT", "MOUNT_CACHED", "COPY")
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
  image_id: skypilot:x
volumes: {/v: v}
managed_secrets: [a]
config:
  aws: {vpc_name: x}
  hooks: [{run: x}]
service: {readiness_probe: /}
pool: {workers: 1}
event_callback: echo
inputs: {a: 1}
outputs: {a: 1}
api_server_access: true
file_mounts:
  /a: {name: abc, config: {mount_cached: {transfers: 1}}}
  /b: {name: abc, config: {disk_size: 5, disk_tier: low, storage_type: x, attach_mode: y}}
file_mounts_mapping: {a: b}
_metadata: {a: b}
run: x
"""


def test_warnings__name_each_field_once_with_its_line() -> None:
    task = Task.from_yaml_str(INERT)
    named = [warning.split(": accepted, but has no effect")[0] for warning in task.warnings]
    assert sorted(named, key=lambda place: int(place.split(":")[0].removeprefix("line "))) == [
        "line 3: resources.autostop",
        "line 4: resources.ports",
        "line 5: resources.local_disk",
        "line 7: resources.accelerator_args",
        "line 8: resources.priority_class",
        "line 13: managed_secrets",
        "line 15: config.aws",
        "line 20: inputs",
        "line 21: outputs",
        "line 22: api_server_access",
        "line 24: file_mounts[/a].config.mount_cached",
        "line 25: file_mounts[/b].config.disk_size",
        "line 25: file_mounts[/b].config.disk_tier",
        "line 25: file_mounts[/b].config.storage_type",
        "line 25: file_mounts[/b].config.attach_mode",
        "line 26: file_mounts_mapping",
        "line 27: _metadata",
    ]
    before = task.warnings
    task.name = "x"
    assert task.warnings == before
    task.update(config=None, inputs=None)
    assert len(task.warnings) == len(before) - 2


def test_warnings__skip_fields_that_are_turned_off() -> None:
    task = Task.from_yaml_str("resources: {autostop: false, ports: []}\napi_server_access: false\n")
    assert task.warnings == ()


def test_warnings__skip_a_mode_that_acts_on_the_options() -> None:
    texts = [
        f"file_mounts: {{/a: {{name: abc, mode: {mode}, config: {{mount: {{read_only: true}}}}}}}}" for mode in MODES
    ]
    assert [len(Task.from_yaml_str(text).warnings) for text in texts] == [0, 1, 1]


UNSUPPORTED = """
resources:
  hooks: [{run: x}]
  volumes: [{path: /mnt}]
  autostop: {idle_minutes: 5, hook: ./save.sh}
  any_of:
    - {infra: aws, image_id: ami-1}
    - {infra: gcp, image_id: 'docker:me/it'}
    - {infra: azure, image_id: {eastus: 'skypilot:gpu-ubuntu-2004'}}
volumes: {/v: v}
volume_mounts: [{path: /v}]
service: {readiness_probe: /}
pool: {workers: 1}
config:
  hooks: [{run: a, events: [stop]}, {run: b, events: [stop, down]}, {run: c}]
"""


def test_unsupported__names_each_field_with_its_line_and_option() -> None:
    task = Task.from_yaml_str(UNSUPPORTED)
    named = sorted((field.line, field.field, field.option) for field in task.unsupported)
    assert named == [
        (3, "resources.hooks", "resources.hooks"),
        (4, "resources.volumes", "resources.volumes"),
        (5, "resources.autostop.hook", "resources.autostop.hook"),
        (9, "resources.any_of[2].image_id", "resources.image_id"),
        (10, "volumes", "volumes"),
        (11, "volume_mounts", "volume_mounts"),
        (12, "service", "service"),
        (13, "pool", "pool"),
        (15, "config.hooks[0]", "config.hooks"),
    ]
    assert {option for _, _, option in named} == set(IGNORABLE)
    before = task.unsupported
    task.name = "x"
    assert task.unsupported == before
    assert all(str(field).endswith(f"to launch without it: --ignore {field.option}") for field in before)


def test_unsupported__says_one_thing_about_a_field() -> None:
    task = Task.from_yaml_str("run: x\nresources: {hooks: [{run: echo bye, events: [stop]}]}\n")
    assert [(field.field, field.option) for field in task.unsupported] == [("resources.hooks", "resources.hooks")]
    task = Task.from_yaml_str("run: x\nconfig: {hooks: [{run: echo bye, events: [stop]}]}\n")
    assert [field.field for field in task.unsupported] == ["config.hooks[0]"], "nothing is said about all of them"


def test_unsupported__includes_every_field_that_the_schema_refuses() -> None:
    def refused(record: Record) -> set[str]:
        return {name for name, field in record.fields.items() if field.refused}

    records = [(TASK, ""), (RESOURCES, "resources."), (AUTOSTOP, "resources.autostop.")]
    by_value = {"config.hooks", "resources.image_id"}
    assert {f"{place}{name}" for record, place in records for name in refused(record)} | by_value == set(IGNORABLE)


def test_ignoring__drops_what_is_unsupported_and_nothing_else() -> None:
    task = Task.from_yaml_str(UNSUPPORTED)
    kept = task.ignoring(IGNORABLE)
    assert kept.to_yaml_config() == {
        "resources": {
            "any_of": [
                {"autostop": {"idle_minutes": 5}, "infra": "aws", "image_id": "ami-1"},
                {"autostop": {"idle_minutes": 5}, "infra": "gcp", "image_id": "docker:me/it"},
                {"autostop": {"idle_minutes": 5}, "infra": "azure"},
            ]
        },
        "config": {"hooks": [{"run": "b", "events": ["stop", "down"]}, {"run": "c"}]},
    }
    assert kept.unsupported == ()
    assert "line 12: service: ignored: it describes a service" in "\n".join(kept.warnings)
    assert len(task.unsupported) == 9, "the original does not change"


def test_ignoring__accepts_the_end_of_a_name() -> None:
    task = Task.from_yaml_str(UNSUPPORTED).ignoring(["image_id", "volumes", "hooks"])
    assert [field.option for field in task.unsupported] == [
        *("resources.autostop.hook", "volume_mounts", "service", "pool")
    ]


def test_ignoring__rejects_a_name_that_is_never_refused() -> None:
    with pytest.raises(TaskError, match=r"^--ignore: unknown field 'volumns'; did you mean 'volumes'\?"):
        Task(run="x").ignoring(["volumns"])


def test_unknown_setting__of_config_names_a_similar_one() -> None:
    task = Task.from_yaml_str("run: x\nconfig: {kuberntes: {a: 1}, hook: [{run: x}], aws: {b: 1}}\n")
    texts = [warning.message for warning in task.warning_details]
    near = [text.rpartition("; did you mean ")[2] for text in texts if "did you mean" in text]
    assert (near, len(texts)) == (["'kubernetes'?", "'hooks'?"], 3)
