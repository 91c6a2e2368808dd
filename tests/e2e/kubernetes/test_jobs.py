"""Jobs on the fake Kubernetes, whose pods run real agents: from the task's YAML to its end, through disruptions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.fakes.kube import FakeKube
from support.helpers.controllers import Controller, running_controller
from support.helpers.ports import unused_port
from support.helpers.timing import wait_until

WORK = """
trap 'echo received SIGTERM; sleep 0.2; exit 1' TERM
echo runs on $HOSTNAME as $SKYPILOT_TASK_ID rank $SKYPILOT_NODE_RANK
test -e {flag} && echo done && exit 0
while :; do sleep 0.1; done
"""


@pytest.fixture
def kube(tmp_path: Path) -> Iterator[FakeKube]:
    with FakeKube(tmp_path / "kube") as kube:
        for zone in ("zone-1", "zone-2"):
            kube.add_node(f"spot-{zone}", zone=zone, labels={"karpenter.sh/capacity-type": "spot"})
        yield kube


@pytest.fixture
def controller(kube: FakeKube, tmp_path: Path) -> Iterator[Controller]:
    home = tmp_path / "home"
    home.mkdir()
    port = unused_port()
    kube.settings["controller_url"] = f"http://127.0.0.1:{port}"
    (home / "config.yaml").write_text(f"local: false\nlisten: {{port: {port}}}\n{kube.config}")
    with running_controller(home, environ=kube.environ) as one:
        yield one
        for pod in kube.pods():
            print(pod["metadata"]["name"], pod["status"], kube.output(pod["metadata"]["name"])[-2000:])
        print((home / "controller.log").read_text()[-6000:])


def launch(controller: Controller, tmp_path: Path, flag: Path, **more: Any) -> int:
    import yaml

    task = {
        "name": "train",
        "run": WORK.format(flag=flag),
        "resources": {"infra": "k8s", "cpus": "1+", "use_spot": True},
    }
    (tmp_path / "task.yaml").write_text(yaml.safe_dump(task | more))
    controller.perdure("jobs", "launch", tmp_path / "task.yaml", "-y", "-d")
    return 1


def names(kube: FakeKube) -> list[str]:
    return [pod["metadata"]["name"] for pod in kube.pods()]


def test_evicted_pod__is_replaced_and_the_job_finishes_under_its_id(
    kube: FakeKube, controller: Controller, tmp_path: Path
) -> None:
    flag = tmp_path / "flag"
    job = launch(controller, tmp_path, flag)
    controller.until(lambda: "runs on pd-1-0-1-0-" in controller.log(job), "the first attempt")
    flag.touch()
    (first,) = names(kube)
    kube.evict(first)
    controller.until(lambda: controller.job(job)["status"] == "SUCCEEDED", "the end of the job")
    shown, log = controller.job(job), controller.log(job)
    assert "received SIGTERM" in log
    assert log.count(f"as {shown['task_id']} rank 0") == 2
    assert "runs on pd-1-0-2-0-" in log
    assert shown["recovery_count"] == 1
    assert shown["attempts"][0]["reason"] in ("PREEMPTED", "PREEMPTION_NOTICE")
    wait_until(lambda: not names(kube), "the end of every pod", 30)
