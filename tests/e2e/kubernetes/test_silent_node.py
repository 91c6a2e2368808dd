"""A node that falls silent and comes back: the job has moved meanwhile, and the old agent stops what it still runs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from perdure.checkpoint import steps
from perdure.checkpoint.load.saved_step import newest_first
from support.fakes.kube import FakeKube
from support.helpers.controllers import running_controller
from support.helpers.ports import unused_port
from support.helpers.timing import wait_until

pytestmark = pytest.mark.slow

# Each attempt saves numbered steps to a folder that all nodes see, and says when it does not save.
TRAIN = """
import os, time
from perdure.checkpoint import load_checkpoint, save_checkpoint

@save_checkpoint(save_dir="FOLDER", max_checkpoints=None)
def save(step):
    with open(f"FOLDER/model_{step}", "w") as file:
        file.write(f"{step} of generation {os.environ['PERDURE_GENERATION']}")

@load_checkpoint(save_dir="FOLDER")
def load(step):
    return step

step = load() or 0
print("continues after", step, flush=True)
while not os.path.exists("FOLDER.finish"):
    step += 1
    save(step)
    print("saved", step, flush=True)
    os.mkdir(f"FOLDER.idle/{os.environ['PERDURE_GENERATION']}-{step}")
    time.sleep(1.5)
"""


def commits(folder: Path, generation: int) -> list[int]:
    """The steps that this attempt has committed, as the library's own records say."""
    manifests = [one for checkpoint in newest_first(str(folder), None) for one in checkpoint.manifests]
    return sorted(one.step for one in manifests if one.written_by["generation"] == generation)


@pytest.mark.timeout(400)
def test_silent_node__loses_its_job_after_the_patience_and_never_writes_again(tmp_path: Path) -> None:
    home, port, folder = tmp_path / "home", unused_port(), tmp_path / "steps"
    home.mkdir()
    idle = tmp_path / "steps.idle"
    folder.mkdir()
    idle.mkdir()
    with FakeKube(tmp_path / "kube") as kube:
        for zone in ("zone-1", "zone-2"):
            kube.add_node(f"spot-{zone}", zone=zone, labels={"karpenter.sh/capacity-type": "spot"})
        kube.settings |= {"controller_url": f"http://127.0.0.1:{port}", "silent_node_s": 1}
        timeouts = {"node_timeout_s": 4, "describe_interval_s": 1}
        config = f"local: false\nlisten: {{port: {port}}}\ntimeouts: {timeouts}\n{kube.config}"
        (home / "config.yaml").write_text(config)
        with running_controller(home, environ=kube.environ) as controller:
            resources = {"infra": "k8s", "cpus": 1, "use_spot": True}
            (tmp_path / "train.py").write_text(TRAIN.replace("FOLDER", str(folder)))
            task = {
                "name": "steps",
                "run": "python3 train.py",
                "resources": resources,
                "file_mounts": {"train.py": str(tmp_path / "train.py")},
            }
            (tmp_path / "task.yaml").write_text(yaml.safe_dump(task))
            controller.perdure("jobs", "launch", tmp_path / "task.yaml", "-y", "-d")
            controller.until(lambda: "saved 3" in controller.log(1), "the first attempt")
            (first,) = kube.pods()
            known = len(os.listdir(idle))  # a process that is stopped within a save keeps the folder's lock
            wait_until(lambda: len(os.listdir(idle)) > known, "a save that has just ended", 60)
            kube.silence_node(first["spec"]["nodeName"])
            frozen = commits(folder, 1)
            controller.until(lambda: len(commits(folder, 2)) > 3, "the next attempt, after the patience")
            assert commits(folder, 1) == frozen, "one workload at a time"
            assert commits(folder, 2)[0] == frozen[-1] + 1, "it continues from the last step, and no step has two"
            kube.silence_node(first["spec"]["nodeName"], silent=False)
            controller.until(lambda: len(kube.pods()) == 1, "the end of the old pod")
            late = commits(folder, 1)[len(frozen) :]
            assert len(late) <= 5, "it was ended at once, before it could do more than a step or so"
            controller.until(lambda: commits(folder, 2)[-1] > max([*late, frozen[-1]]), "a newer step")
            assert controller.job(1)["status"] == "RUNNING"
            (tmp_path / "steps.finish").touch()
            controller.until(lambda: controller.job(1)["status"] == "SUCCEEDED", "the end of the job")
            assert controller.job(1)["recovery_count"] == 1
            newest = steps(folder, verify="full")[0]
            assert newest.reason == ""
            assert newest.step == commits(folder, 2)[-1], "what an attempt would load is of the last one"
            assert (folder / f"model_{newest.step}").read_text() == f"{newest.step} of generation 2"
