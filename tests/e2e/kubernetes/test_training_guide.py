"""The Model Training Guide's YAML for Kubernetes, as printed: on Nebius' managed Kubernetes, and on EKS with EFA."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from seeds.test_training_guide import EFA, KUBERNETES
from support.fakes.kube import FakeKube
from support.fakes.kube.schemas import VERSIONS, schema_errors
from support.helpers.controllers import Controller, running_controller
from support.helpers.ports import unused_port

pytestmark = pytest.mark.slow

RUN = """
run: |
  echo rank $SKYPILOT_NODE_RANK of $SKYPILOT_NUM_NODES has $SKYPILOT_NUM_GPUS_PER_NODE GPUs, $NCCL_IB_HCA.
"""
# Nodes of one node group of GPUs, and one of CPUs. Both have labels of Nebius: only the first one has InfiniBand.
NEBIUS = {"nebius.com/node-group-id": "mk8snodegroup-e00gpu", "topology.kubernetes.io/region": "eu-north1"}
NEBIUS_GPU = NEBIUS | {"nebius.com/gpu-name": "H100", "node.kubernetes.io/instance-type": "gpu-h100-sxm"}
EKS_GPU = {
    "node.kubernetes.io/instance-type": "p5.48xlarge",
    "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
    "k8s.io/cloud-provider-aws": "f438",
}
EFA_RESOURCES = {"nvidia.com/gpu": 8, "vpc.amazonaws.com/efa": 32, "hugepages-2Mi": "5128Mi"}


@pytest.fixture
def kube(tmp_path: Path) -> Iterator[FakeKube]:
    with FakeKube(tmp_path / "kube") as kube:
        yield kube


@pytest.fixture
def controller(kube: FakeKube, tmp_path: Path) -> Iterator[Controller]:
    home, port = tmp_path / "home", unused_port()
    home.mkdir()
    kube.settings["controller_url"] = f"http://127.0.0.1:{port}"
    (home / "config.yaml").write_text(f"local: false\nlisten: {{port: {port}}}\n{kube.config}")
    with running_controller(home, environ=kube.environ) as one:
        yield one
        print((home / "controller.log").read_text()[-4000:])


def add_nodes(kube: FakeKube, labels: dict[str, str], resources: dict[str, Any], provider_id: str) -> None:
    for number in range(2):
        name = f"gpu-{number}"
        of = f"{provider_id}{number}"
        kube.add_node(name, cpu=127, memory_gib=1500, labels=labels, resources=resources, provider_id=of)
    kube.add_node("cpu", cpu=16, memory_gib=64, labels=NEBIUS if "nebius" in provider_id else {}, provider_id="x://cpu")


def launch(controller: Controller, tmp_path: Path, *fragments: str) -> str:
    (tmp_path / "task.yaml").write_text("\n".join([*fragments, RUN]))
    done = controller.perdure("jobs", "launch", "-y", tmp_path / "task.yaml")
    return done.stdout + done.stderr


def requests_of(kube: FakeKube) -> dict[str, tuple[str, dict[str, str], dict[str, str]]]:
    """Pod → (its node, requests, limits), of all pods that ever ran."""
    ran = [one[3] for one in kube.store._history if one[2] == "pods" and one[3]["status"].get("phase") == "Running"]
    for pod in ran:
        assert schema_errors({"apiVersion": "v1", "kind": "Pod", **pod}, VERSIONS) == ""
    return {
        pod["metadata"]["name"]: (pod["spec"]["nodeName"], resources["requests"], resources["limits"])
        for pod in ran
        for resources in [pod["spec"]["containers"][0]["resources"]]
    }


def test_yaml_for_nebius__runs_on_two_nodes_with_infiniband(
    kube: FakeKube, controller: Controller, tmp_path: Path
) -> None:
    add_nodes(kube, NEBIUS_GPU, {"nvidia.com/gpu": 8}, "nebius://computeinstance-e00")
    screen = launch(controller, tmp_path, KUBERNETES.here)
    assert "network_tier best: InfiniBand of Nebius" in screen
    for rank in range(2):
        assert f"rank {rank} of 2 has 8 GPUs, mlx5." in screen
    pods = requests_of(kube)
    assert {node for node, *_ in pods.values()} == {"gpu-0", "gpu-1"}
    for _, requests, limits in pods.values():
        assert requests["nvidia.com/gpu"] == limits["nvidia.com/gpu"] == "8"


def test_yaml_for_efa__as_printed_keeps_its_gpus_and_gets_the_adapters(
    kube: FakeKube, controller: Controller, tmp_path: Path
) -> None:
    """The guide's `limits` and `requests` are one level too high: SkyPilot would lose the GPUs."""
    add_nodes(kube, EKS_GPU, EFA_RESOURCES, "aws:///us-east-1a/i-0")
    screen = launch(controller, tmp_path, KUBERNETES.here, EFA.here)
    assert "moved below `resources`" in screen
    pods = requests_of(kube)
    assert len(pods) == 2
    for _, requests, limits in pods.values():
        for amounts in (requests, limits):
            assert amounts["nvidia.com/gpu"] == "8"
            assert amounts["vpc.amazonaws.com/efa"] == "4", "what is printed counts, not what the nodes have"
    assert "rank 1 of 2 has 8 GPUs" in screen
