"""`network_tier: best` on clusters that look like each vendor's: the pods that are created, and what they say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from perdure.controller.clouds.base.protocol import LaunchRequest
from perdure.controller.clouds.kubernetes.cloud import KubernetesCloud
from support.fakes.kube import FakeKube
from support.fakes.kube.schemas import schema_errors

NewCloud = Callable[..., KubernetesCloud]
RequestOf = Callable[..., LaunchRequest]
TYPE = "node.kubernetes.io/instance-type"
GKE_H100 = {"cloud.google.com/gke-accelerator": "nvidia-h100-mega-80gb"}
NETWORKS = {f"networking.gke.io.networks/vpc{number}.IP": 128 for number in range(1, 9)}
VENDORS: dict[str, tuple[dict[str, str], dict[str, Any], dict[str, Any], str, str]] = {
    # labels, resources, section, the accelerator, what the job's log says
    "nebius": ({"nebius.com/gpu-name": "H100"}, {}, {}, "H100", "InfiniBand of Nebius"),
    "coreweave": (
        {"gpu.nvidia.com/class": "H100", "ib.coreweave.cloud/speed": "400G"},
        {"rdma/ib": 1},
        {},
        "H100",
        "InfiniBand of CoreWeave",
    ),
    "tcpx": ({**GKE_H100, TYPE: "a3-highgpu-8g"}, NETWORKS, {"privileged_network": True}, "H100-MEGA", "TCPX of 4"),
    "tcpxo": ({**GKE_H100, TYPE: "a3-megagpu-8g"}, NETWORKS, {}, "H100-MEGA", "TCPXO of 8 networks"),
    "oci": (
        {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "oci.oraclecloud.com/rdma.host_id": "x"},
        {"nvidia.com/sriov_rdma_vf": 16},
        {"rdma": {"mode": "sriov", "resource": "nvidia.com/sriov_rdma_vf", "networks": ["default/sriov"]}},
        "H100",
        "16 RDMA functions",
    ),
}


def launch(kube: FakeKube, cloud: KubernetesCloud, request_of: RequestOf, accelerator: str) -> list[dict[str, Any]]:
    offer = next(one for one in cloud.offers() if one.accelerators == (accelerator, 8.0))
    cloud.launch(
        request_of(kind=offer.instance_type, num_nodes=2, network_tier="best", accelerators=offer.accelerators)
    )
    return kube.pods()


def note(pod: dict[str, Any]) -> str:
    return next(one["value"] for one in pod["spec"]["containers"][0]["env"] if one["name"] == "PERDURE_NOTE")


@pytest.mark.parametrize("vendor", VENDORS)
def test_pods__of_two_nodes_get_the_vendors_network_and_are_valid(
    kube: FakeKube, new_cloud: NewCloud, request_of: RequestOf, vendor: str
) -> None:
    labels, resources, section, accelerator, words = VENDORS[vendor]
    for number in range(2):
        kube.add_node(
            f"n{number}", cpu=192, memory_gib=2000, labels=labels, resources={"nvidia.com/gpu": 8, **resources}
        )
    pods = launch(kube, new_cloud(**section), request_of, accelerator)
    assert [pod["status"]["phase"] for pod in pods] == ["Running", "Running"]
    assert {pod["spec"]["nodeName"] for pod in pods} == {"n0", "n1"}
    for pod in pods:
        asked = pod["spec"]["containers"][0]["resources"]
        assert asked["requests"]["nvidia.com/gpu"] == asked["limits"]["nvidia.com/gpu"] == "8"
        assert words in note(pod)
        pod["metadata"].pop("managedFields", None)
        assert schema_errors({"apiVersion": "v1", "kind": "Pod", **pod}) == ""


def test_namespace__that_forbids_files_of_the_node_gets_the_ordinary_network(
    kube: FakeKube, new_cloud: NewCloud, request_of: RequestOf
) -> None:
    labels, resources, section, accelerator, _ = VENDORS["tcpxo"]
    for number in range(2):
        kube.add_node(
            f"n{number}", cpu=192, memory_gib=2000, labels=labels, resources={"nvidia.com/gpu": 8, **resources}
        )
    kube.faults.baseline = True
    pods = launch(kube, new_cloud(**section), request_of, accelerator)
    assert [pod["status"]["phase"] for pod in pods] == ["Running", "Running"]
    assert all("forbids" in note(pod) for pod in pods)
    assert not [pod for pod in pods if pod["spec"].get("initContainers")]


def test_cluster_with_an_ordinary_network__runs_the_task_and_says_so(
    kube: FakeKube, new_cloud: NewCloud, request_of: RequestOf
) -> None:
    labels = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
    for number in range(2):
        kube.add_node(f"n{number}", cpu=192, memory_gib=2000, labels=labels, resources={"nvidia.com/gpu": 8})
    pods = launch(kube, new_cloud(), request_of, "H100")
    assert all("no fast network that is known" in note(pod) for pod in pods)
