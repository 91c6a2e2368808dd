"""Jobs on the fake Kubernetes, whose pods run real agents: from the task's YAML to its end, through disruptions."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.fakes.kube import FakeKube
from support.helpers.controllers import Controller, running_controller
from support.helpers.ports import unused_port
from support.helpers.timing import scaled, wait_until

pytestmark = pytest.mark.slow

WORK = """
trap 'echo received SIGTERM; {drain}; exit 1' TERM
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


def launch(controller: Controller, tmp_path: Path, flag: Path, *, drain: str = "sleep 0.2", **more: Any) -> int:
    task = {
        "name": "train",
        "run": WORK.format(flag=flag, drain=drain),
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


def running_pod(kube: FakeKube, controller: Controller, tmp_path: Path, **more: Any) -> str:
    """Launch a job that runs until it is stopped, and return its pod."""
    job = launch(controller, tmp_path, tmp_path / "never", **more)
    controller.until(lambda: "runs on pd-1-0-1-0-" in controller.log(job), "the first attempt")
    return next(name for name in names(kube) if name.startswith("pd-1-0-1-0-"))


def ended(controller: Controller, status: str) -> dict[str, Any]:
    controller.until(lambda: controller.job(1)["status"] == status, status)
    return controller.job(1)


def messages(shown: dict[str, Any]) -> str:
    return " | ".join(f"{event['kind']}: {event['message']}" for event in shown["timeline"])


def test_deleted_pod__drains_in_its_grace_and_its_successor_starts_before_it_is_gone(
    kube: FakeKube, controller: Controller, tmp_path: Path
) -> None:
    pod = running_pod(kube, controller, tmp_path, drain="echo notice: $(cat $PERDURE_RUN_DIR/notice.json); sleep 5")
    kube.delete_pod(pod)
    stamp = next(one for one in kube.pods() if one["metadata"]["name"] == pod)["metadata"]["deletionTimestamp"]

    def both_exist() -> bool:
        return pod in names(kube) and any(name.startswith("pd-1-0-2-0-") for name in names(kube))

    controller.until(both_exist, "the next attempt's pod beside the old one")
    controller.until(lambda: "runs on pd-1-0-2-0-" in controller.log(1), "the next attempt")
    notice = json.loads(controller.log(1).partition("notice: ")[2].partition("\n")[0])
    assert notice["deadline"] <= datetime.fromisoformat(stamp).timestamp()
    assert controller.job(1)["recovery_count"] == 1
    controller.perdure("jobs", "cancel", "1", "-y")
    ended(controller, "CANCELLED")


@pytest.mark.parametrize("graces", [[20], [40, 20]], ids=["after-sigterm", "after-longer-grace"])
def test_pod__that_is_deleted_with_a_shorter_grace_drains_by_that_deadline(
    kube: FakeKube, controller: Controller, tmp_path: Path, graces: list[int]
) -> None:
    """The agent receives SIGTERM at once, and its pod's own grace is the only one that it knows."""
    show = "for i in {1..40}; do echo notice: $(cat $PERDURE_RUN_DIR/notice.json); sleep 0.1; done"
    pod = running_pod(kube, controller, tmp_path, drain=show)
    if len(graces) == 1:
        kube.signal_pod(pod)
        controller.until(lambda: "notice: {" in controller.log(1), "the drain")
    for grace_s in graces:
        kube.delete_pod(pod, grace_s)
    stamp = next(one for one in kube.pods() if one["metadata"]["name"] == pod)["metadata"]["deletionTimestamp"]
    kill_at = datetime.fromisoformat(stamp).timestamp()
    controller.until(lambda: "runs on pd-1-0-2-0-" in controller.log(1), "the next attempt")
    lines = [line.partition("notice: ")[2] for line in controller.log(1).splitlines() if "notice: {" in line]
    assert json.loads(lines[-1])["deadline"] <= kill_at + 1
    controller.perdure("jobs", "cancel", "1", "-y")
    ended(controller, "CANCELLED")


def test_container__that_exceeds_its_memory_fails_the_job_and_says_so(
    kube: FakeKube, controller: Controller, tmp_path: Path
) -> None:
    pod = running_pod(kube, controller, tmp_path)
    began = time.monotonic()
    kube.end_container(pod, 137, "OOMKilled")
    shown = ended(controller, "FAILED")
    assert time.monotonic() - began < scaled(10)
    assert "more memory than its limit of 2Gi" in str(shown)
    assert shown["recovery_count"] == 0
    assert "runs on pd-1-0-1-0-" in controller.log(1), "the output before the end is kept"
    wait_until(lambda: not names(kube), "the end of every pod", 30)


def test_container__that_exceeds_its_memory_is_restarted_as_often_as_the_task_says(
    kube: FakeKube, controller: Controller, tmp_path: Path
) -> None:
    recovery = {"strategy": "FAILOVER", "max_restarts_on_errors": 2}
    resources = {"infra": "k8s", "cpus": "1+", "use_spot": True, "job_recovery": recovery}
    job = launch(controller, tmp_path, tmp_path / "never", resources=resources)
    for generation in (1, 2, 3):
        start = f"runs on pd-1-0-{generation}-0-"
        controller.until(lambda start=start: start in controller.log(job), f"attempt {generation}")  # type: ignore[misc]
        kube.end_container(next(one for one in names(kube) if one.startswith(start[8:])), 137, "OOMKilled")
    shown = ended(controller, "FAILED")
    assert "more memory than its limit" in str(shown)
    assert len(shown["attempts"]) == 3, "neither recovered for ever, nor given up early"


def test_image__that_does_not_exist_ends_the_job_with_its_name(
    kube: FakeKube, controller: Controller, tmp_path: Path
) -> None:
    text = 'Back-off pulling image "no/such": ErrImagePull: manifest for no/such not found'
    kube.faults.images["no/such"] = ("ImagePullBackOff", text)
    resources = {"infra": "k8s", "cpus": "1+", "use_spot": True, "image_id": "docker:no/such"}
    launch(controller, tmp_path, tmp_path / "never", resources=resources)
    shown = ended(controller, "FAILED_PRECHECKS")
    assert "no/such not found" in str(shown)
    assert len(shown["attempts"]) == 1, "it is not tried again"
    wait_until(lambda: not names(kube), "the end of every pod", 30)


def test_private_image__ends_the_job_and_names_the_missing_credentials(
    kube: FakeKube, controller: Controller, tmp_path: Path
) -> None:
    text = 'failed to pull "own/image": failed to authorize: unexpected status from GET request: 401 Unauthorized'
    kube.faults.images["own/image"] = ("ErrImagePull", text)
    resources = {"infra": "k8s", "cpus": "1+", "use_spot": True, "image_id": "docker:own/image"}
    began = time.monotonic()
    launch(controller, tmp_path, tmp_path / "never", resources=resources)
    shown = ended(controller, "FAILED_PRECHECKS")
    assert time.monotonic() - began < scaled(60)
    assert "401 Unauthorized" in str(shown)
    assert "imagePullSecrets" in str(shown)
    assert len(shown["attempts"]) == 1, "it is not tried again"


def test_registry_that_is_down__is_waited_for_and_costs_no_attempt(
    kube: FakeKube, controller: Controller, tmp_path: Path
) -> None:
    text = (
        'Back-off pulling image "big/image": ErrImagePull: unexpected status from HEAD request: 503 Service Unavailable'
    )
    kube.faults.images["big/image"] = ("ImagePullBackOff", text)
    resources = {"infra": "k8s", "cpus": "1+", "use_spot": True, "image_id": "docker:big/image"}
    job = launch(controller, tmp_path, tmp_path / "flag", resources=resources)
    controller.until(lambda: "503 Service" in str(controller.job(job)), "why the job waits")
    assert controller.job(job)["status"] == "STARTING"
    (tmp_path / "flag").touch()
    kube.faults.images.clear()
    shown = ended(controller, "SUCCEEDED")
    assert (len(shown["attempts"]), shown["recovery_count"]) == (1, 0)


def test_image_without_python__is_named(kube: FakeKube, controller: Controller, tmp_path: Path) -> None:
    kube.faults.without_python.add("busy/box")
    resources = {"infra": "k8s", "cpus": "1+", "use_spot": True, "image_id": "docker:busy/box"}
    launch(controller, tmp_path, tmp_path / "never", resources=resources)
    shown = ended(controller, "FAILED_PRECHECKS")
    assert "no Python 3.9 or newer" in str(shown)


def test_restricted_namespace__runs_a_job_without_root(kube: FakeKube, controller: Controller, tmp_path: Path) -> None:
    kube.faults.restricted = True
    task = {"run": "echo I am $(id -u) in $HOME; touch ~/x", "resources": {"infra": "k8s", "use_spot": True}}
    (tmp_path / "task.yaml").write_text(yaml.safe_dump(task))
    printed = controller.perdure("jobs", "launch", tmp_path / "task.yaml", "-y").stdout
    assert "I am 1000 in /home/perdure" in printed
    assert controller.job(1)["status"] == "SUCCEEDED"


def test_tainted_node__drains_its_pod_and_both_nodes_of_the_job_move(
    kube: FakeKube, controller: Controller, tmp_path: Path
) -> None:
    pod = running_pod(kube, controller, tmp_path, num_nodes=2)
    node = next(one for one in kube.pods() if one["metadata"]["name"] == pod)["spec"]["nodeName"]
    kube.taint(node, "karpenter.sh/disrupted")
    controller.until(lambda: "received SIGTERM" in controller.log(1), "the drain, although no pod is deleted")
    controller.until(lambda: controller.log(1).count("runs on pd-1-0-2-") == 2, "both nodes of the next attempt")
    shown = controller.job(1)
    assert "node.notice" in messages(shown)
    assert {one["spec"]["nodeName"] for one in kube.pods() if "-2-" in one["metadata"]["name"][:10]} != {node}
    controller.perdure("jobs", "cancel", "1", "-y")
    ended(controller, "CANCELLED")
    wait_until(lambda: not names(kube), "the end of every pod", 30)


def test_clusters__are_checked_and_their_gpus_are_listed(kube: FakeKube, controller: Controller) -> None:
    labels = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
    kube.add_node("gpu", cpu=96, memory_gib=1000, resources={"nvidia.com/gpu": 8}, labels=labels)
    checked = controller.perdure("check", "k8s", "-v").stdout
    assert "kubernetes: usable" in checked
    assert "fake: Kubernetes v1.37.1, namespace training" in checked
    assert "fake: 3 nodes with 8 H100" in checked
    controller.until(lambda: "H100" in controller.perdure("gpus", "--infra", "k8s").stdout, "the GPUs", 60)
    kube.faults.forbid.add("create pods")
    missing = controller.perdure("check", "k8s", check=False)
    assert missing.returncode == 1
    assert "fake: create pods in the namespace is missing" in missing.stdout


def test_pod_config__is_merged_and_its_mistakes_are_named_before_anything_is_created(
    kube: FakeKube, controller: Controller, tmp_path: Path
) -> None:
    wrong = {"kubernetes": {"pod_config": {"spec": {"containers": [{"imagePolicy": "Always"}]}}}}
    task = {"run": "true", "resources": {"infra": "k8s"}, "config": wrong}
    (tmp_path / "wrong.yaml").write_text(yaml.safe_dump(task))
    refused = controller.perdure("jobs", "launch", tmp_path / "wrong.yaml", "-y", "-d", check=False)
    assert refused.returncode != 0
    assert "config.kubernetes.pod_config.spec.containers[0].imagePolicy: no such field" in refused.stderr
    assert not kube.secrets()
    right = {"kubernetes": {"pod_config": {"spec": {"containers": [{"env": [{"name": "GREETING", "value": "hi"}]}]}}}}
    resources = {"infra": "k8s", "use_spot": True, "network_tier": "best"}
    task = {"run": "echo said $GREETING", "resources": resources, "config": right}
    (tmp_path / "right.yaml").write_text(yaml.safe_dump(task))
    printed = controller.perdure("jobs", "launch", tmp_path / "right.yaml", "-y").stdout
    assert "said hi" in printed
    assert "network_tier best: a task without accelerators has the ordinary network" in printed


@pytest.mark.parametrize(("mode", "num_nodes"), [("MOUNT", 1), ("MOUNT_CACHED", 2)])
def test_mount__that_pods_cannot_make_is_refused_at_submission(
    kube: FakeKube, controller: Controller, tmp_path: Path, mode: str, num_nodes: int
) -> None:
    mounts = {"/ckpt": {"name": "checkpoints", "mode": mode}}
    task: dict[str, Any] = {"run": "true", "resources": {"infra": "k8s", "use_spot": True}, "file_mounts": mounts}
    (tmp_path / "task.yaml").write_text(yaml.safe_dump(task | {"num_nodes": num_nodes}))
    refused = controller.perdure("jobs", "launch", tmp_path / "task.yaml", "-y", "-d", check=False)
    assert refused.returncode != 0
    assert f"{mode} cannot be used here: pods of fake have no FUSE" in " ".join(refused.stderr.split())
    assert "mode: COPY" in refused.stderr
    assert not kube.secrets()
