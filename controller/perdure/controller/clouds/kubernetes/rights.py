"""The rights in use in a cluster: deploy/kubernetes/rbac.yaml grants them, `perdure check` tests them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Right:
    """Some verbs on one resource."""

    group: str  # "" for the core API
    resource: str  # with its subresource, as in `pods/eviction`
    verbs: tuple[str, ...]
    purpose: str
    is_required: bool = True
    is_cluster_wide: bool = False
    is_for_kueue: bool = False  # of use with kubernetes.kueue.local_queue_name alone


RIGHTS = (
    Right("", "pods", ("get", "list", "watch", "create", "patch", "delete"), "the pods of attempts"),
    Right("", "secrets", ("get", "list", "create", "patch", "delete"), "the anchor of each attempt"),
    Right("", "pods/eviction", ("create",), "`perdure jobs preempt`", is_required=False),
    Right("", "events", ("list",), "whether an autoscaler adds a node for a pod that waits", is_required=False),
    Right(
        "kueue.x-k8s.io",
        "workloads",
        ("list",),
        "why Kueue holds pods back",
        is_required=False,
        is_for_kueue=True,
    ),
    Right(
        "visibility.kueue.x-k8s.io",
        "localqueues/pendingworkloads",
        ("get",),
        "the position in the queue",
        is_required=False,
        is_for_kueue=True,
    ),
    Right(
        "",
        "nodes",
        ("get", "list", "watch"),
        "offers and notices from nodes; without it, offers come from kubernetes.node_types",
        is_required=False,
        is_cluster_wide=True,
    ),
    Right(
        "karpenter.sh",
        "nodepools",
        ("list",),
        "offers of nodes that Karpenter would add; without it, those of kubernetes.node_types",
        is_required=False,
        is_cluster_wide=True,
    ),
    Right(
        "",
        "pods",
        ("list",),
        "what is free on nodes; without it, a full cluster is noticed only after kubernetes.provision_timeout",
        is_required=False,
        is_cluster_wide=True,
    ),
)
