"""Task YAMLs of SkyPilot users: each is accepted unchanged and has its meaning."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.recovery.market.requirements import Amount, MachineRequirement
from perdure.sdk import Dag, Task, TaskError
from perdure.sdk.requirements import gpus_per_node, machine_requirements

TASKS = Path(__file__).parent / "tasks"


def task(name: str, **given: object) -> Task:
    return Task.from_yaml(TASKS / f"{name}.yaml", **given)


EXPECTED = {
    "mingpt": {"name": "minGPT-ddp", "resources": {"cpus": "4+", "accelerators": {"L4": 4}}},
    "mingpt_two_nodes": {"num_nodes": 2, "resources": {"cpus": "4+", "accelerators": {"L4": 4}}},
    "infiniband_kubernetes": {
        "num_nodes": 2,
        "resources": {"infra": "kubernetes", "accelerators": {"H100": 8}, "network_tier": "best"},
    },
    "infiniband_vms": {
        "num_nodes": 2,
        "resources": {"infra": "nebius", "accelerators": {"H100": 8}, "network_tier": "best"},
    },
    "gpudirect": {"config": {"gcp": {"enable_gpu_direct": True}}},
    "fast_disk": {"resources": {"disk_tier": "best", "disk_size": 1000}},
    "checkpoint_bucket": {"file_mounts": {"/checkpoints": {"name": "my-checkpoint-bucket", "mode": "MOUNT_CACHED"}}},
    "accelerators_on_lines": {"resources": {"accelerators": {"A100:1": None, "A100-80GB:1": None, "H100:1": None}}},
    "lora": {"workdir": ".", "resources": {"infra": "aws", "accelerators": {"A100": 4}}},
}


@pytest.mark.parametrize("name", EXPECTED)
def test_reference_task__has_expected_configuration(name: str) -> None:
    config = task(name).to_yaml_config()
    scripts = {"setup", "run"}
    assert {key: value for key, value in config.items() if key not in scripts} == EXPECTED[name]


def test_reference_task__is_accepted() -> None:
    for path in sorted(TASKS.glob("*.yaml")):
        if path.stem != "bert_qa":
            assert Task.from_yaml(path, envs={"WANDB_API_KEY": "k"}).to_yaml_config(), path


def test_reference_task__scripts_are_unchanged() -> None:
    run = task("mingpt_two_nodes").run
    assert run is not None
    assert run.startswith('MASTER_ADDR=$(echo "$SKYPILOT_NODE_IPS" | head -n1)\ntorchrun \\\n')
    assert "--node_rank=${SKYPILOT_NODE_RANK} \\\n" in run
    assert (task("lora").setup or "").endswith("xargs)\nwandb login $WANDB_TOKEN\n")


def test_bert_task__reports_missing_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    with pytest.raises(TaskError) as error:
        Dag.from_yaml(TASKS / "bert_qa.yaml")
    file = TASKS / "bert_qa.yaml"
    assert str(error.value) == (
        f"{file} has 2 problems:\n"
        f"  {file}:11: file_mounts[/checkpoint].name: the bucket has no name; write the bucket's name after `name:`, "
        "or an existing bucket such as s3://my-bucket after `source:`\n"
        f"  {file}:16: envs.WANDB_API_KEY: has no value; pass --env WANDB_API_KEY=VALUE"
    )


def test_bert_task__suggests_the_callers_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "from-my-shell")
    file = TASKS / "bert_qa_filled.yaml"
    with pytest.raises(TaskError) as error:
        Dag.from_yaml(file)
    assert str(error.value) == (
        f"{file}:16: envs.WANDB_API_KEY: has no value; pass --env WANDB_API_KEY=VALUE, "
        "or --env WANDB_API_KEY to take it from your environment"
    )


def test_bert_task__with_all_values() -> None:
    dag = Dag.from_yaml(TASKS / "bert_qa_filled.yaml", envs={"WANDB_API_KEY": "k"})
    assert dag.name == "bert-qa"
    assert dag.warnings == ()
    (bert,) = dag.tasks
    assert bert.envs == {"WANDB_API_KEY": "k"}
    assert bert.workdir == "~/transformers"
    assert bert.storage_mounts["/checkpoint"].mode == "MOUNT_CACHED"
    assert machine_requirements(bert.resources) == (MachineRequirement(accelerators=("V100", 1), use_spot=True),)
    assert gpus_per_node(bert.resources) == 1
    assert "--run_name $SKYPILOT_TASK_ID" in (bert.run or "")


def test_mingpt_task__machine_requirements() -> None:
    resources = task("mingpt").resources
    assert machine_requirements(resources) == (
        MachineRequirement(cpus=Amount(4, at_least=True), accelerators=("L4", 4), use_spot=False),
    )
    assert gpus_per_node(resources) == 4


def test_reference_task__warns_of_fields_without_effect() -> None:
    assert task("efa").warnings == ()
    assert task("mingpt").warnings == ()
