"""`network_tier: best`: the fast network between nodes, as each vendor's nodes offer it.

Adapters are requested in proportion to the accelerators. Only what an unprivileged pod can get is attached: networks
that need the host's network or a privileged sidecar (TCPX and RoCE on GKE, RDMA on OCI) are left to `pod_config`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from perdure.controller.clouds.kubernetes.nodes.node_view import NodeView
from perdure.controller.clouds.kubernetes.nodes.quantities import parse_quantity

EFA = "vpc.amazonaws.com/efa"
HUGE_PAGES = "hugepages-2Mi"
_HUGE_PAGES_OF_EFA = 5120  # MiB, as AWS's samples request
# EFA interfaces by instance type, for nodes that do not exist yet.
_EFA_COUNTS = {
    **{"p4d.24xlarge": 4, "p4de.24xlarge": 4, "p5.48xlarge": 32, "p5e.48xlarge": 32, "p5en.48xlarge": 16},
    **{"p6-b200.48xlarge": 8, "p6-b300.48xlarge": 16},
}
_COREWEAVE, _NEBIUS, _TOGETHER = "ib.coreweave.cloud/", "nebius.com/", "node-role.together.ai/"
_NEBIUS_DEVICES = ",".join(f"mlx5_{number}:1" for number in range(8))


@dataclass(frozen=True)
class PodFabric:
    """What a pod needs for the fast network."""

    resources: Mapping[str, str] = field(default_factory=dict)  # requests and limits
    env: Mapping[str, str] = field(default_factory=dict)
    capabilities: tuple[str, ...] = ()


NO_FABRIC = PodFabric()


def fabric_of(nodes: Sequence[NodeView], accelerators: tuple[str, int] | None) -> PodFabric:
    """The fabric that all of `nodes` have, for a pod with these accelerators; NO_FABRIC if they differ or have none."""
    if accelerators is None or not nodes:
        return NO_FABRIC
    fabrics = [_fabric_of_node(node, accelerators) for node in nodes]
    return fabrics[0] if all(one == fabrics[0] for one in fabrics) else NO_FABRIC


def _fabric_of_node(node: NodeView, accelerators: tuple[str, int]) -> PodFabric:
    total = sum(one.count for one in node.accelerators if one.name == accelerators[0])
    share = accelerators[1] / max(1, total)
    if adapters := int(parse_quantity(node.allocatable.get(EFA, 0))) or _EFA_COUNTS.get(node.instance_type, 0):
        resources = {EFA: str(max(1, int(adapters * share)))}
        has_pages = parse_quantity(node.allocatable.get(HUGE_PAGES, 0)) >= _HUGE_PAGES_OF_EFA * 2**20
        if has_pages and share == 1.0:
            resources[HUGE_PAGES] = f"{_HUGE_PAGES_OF_EFA}Mi"
        return PodFabric(resources, {"FI_PROVIDER": "efa"})
    if _has_label(node, _COREWEAVE):
        return PodFabric({"rdma/ib": "1"}, {"NCCL_IB_HCA": "ibp", "NCCL_SOCKET_IFNAME": "eth0", "UCX_TLS": "tcp"})
    if _has_label(node, _TOGETHER):
        return PodFabric({"nvidia.com/rdma_ib": str(accelerators[1])})
    if _has_label(node, _NEBIUS):
        return PodFabric({}, {"NCCL_IB_HCA": "mlx5", "UCX_NET_DEVICES": _NEBIUS_DEVICES}, ("IPC_LOCK",))
    return NO_FABRIC


def _has_label(node: NodeView, prefix: str) -> bool:
    return any(name.startswith(prefix) for name in node.labels)
