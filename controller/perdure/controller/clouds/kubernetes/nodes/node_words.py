"""What a node's taints, labels and conditions say about the end of its pods. Each vendor has words of its own.

Sources: cloud.google.com/kubernetes-engine/docs (spot VMs, maintenance), karpenter.sh/docs/concepts/disruption, the
cluster autoscaler's FAQ, aws-node-termination-handler, learn.microsoft.com/azure/aks/node-auto-repair.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any


class NodeWord(StrEnum):
    NOTICE = "notice"  # the node will be taken
    AT_RISK = "at-risk"  # the node may be taken
    SILENT = "silent"  # the node does not answer, or is not ready
    GONE = "gone"


_TAINTS: dict[str, NodeWord] = {
    "cloud.google.com/impending-node-termination": NodeWord.NOTICE,
    "karpenter.sh/disrupted": NodeWord.NOTICE,
    "karpenter.sh/disruption": NodeWord.NOTICE,
    "ToBeDeletedByClusterAutoscaler": NodeWord.NOTICE,
    "aws-node-termination-handler/spot-itn": NodeWord.NOTICE,
    "aws-node-termination-handler/scheduled-maintenance": NodeWord.NOTICE,
    "aws-node-termination-handler/asg-lifecycle-termination": NodeWord.NOTICE,
    "remediator.kubernetes.azure.com/unschedulable": NodeWord.NOTICE,
    "remediator.aks.microsoft.com/unschedulable": NodeWord.NOTICE,
    "DeletionCandidateOfClusterAutoscaler": NodeWord.AT_RISK,
    "aws-node-termination-handler/rebalance-recommendation": NodeWord.AT_RISK,
    "node.kubernetes.io/memory-pressure": NodeWord.AT_RISK,
    "node.kubernetes.io/disk-pressure": NodeWord.AT_RISK,
    "node.kubernetes.io/not-ready": NodeWord.SILENT,
    "node.kubernetes.io/unreachable": NodeWord.SILENT,
}
_MAINTENANCE = ("cloud.google.com/active-node-maintenance", "ONGOING")
_SCHEDULED_MAINTENANCE = "cloud.google.com/scheduled-maintenance-time"
_SHUTDOWN = "node is shutting down"


def words_of(node: Mapping[str, Any]) -> frozenset[NodeWord]:
    """All that a node says now."""
    spec, labels = node.get("spec") or {}, node["metadata"].get("labels") or {}
    words = {_TAINTS[taint["key"]] for taint in spec.get("taints") or () if taint.get("key") in _TAINTS}
    if spec.get("unschedulable") or _SCHEDULED_MAINTENANCE in labels:
        words.add(NodeWord.AT_RISK)
    if labels.get(_MAINTENANCE[0]) == _MAINTENANCE[1]:
        words.add(NodeWord.NOTICE)
    for condition in (node.get("status") or {}).get("conditions") or ():
        if condition.get("type") == "Ready" and condition.get("status") != "True":
            is_shutdown = _SHUTDOWN in str(condition.get("message", ""))
            words.add(NodeWord.NOTICE if is_shutdown else NodeWord.SILENT)
    return frozenset(words)
