"""A node that falls silent and comes back: the job has moved meanwhile, and the old agent stops what it still runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from support.fakes.kube import FakeKube
from support.helpers.controllers import running_controller
from support.helpers.ports import unused_port
from support.helpers.timing import wait_until

pytestmark = pytest.mark.slow

# Each attempt commits numbered steps to a folder that all nodes see, under its own generation.
RUN = """
step=0
while test ! -e {folder}/finish; do
  step=$((step + 1)); echo $SKYPILOT_TASK_ID > {folder}/$PERDURE_GENERATION-$step
  echo generation $PERDURE_GENERATION commits $step on $HOSTNAME; sleep 0.2
done
"""


def steps(folder: Path, generation: int) -> int:
    return len([one for one in folder.iterdir() if re.fullmatch(rf"{generation}-\d+", one.name)])


def test_silent_node__loses_its_job_after_the_patience_and_never_writes_again(tmp_path: Path) -> None:
    home, port, folder = tmp_path / "home", unused_port(), tmp_path / "steps"
    home.mkdir()
    folder.mkdir()
    with FakeKube(tmp_path / "kube") as kube:
        for zone in ("zone-1", "zone-2"):
            kube.add_node(f"spot-{zone}", zone=zone, labels={"karpenter.sh/capacity-type": "spot"})
        kube.settings |= {"controller_url": f"http://127.0.0.1:{port}", "silent_node_s": 1}
        timeouts = {"node_timeout_s": 4, "describe_interval_s": 1}
        config = f"local: false\nlisten: {{port: {port}}}\ntimeouts: {timeouts}\n{kube.config}"
        (home / "config.yaml").write_text(config)
        with running_controller(home, environ=kube.environ) as controller:
            resources = {"infra": "k8s", "cpus": 1, "use_spot": True}
            task = {"name": "steps", "run": RUN.format(folder=folder), "resources": resources}
            (tmp_path / "task.yaml").write_text(yaml.safe_dump(task))
            controller.perdure("jobs", "launch", tmp_path / "task.yaml", "-y", "-d")
            wait_until(lambda: steps(folder, 1) > 3, "the first attempt", 60)
            (first,) = kube.pods()
            kube.silence_node(first["spec"]["nodeName"])
            frozen_at = steps(folder, 1)
            controller.until(lambda: steps(folder, 2) > 3, "the next attempt, after the patience")
            assert steps(folder, 1) <= frozen_at + 1, "one workload at a time"
            kube.silence_node(first["spec"]["nodeName"], silent=False)
            controller.until(lambda: len(kube.pods()) == 1, "the end of the old pod")
            assert steps(folder, 1) <= frozen_at + 5, "it was ended at once, before it could do more than a step or so"
            assert controller.job(1)["status"] == "RUNNING"
            (folder / "finish").touch()
            controller.until(lambda: controller.job(1)["status"] == "SUCCEEDED", "the end of the job")
            assert controller.job(1)["recovery_count"] == 1
