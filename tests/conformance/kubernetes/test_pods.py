"""Jobs of a real daemon in real pods: this computer is a node with a kubelet, containerd and a network for its pods."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.helpers.controllers import Controller, running_controller
from support.helpers.ports import unused_port
from support.helpers.timing import wait_until
from support.real_kube import RealKube, Servers, kubelet
from support.real_kube.images import BUSYBOX, PYTHON
from support.real_kube.kubelet import RealNode

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(300)]

WORK = """
trap 'echo received SIGTERM; echo notice: $(cat $PERDURE_RUN_DIR/notice.json); sleep {drain_s}; exit 1' TERM
echo runs on $HOSTNAME rank $SKYPILOT_NODE_RANK as $(id -u)
while sleep 0.2; do :; done
"""


@pytest.fixture(scope="module")
def node(servers: Servers) -> Iterator[RealNode]:
    if (why := kubelet.missing()) is not None:
        pytest.skip(why)
    node = RealNode(servers)
    node.start()
    yield node
    node.stop()


@pytest.fixture
def controller(node: RealNode, kube: RealKube, tmp_path: Path) -> Iterator[Controller]:
    home = tmp_path / "home"
    home.mkdir()
    section = {
        "kubeconfig": str(kube.kubeconfig),
        "image": PYTHON,
        "allowed_nodes": {"names": [kubelet.NAME]},
        "pod_config": {"spec": {"containers": [{"imagePullPolicy": "Never"}]}},
    }
    port = unused_port()
    listen = {"host": node.address, "port": port, "tls": "auto", "advertise": f"https://{node.address}:{port}"}
    (home / "config.yaml").write_text(yaml.safe_dump({"local": False, "listen": listen, "kubernetes": section}))
    with running_controller(home) as one:
        yield one
        for pod in kube.pods():
            print(pod["metadata"]["name"], json.dumps(pod["status"]))
        print((home / "controller.log").read_text()[-4000:])
        one.perdure("jobs", "cancel", "--all-users", "--yes", "--no-graceful")
        one.until(lambda: not kube.pods(), "the end of every pod")


def launch(
    controller: Controller, tmp_path: Path, run: str, *, resources: dict[str, Any] | None = None, **more: Any
) -> None:
    wanted = {"infra": "k8s", "cpus": 1, "memory": "2+"} | (resources or {})
    (tmp_path / "task.yaml").write_text(yaml.safe_dump({"name": "real", "run": run, "resources": wanted, **more}))
    controller.perdure("jobs", "launch", tmp_path / "task.yaml", "-y", "-d")


def ended(controller: Controller, status: str) -> dict[str, Any]:
    controller.until(lambda: controller.job(1)["status"] == status, status, 60)
    return controller.job(1)


def names(kube: RealKube) -> list[str]:
    return [pod["metadata"]["name"] for pod in kube.pods()]


def test_job__runs_in_a_pod_and_ends(kube: RealKube, controller: Controller, tmp_path: Path) -> None:
    launch(controller, tmp_path, "echo on $HOSTNAME as $SKYPILOT_TASK_ID; test -e /dev/fuse || echo no fuse")
    shown = ended(controller, "SUCCEEDED")
    log = controller.log(1)
    assert "on pd-1-0-1-0-" in log
    assert f"as {shown['task_id']}" in log
    wait_until(lambda: not kube.pods(), "the end of the pod", 30)


def test_deleted_pod__drains_by_the_clusters_deadline_and_its_successor_is_there_before_it_is_gone(
    kube: RealKube, controller: Controller, tmp_path: Path
) -> None:
    """`kubectl delete pod --grace-period=60`."""
    launch(controller, tmp_path, WORK.format(drain_s=6))
    controller.until(lambda: "runs on pd-1-0-1-0-" in controller.log(1), "the first attempt")
    (pod,) = names(kube)
    kube.delete_pod(pod, 60)
    stamp = kube.client.get(f"/api/v1/namespaces/{kube.namespace}/pods/{pod}")["metadata"]["deletionTimestamp"]

    def both_exist() -> bool:
        listed = names(kube)
        return pod in listed and any(name.startswith("pd-1-0-2-0-") for name in listed)

    controller.until(both_exist, "the next attempt's pod beside the old one")
    controller.until(lambda: "runs on pd-1-0-2-0-" in controller.log(1), "the next attempt")
    log = controller.log(1)
    notice = json.loads(log.partition("notice: ")[2].partition("\n")[0])
    # The agent hears of it first by SIGTERM, and knows its pod's own grace then; the controller corrects it.
    assert notice["deadline"] <= datetime.fromisoformat(stamp).timestamp() + 11
    shown = controller.job(1)
    assert (shown["recovery_count"], shown["restarts_on_errors"]) == (1, 0)


def test_workload__that_exceeds_its_memory_fails_and_says_so(
    kube: RealKube, controller: Controller, tmp_path: Path
) -> None:
    launch(controller, tmp_path, "echo before; python3 -c \"x = b'x' * (3 << 30)\"; exit $?")
    shown = ended(controller, "FAILED")
    assert "before" in controller.log(1)
    assert "memory" in str(shown), shown["message"]
    assert shown["recovery_count"] == 0


@pytest.mark.parametrize(
    ("image", "words"),
    [
        ("perdure.test/no-such:1", "ErrImageNeverPull"),
        ("Not A Name", "InvalidImageName"),
        (BUSYBOX, "no Python 3.9 or newer"),
    ],
    ids=["missing", "invalid", "without Python"],
)
def test_image__that_cannot_run_is_named_and_not_tried_again(
    controller: Controller, tmp_path: Path, image: str, words: str
) -> None:
    launch(controller, tmp_path, "true", resources={"image_id": f"docker:{image}"})
    shown = ended(controller, "FAILED_PRECHECKS")
    assert words in str(shown)
    assert len(shown["attempts"]) == 1


def test_secret__that_is_missing_is_named(controller: Controller, tmp_path: Path) -> None:
    env = [{"name": "X", "valueFrom": {"secretKeyRef": {"name": "no-such", "key": "x"}}}]
    config = {"kubernetes": {"pod_config": {"spec": {"containers": [{"env": env}]}}}}
    launch(controller, tmp_path, "true", config=config)
    shown = ended(controller, "FAILED_PRECHECKS")
    assert 'secret "no-such" not found' in str(shown)


def test_pod_without_root_and_with_a_read_only_file_system__runs_a_job(controller: Controller, tmp_path: Path) -> None:
    context = {
        "runAsUser": 1000,
        "runAsNonRoot": True,
        "readOnlyRootFilesystem": True,
        "allowPrivilegeEscalation": False,
    }
    volumes = [{"name": "home", "emptyDir": {}}, {"name": "tmp", "emptyDir": {}}]
    mounts = [{"name": "home", "mountPath": "/home"}, {"name": "tmp", "mountPath": "/tmp"}]
    container = {
        "securityContext": context | {"capabilities": {"drop": ["ALL"]}},
        "volumeMounts": mounts,
        "env": [{"name": "HOME", "value": "/home"}],
    }
    config = {"kubernetes": {"pod_config": {"spec": {"containers": [container], "volumes": volumes}}}}
    launch(controller, tmp_path, "id -u; touch /x || echo read-only; touch ~/x && echo home", config=config)
    ended(controller, "SUCCEEDED")
    log = controller.log(1)
    assert "1000" in log
    assert "read-only" in log
    assert "home" in log


def test_volume__that_exceeds_its_limit_fails_the_job(kube: RealKube, controller: Controller, tmp_path: Path) -> None:
    volumes = [{"name": "data", "emptyDir": {"sizeLimit": "20Mi"}}]
    container = {"volumeMounts": [{"name": "data", "mountPath": "/data"}]}
    config = {"kubernetes": {"pod_config": {"spec": {"containers": [container], "volumes": volumes}}}}
    run = "echo writes; dd if=/dev/zero of=/data/x bs=1000000 count=60; sleep 300"
    launch(controller, tmp_path, run, config=config)
    shown = ended(controller, "FAILED")
    assert "EmptyDir" in str(shown)
    assert "writes" in controller.log(1)
