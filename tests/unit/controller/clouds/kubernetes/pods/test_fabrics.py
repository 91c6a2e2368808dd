"""`network_tier: best` on the nodes of every vendor."""

from __future__ import annotations

import json
from typing import Any

import pytest

from perdure.controller.clouds.kubernetes.nodes.markets import MARKS
from perdure.controller.clouds.kubernetes.nodes.node_view import NodeView, view_of
from perdure.controller.clouds.kubernetes.pods import fabrics, gke_fabric
from perdure.controller.clouds.kubernetes.pods.fabric import NO_FABRIC, RdmaSettings

GPUS = ("H100", 8)
PRODUCT = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
TYPE = "node.kubernetes.io/instance-type"


def node(labels: dict[str, str], **resources: Any) -> NodeView:
    amounts = {"cpu": "192", "memory": "2000Gi", "nvidia.com/gpu": "8", **resources}
    return view_of({"metadata": {"name": "n", "labels": PRODUCT | labels}, "status": {"allocatable": amounts}}, MARKS)


def networks(*names: str) -> dict[str, str]:
    return {f"networking.gke.io.networks/{name}.IP": "128" for name in names}


@pytest.mark.parametrize(
    ("labels", "resources", "expected"),
    [
        ({}, {"vpc.amazonaws.com/efa": "32"}, {"vpc.amazonaws.com/efa": "32"}),
        ({TYPE: "p5en.48xlarge"}, {}, {"vpc.amazonaws.com/efa": "16"}),
        ({"ib.coreweave.cloud/speed": "400G"}, {}, {"rdma/ib": "1"}),
        ({"node-role.together.ai/gpu": ""}, {}, {"nvidia.com/rdma_ib": "8"}),
        ({"nebius.com/gpu-name": "H100"}, {}, {}),
    ],
)
def test_fabric__requests_what_the_vendors_nodes_have(
    labels: dict[str, str], resources: dict[str, str], expected: dict[str, str]
) -> None:
    chosen = fabrics.fabric_of([node(labels, **resources)], GPUS)
    assert chosen != NO_FABRIC
    assert chosen.resources == expected
    assert not chosen.is_privileged


def test_nebius__needs_memory_that_is_locked_and_the_names_of_its_adapters() -> None:
    chosen = fabrics.fabric_of([node({"nebius.com/gpu-name": "H100"})], GPUS)
    assert chosen.capabilities == ("IPC_LOCK",)
    assert chosen.env["NCCL_IB_HCA"] == "mlx5"
    assert chosen.env["UCX_NET_DEVICES"].startswith("mlx5_0:1,mlx5_1:1")


def test_virtual_functions__are_requested_in_proportion_and_each_gets_its_network() -> None:
    rdma = RdmaSettings("nvidia.com/sriov_rdma_vf", ("oci/sriov",))
    chosen = fabrics.fabric_of(
        [node({"oci.oraclecloud.com/rdma.host_id": "x"}, **{"nvidia.com/sriov_rdma_vf": "16"})], ("H100", 4), rdma
    )
    assert chosen.resources == {"nvidia.com/sriov_rdma_vf": "8"}
    assert chosen.annotations == {"k8s.v1.cni.cncf.io/networks": ",".join(["oci/sriov"] * 8)}
    assert (chosen.env["NCCL_IB_GID_INDEX"], chosen.env["NCCL_IB_TC"]) == ("3", "41")
    assert not chosen.uses_host_network


@pytest.mark.parametrize(
    "one",
    [
        node({"oci.oraclecloud.com/rdma.host_id": "x"}),
        node({TYPE: "a3-highgpu-8g"}, **networks("vpc1", "vpc2", "vpc3", "vpc4")),
    ],
    ids=["oci", "tcpx"],
)
def test_network_that_needs_privileges__is_used_only_with_leave(one: NodeView) -> None:
    assert fabrics.fabric_of([one], GPUS) == NO_FABRIC
    assert "privileged_network" in fabrics.missing_note([one], GPUS, None, denied=False)
    assert fabrics.fabric_of([one], GPUS, may_be_privileged=True).is_privileged


def test_tcpxo__has_an_interface_in_every_network_and_a_daemon_without_privileges() -> None:
    names = [f"gpu-nic{number}" for number in range(8)]
    one = node({TYPE: "a3-megagpu-8g"}, **networks(*reversed(names)), **{"networking.gke.io.networks/default": "1"})
    chosen = fabrics.fabric_of([one], GPUS)
    interfaces = json.loads(chosen.annotations[gke_fabric.INTERFACES])
    assert interfaces[0] == {"interfaceName": "eth0", "network": "default"}
    assert [entry["network"] for entry in interfaces[1:]] == names
    (daemon,) = chosen.sidecars
    assert daemon["restartPolicy"] == "Always", "the pod ends with its workload"
    assert "privileged" not in daemon["securityContext"]
    assert "/dev/dmabuf_import_helper" in chosen.annotations[gke_fabric.TCPXO_DEVICES]
    assert chosen.env["NCCL_FASTRAK_IFNAME"] == "eth1,eth2,eth3,eth4,eth5,eth6,eth7,eth8"


def test_networks__are_in_the_order_of_their_numbers() -> None:
    one = node({}, **networks("vpc10", "vpc2", "vpc1"))
    assert gke_fabric.networks_of(one) == ["vpc1", "vpc2", "vpc10"]


@pytest.mark.parametrize("kind", ["a3-ultragpu-8g", "a4-highgpu-8g"])
def test_roce__uses_the_nodes_plugin(kind: str) -> None:
    names = ["gvnic-1", *(f"rdma-{number}" for number in range(8))]
    chosen = fabrics.fabric_of([node({TYPE: kind}, **networks(*names))], GPUS)
    assert chosen.env["NCCL_NET"] == "gIB"
    assert chosen.volumes["gib"] == ("/home/kubernetes/bin/gib", "/usr/local/gib")
    assert fabrics.fabric_of([node({TYPE: kind})], GPUS) == NO_FABRIC


@pytest.mark.parametrize(
    ("nodes", "accelerators", "words"),
    [
        ([node({})], None, "without accelerators"),
        ([node({})], GPUS, "no fast network that is known"),
        ([node({}), node({"ib.coreweave.cloud/speed": "400G"})], GPUS, "not all the same"),
        ([node({TYPE: "a3-megagpu-8g"}, **networks("vpc1"))], GPUS, "no fast network"),
    ],
)
def test_missing_network__is_explained(nodes: list[NodeView], accelerators: tuple[str, int] | None, words: str) -> None:
    assert fabrics.fabric_of(nodes, accelerators) == NO_FABRIC
    assert words in fabrics.missing_note(nodes, accelerators, None, denied=False)
    if accelerators is not None:
        assert "forbids" in fabrics.missing_note(nodes, accelerators, None, denied=True)
