"""`network_tier: best`: the fast network between nodes, as each vendor's nodes offer it.

Adapters are requested in proportion to the accelerators. What needs a privileged container or the node's own network
(TCPX on GKE, RDMA on OCI without SR-IOV) is attached only if `kubernetes.privileged_network` allows it.
Sources: docs.aws.amazon.com/eks (EFA), docs.coreweave.com, docs.nebius.com, docs.oracle.com (OKE RDMA).
"""

from __future__ import annotations

from collections.abc import Sequence

from perdure.controller.clouds.kubernetes.nodes.node_view import NodeView
from perdure.controller.clouds.kubernetes.nodes.quantities import parse_quantity
from perdure.controller.clouds.kubernetes.pods import gke_fabric
from perdure.controller.clouds.kubernetes.pods.fabric import NO_FABRIC, PodFabric, RdmaSettings

EFA = "vpc.amazonaws.com/efa"
HUGE_PAGES = "hugepages-2Mi"
SRIOV_NETWORKS = "k8s.v1.cni.cncf.io/networks"
_HUGE_PAGES_OF_EFA = 5120  # MiB, as AWS's samples request
# EFA interfaces by instance type, for nodes that do not exist yet.
_EFA_COUNTS = {
    **{"p4d.24xlarge": 4, "p4de.24xlarge": 4, "p5.48xlarge": 32, "p5e.48xlarge": 32, "p5en.48xlarge": 16},
    **{"p6-b200.48xlarge": 8, "p6-b300.48xlarge": 16},
}
_COREWEAVE, _NEBIUS, _TOGETHER = "ib.coreweave.cloud/", "nebius.com/", "node-role.together.ai/"
_OCI = "oci.oraclecloud.com/rdma."
_NEBIUS_DEVICES = ",".join(f"mlx5_{number}:1" for number in range(8))
_OCI_ENV = {"NCCL_IB_GID_INDEX": "3", "NCCL_IB_TC": "41"}
_INFINIBAND = "/dev/infiniband"


def fabric_of(
    nodes: Sequence[NodeView],
    accelerators: tuple[str, int] | None,
    rdma: RdmaSettings | None = None,
    *,
    may_be_privileged: bool = False,
) -> PodFabric:
    """The fabric that all of `nodes` have, for a pod with these accelerators; NO_FABRIC if they differ or have none.

    `may_be_privileged`: attach also what needs a privileged container or the node's own network.
    """
    if accelerators is None or not nodes:
        return NO_FABRIC
    fabrics = [_fabric_of_node(node, accelerators, rdma) for node in nodes]
    if any(one != fabrics[0] for one in fabrics) or (fabrics[0].is_privileged and not may_be_privileged):
        return NO_FABRIC
    return fabrics[0]


def _fabric_of_node(node: NodeView, accelerators: tuple[str, int], rdma: RdmaSettings | None) -> PodFabric:
    total = sum(one.count for one in node.accelerators if one.name == accelerators[0])
    share = accelerators[1] / max(1, total)
    if adapters := int(parse_quantity(node.allocatable.get(EFA, 0))) or _EFA_COUNTS.get(node.instance_type, 0):
        return _efa(node, adapters, share)
    if rdma is not None and (functions := int(parse_quantity(node.allocatable.get(rdma.resource, 0)))):
        return _virtual_functions(rdma, max(1, int(functions * share)), is_oci=_has_label(node, _OCI))
    if _has_label(node, _COREWEAVE):
        env = {"NCCL_IB_HCA": "ibp", "NCCL_SOCKET_IFNAME": "eth0", "UCX_TLS": "tcp"}
        return PodFabric("InfiniBand of CoreWeave", {"rdma/ib": "1"}, env)
    if _has_label(node, _TOGETHER):
        return PodFabric("InfiniBand of Together", {"nvidia.com/rdma_ib": str(accelerators[1])})
    if _has_label(node, _NEBIUS):
        env = {"NCCL_IB_HCA": "mlx5", "UCX_NET_DEVICES": _NEBIUS_DEVICES}
        return PodFabric("InfiniBand of Nebius", {}, env, ("IPC_LOCK",))
    if _has_label(node, _OCI):
        return PodFabric(
            "RDMA of OCI, by the node's network",
            env=_OCI_ENV,
            volumes={"infiniband": (_INFINIBAND, _INFINIBAND)},
            is_privileged=True,
            uses_host_network=True,
        )
    return gke_fabric.fabric_of_node(node) if share == 1.0 else NO_FABRIC


def _efa(node: NodeView, adapters: int, share: float) -> PodFabric:
    resources = {EFA: str(max(1, int(adapters * share)))}
    has_pages = parse_quantity(node.allocatable.get(HUGE_PAGES, 0)) >= _HUGE_PAGES_OF_EFA * 2**20
    if has_pages and share == 1.0:
        resources[HUGE_PAGES] = f"{_HUGE_PAGES_OF_EFA}Mi"
    return PodFabric(f"{resources[EFA]} adapters of EFA", resources, {"FI_PROVIDER": "efa"})


def _virtual_functions(rdma: RdmaSettings, count: int, *, is_oci: bool) -> PodFabric:
    networks = rdma.networks * count if len(rdma.networks) == 1 else rdma.networks
    return PodFabric(
        f"{count} RDMA functions ({rdma.resource})",
        {rdma.resource: str(count)},
        _OCI_ENV if is_oci else {},
        ("IPC_LOCK",),
        {SRIOV_NETWORKS: ",".join(networks)} if networks else {},
    )


def _has_label(node: NodeView, prefix: str) -> bool:
    return any(name.startswith(prefix) for name in node.labels)


def missing_note(
    nodes: Sequence[NodeView], accelerators: tuple[str, int] | None, rdma: RdmaSettings | None, *, denied: bool
) -> str:
    """Why a pod that asked for the best network gets none, for the job's log."""
    if accelerators is None:
        return "network_tier best: a task without accelerators has the ordinary network"
    if denied:
        return "network_tier best: the namespace forbids what the fast network needs; the ordinary one is used"
    if fabric_of(nodes, accelerators, rdma, may_be_privileged=True) != NO_FABRIC:
        return (
            "network_tier best: the fast network of these nodes needs a privileged container: set "
            "kubernetes.privileged_network to allow it"
        )
    return "network_tier best: the nodes have no fast network that is known, or not all the same"
