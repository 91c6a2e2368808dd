"""The Model Training Guide: its YAML, and BERT from end to end with a preemption. Its Ray is in `test_ray`."""

from __future__ import annotations

import re
import shutil

import pytest
import yaml

from seeds.documents import TRAINING_GUIDE, Item
from seeds.image import STAND_INS, Computer

KUBERNETES = TRAINING_GUIDE.take("resources:\n  infra: k8s")
NEBIUS = TRAINING_GUIDE.take("resources:\n  infra: nebius")
EFA = TRAINING_GUIDE.take("config:\n  kubernetes:")
TCPX = TRAINING_GUIDE.take("config:\n  gcp:")
DISK = TRAINING_GUIDE.take("resources:\n  disk_tier: best")
BUCKET = TRAINING_GUIDE.take("file_mounts:\n  /checkpoints:")
INSTANCES = TRAINING_GUIDE.take("resources:\n  accelerators:\n    A100:1")
BERT = TRAINING_GUIDE.take("# bert_qa.yaml")
LAUNCH_BERT = TRAINING_GUIDE.take("sky jobs launch -n bert-qa bert_qa.yaml")
RUN_NAME = TRAINING_GUIDE.take("--run_name")
TASK_ID = TRAINING_GUIDE.take("$SKYPILOT_TASK_ID")


@pytest.mark.parametrize(("fragment", "cloud"), [(KUBERNETES, "kubernetes"), (NEBIUS, "nebius")])
def test_task_for_another_cloud__says_that_this_one_is_missing(local: Computer, fragment: Item, cloud: str) -> None:
    local.write("task.yaml", f"{fragment.here}\nrun: nvidia-smi\n")
    screen = local.user.types("perdure jobs launch --dryrun task.yaml", exit_code=2)
    assert cloud in screen.lower()


def test_fragments__make_a_task_that_runs(local: Computer) -> None:
    """Settings of other clouds change nothing here, and the best disk is what there is."""
    fragments: dict[str, object] = {}
    for fragment in (EFA, TCPX, DISK, INSTANCES, BUCKET):
        for key, value in yaml.safe_load(fragment.here).items():
            before = fragments.get(key)
            fragments[key] = before | value if isinstance(before, dict) else value
    task = fragments | {"run": "echo $SKYPILOT_NUM_GPUS_PER_NODE > /checkpoints/gpus; cat /checkpoints/gpus"}
    local.write("task.yaml", yaml.safe_dump(task))
    screen = local.user.types("perdure jobs launch task.yaml")
    assert "\n1\n" in screen
    assert (local.controller.home / "local/buckets/my-checkpoint-bucket/gpus").read_text() == "1\n"


@pytest.mark.slow
def test_bert__continues_after_a_preemption_under_the_same_name(local: Computer) -> None:
    shutil.copytree(STAND_INS / "transformers", local.home / "transformers")
    local.write("bert_qa.yaml", BERT.here)
    assert "name" in local.user.types(LAUNCH_BERT.here, exit_code=2), "the reader has to fill in a bucket"
    filled_in = BERT.here.replace("name: # NOTE: Fill in your bucket name", "name: my-bucket")
    local.write("bert_qa.yaml", filled_in)
    assert "WANDB_API_KEY" in local.user.types(LAUNCH_BERT.here, exit_code=2), "and a key"
    local.write("bert_qa.yaml", filled_in.replace("WANDB_API_KEY:\n", "WANDB_API_KEY: key\n"))

    with local.user.at(LAUNCH_BERT.here) as terminal:
        terminal.wait_for("saved checkpoint-1000\n")
        job = re.findall(r"Job (\d+)", terminal.screen)[0]
        saved = local.controller.home / "local/buckets/my-bucket/bert_qa/checkpoint-1000/trainer_state.json"
        local.controller.until(saved.exists, "the upload of the checkpoint")
        local.controller.perdure("jobs", "preempt", job, "--kill")
        assert terminal.end() == 0, terminal.screen
    runs = re.findall(r"wandb: run (\S+) continues after step (\d+)\n", terminal.screen)
    assert len(runs) == 2, terminal.screen
    assert runs[0][0] == runs[1][0], f"{RUN_NAME.text} {TASK_ID.text} names one run"
    assert re.fullmatch(rf"sky-managed-[0-9-]{{26}}_bert-qa_{job}-0", runs[0][0])
    assert (int(runs[0][1]), int(runs[1][1]) >= 1000) == (0, True)
    assert "trained bert-base-uncased on squad to step 5000\n" in terminal.screen
