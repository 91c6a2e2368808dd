"""The accelerators of a node, from its labels and its allocatable resources. Every vendor has labels of its own.

Decided per node, since clusters mix families. A part of a GPU (MIG, time-slicing) is not a GPU: it has a name of its
own, such as `H100-MIG-1g.10gb` or `A100-SHARED`, so that nobody gets it for a whole one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

NVIDIA = "nvidia.com/gpu"
GPU_RESOURCES = (NVIDIA, "amd.com/gpu", "google.com/tpu", "aws.amazon.com/neuron")
_MIG_RESOURCE = re.compile(r"nvidia\.com/mig-(\d+g\.\d+gb)(?:\..*)?")
_MIG_PRODUCT = re.compile(r"(?P<product>.*)-MIG-(?P<profile>\d+g\.\d+gb)")

GKE = "cloud.google.com/gke-accelerator"
GKE_TPU = "cloud.google.com/gke-tpu-accelerator"
KARPENTER = "karpenter.k8s.aws/instance-gpu-name"
KARPENTER_OTHER = "karpenter.k8s.aws/instance-accelerator-name"
PRODUCT = "nvidia.com/gpu.product"  # NVIDIA's GPU feature discovery
COREWEAVE = "gpu.nvidia.com/class"
NEBIUS = "nebius.com/gpu-name"
SKYPILOT = "skypilot.co/accelerator"
AMD_PRODUCT = "amd.com/gpu.product-name"
LABELS = (SKYPILOT, GKE, GKE_TPU, KARPENTER, KARPENTER_OTHER, PRODUCT, COREWEAVE, NEBIUS, AMD_PRODUCT)

# Words of a vendor's product name → SkyPilot's name. The first that is contained counts, so longer names come first.
_PRODUCTS = (
    *(("RTX-6000-ADA", "RTX6000-Ada"), ("RTX-5090", "RTX5090"), ("RTX-4090", "RTX4090"), ("RTX-3090", "RTX3090")),
    *(("RTX-A6000", "A6000"), ("RTX-A5000", "A5000"), ("RTX-A4000", "A4000"), ("QUADRO-RTX-6000", "RTX6000")),
    *(("H100-MEGA", "H100-MEGA"), ("T4G", "T4g"), ("MI300X", "MI300X"), ("MI250", "MI250")),
    *(
        (name, name)
        for name in ("GB200", "GH200", "B300", "B200", "H200", "H100", "A100", "A10G", "A10", "L40S", "L40")
    ),
    *((name, name) for name in ("L4", "V100", "P100", "P40", "P4", "T4", "M60", "K80")),
    *(("INFERENTIA2", "Inferentia2"), ("INFERENTIA", "Inferentia"), ("TRAINIUM2", "Trainium2")),
    ("TRAINIUM", "Trainium"),
)
# (name, memory in the product's name) → the name of the larger model.
_LARGER = {("A100", "80GB"): "A100-80GB", ("V100", "32GB"): "V100-32GB"}


@dataclass(frozen=True)
class NodeAccelerator:
    """What a node has of one kind."""

    name: str  # SkyPilot's, if it has one
    count: int
    resource: str  # such as nvidia.com/gpu
    label: tuple[str, str] | None  # the node's label that names it


def accelerators_of(labels: Mapping[str, str], allocatable: Mapping[str, Any]) -> Iterator[NodeAccelerator]:
    """The accelerators of a node with these labels and allocatable resources. None for those that nothing names."""
    label = next(((key, labels[key]) for key in LABELS if labels.get(key)), None)
    whole = _canonical(label[1]) if label else None
    for resource, amount in allocatable.items():
        count = _count(amount)
        if count < 1:
            continue
        if match := _MIG_RESOURCE.fullmatch(resource):
            yield NodeAccelerator(f"{whole or 'GPU'}-MIG-{match[1]}", count, resource, label)
        elif resource in GPU_RESOURCES and whole is not None and label is not None:
            yield NodeAccelerator(_with_sharing(whole, label, labels), count, resource, label)


def is_unlabelled(labels: Mapping[str, str], allocatable: Mapping[str, Any]) -> bool:
    """Whether a node has GPUs, but no label that names them."""
    has_gpus = any(_count(allocatable.get(resource, 0)) for resource in GPU_RESOURCES)
    return has_gpus and not any(labels.get(key) for key in LABELS)


def _canonical(value: str) -> str:
    """SkyPilot's name of the accelerator that a label names, or else the label's value."""
    if match := _MIG_PRODUCT.fullmatch(value):
        return f"{_canonical(match['product'])}-MIG-{match['profile']}"
    text = value.upper().replace("_", "-").replace(" ", "-")
    name = next((name for part, name in _PRODUCTS if re.search(rf"(?<![A-Z0-9]){part}(?![A-Z0-9])", text)), None)
    if name is None:
        return value
    return next((larger for (small, memory), larger in _LARGER.items() if name == small and memory in text), name)


def _with_sharing(whole: str, label: tuple[str, str], labels: Mapping[str, str]) -> str:
    """The name of a GPU that several pods share, or else `whole`."""
    is_shared = labels.get("nvidia.com/gpu.sharing-strategy") in ("time-slicing", "mps")
    is_shared = is_shared or bool(labels.get("cloud.google.com/gke-gpu-sharing-strategy"))
    partition = labels.get("cloud.google.com/gke-gpu-partition-size")
    if partition:
        return f"{whole}-MIG-{partition}"
    if (is_shared or label[1].endswith("-SHARED")) and not whole.endswith("-SHARED"):
        return f"{whole}-SHARED"
    return whole


def _count(amount: Any) -> int:
    text = str(amount)
    return int(text) if text.isdecimal() else 0
