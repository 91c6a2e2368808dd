"""Every vendor's labels give SkyPilot's names, and a part of a GPU never passes for a whole one."""

from __future__ import annotations

import pytest

from perdure.controller.clouds.kubernetes.nodes.accelerators import accelerators_of, is_unlabelled

GPUS = {"nvidia.com/gpu": "8", "cpu": "96"}


@pytest.mark.parametrize(
    ("label", "value", "name"),
    [
        ("cloud.google.com/gke-accelerator", "nvidia-tesla-t4", "T4"),
        ("cloud.google.com/gke-accelerator", "nvidia-l4", "L4"),
        ("cloud.google.com/gke-accelerator", "nvidia-tesla-a100", "A100"),
        ("cloud.google.com/gke-accelerator", "nvidia-a100-80gb", "A100-80GB"),
        ("cloud.google.com/gke-accelerator", "nvidia-h100-80gb", "H100"),
        ("cloud.google.com/gke-accelerator", "nvidia-h100-mega-80gb", "H100-MEGA"),
        ("cloud.google.com/gke-accelerator", "nvidia-h200-141gb", "H200"),
        ("cloud.google.com/gke-accelerator", "nvidia-b200", "B200"),
        ("karpenter.k8s.aws/instance-gpu-name", "a10g", "A10G"),
        ("karpenter.k8s.aws/instance-gpu-name", "l40s", "L40S"),
        ("nvidia.com/gpu.product", "NVIDIA-H100-80GB-HBM3", "H100"),
        ("nvidia.com/gpu.product", "NVIDIA-A100-SXM4-40GB", "A100"),
        ("nvidia.com/gpu.product", "NVIDIA-A100-SXM4-80GB", "A100-80GB"),
        ("nvidia.com/gpu.product", "NVIDIA-A10", "A10"),
        ("nvidia.com/gpu.product", "Tesla-V100-SXM2-32GB", "V100-32GB"),
        ("nvidia.com/gpu.product", "NVIDIA-RTX-6000-Ada-Generation", "RTX6000-Ada"),
        ("nvidia.com/gpu.product", "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb", "H100-MIG-1g.10gb"),
        ("nvidia.com/gpu.product", "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb", "A100-MIG-1g.5gb"),
        ("nvidia.com/gpu.product", "NVIDIA-H100-80GB-HBM3-SHARED", "H100-SHARED"),
        ("gpu.nvidia.com/class", "A100_NVLINK_80GB", "A100-80GB"),
        ("gpu.nvidia.com/class", "H100_NVLINK_80GB", "H100"),
        ("nebius.com/gpu-name", "H200", "H200"),
        ("skypilot.co/accelerator", "h100", "H100"),
        ("skypilot.co/accelerator", "our-own-chip", "our-own-chip"),
    ],
)
def test_label__gives_skypilots_name(label: str, value: str, name: str) -> None:
    assert [(one.name, one.count, one.label) for one in accelerators_of({label: value}, GPUS)] == [
        (name, 8, (label, value))
    ]


@pytest.mark.parametrize(
    "extra",
    [
        {"nvidia.com/gpu.sharing-strategy": "time-slicing"},
        {"nvidia.com/gpu.sharing-strategy": "mps"},
        {"cloud.google.com/gke-gpu-sharing-strategy": "time-sharing"},
    ],
)
def test_shared_gpu__has_a_name_of_its_own(extra: dict[str, str]) -> None:
    labels = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB", **extra}
    assert [one.name for one in accelerators_of(labels, GPUS)] == ["A100-SHARED"]


def test_mig_resources__are_named_by_their_profile() -> None:
    amounts = {"nvidia.com/gpu": "0", "nvidia.com/mig-1g.10gb": "14", "nvidia.com/mig-3g.40gb": "2"}
    labels = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
    assert [(one.name, one.count, one.resource) for one in accelerators_of(labels, amounts)] == [
        ("H100-MIG-1g.10gb", 14, "nvidia.com/mig-1g.10gb"),
        ("H100-MIG-3g.40gb", 2, "nvidia.com/mig-3g.40gb"),
    ]


def test_unlabelled_gpus__are_not_offered() -> None:
    assert not list(accelerators_of({}, GPUS))
    assert is_unlabelled({}, GPUS)
    assert not is_unlabelled({}, {"cpu": "4"})
