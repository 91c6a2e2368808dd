"""Which nodes are spot, by the labels of each vendor, and how pods are kept on or off them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from perdure.recovery.market.view import Market


@dataclass(frozen=True)
class SpotMark:
    """How a vendor marks spot nodes: by a label, and often by a taint of the same name."""

    label: str
    value: str
    notice_s: float  # how long the vendor leaves pods after a notice


GKE_SPOT = SpotMark("cloud.google.com/gke-spot", "true", 15.0)
GKE_PREEMPTIBLE = SpotMark("cloud.google.com/gke-preemptible", "true", 15.0)
KARPENTER_SPOT = SpotMark("karpenter.sh/capacity-type", "spot", 120.0)
EKS_SPOT = SpotMark("eks.amazonaws.com/capacityType", "SPOT", 120.0)
AKS_SPOT = SpotMark("kubernetes.azure.com/scalesetpriority", "spot", 30.0)
MARKS = (GKE_SPOT, GKE_PREEMPTIBLE, KARPENTER_SPOT, EKS_SPOT, AKS_SPOT)


def marks(own_label: tuple[str, str] | None) -> tuple[SpotMark, ...]:
    """Every known mark, and the one that the configuration names."""
    return (*MARKS, *([SpotMark(*own_label, notice_s=30.0)] if own_label else []))


def mark_of(labels: Mapping[str, str], known: Sequence[SpotMark]) -> SpotMark | None:
    """The mark of a spot node; None for an on-demand node."""
    return next((mark for mark in known if labels.get(mark.label) == mark.value), None)


def market_of(labels: Mapping[str, str], known: Sequence[SpotMark]) -> Market:
    return Market.SPOT if mark_of(labels, known) else Market.ON_DEMAND


def expressions(market: Market, mark: SpotMark | None, known: Sequence[SpotMark]) -> list[dict[str, Any]]:
    """The node selector's requirements: on spot nodes with this mark, or on no spot node."""
    if market is Market.SPOT and mark is not None:
        return [{"key": mark.label, "operator": "In", "values": [mark.value]}]
    return [{"key": mark.label, "operator": "NotIn", "values": [mark.value]} for mark in known]


def tolerations(market: Market, known: Sequence[SpotMark]) -> list[dict[str, str]]:
    """What lets spot pods onto tainted spot nodes."""
    if market is not Market.SPOT:
        return []
    return [{"key": mark.label, "operator": "Equal", "value": mark.value, "effect": "NoSchedule"} for mark in known]
