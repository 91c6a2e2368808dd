"""The contract of a cloud on a real Kubernetes: two namespaces of one cluster as two contexts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from conformance.kubernetes.conftest import SettledCloud
from perdure.controller.clouds.contract_suite import CloudBench, CloudContract
from perdure.controller.clouds.kubernetes.settings import KubernetesSettings
from perdure.controller.runtime.clock import SystemClock
from support.real_kube import RealKube

pytestmark = pytest.mark.kubernetes


@pytest.fixture
def bench(new_kube: Callable[..., RealKube], tmp_path: Path) -> Iterator[CloudBench]:
    """A zone of each context has one on-demand node, and one spot node, where the capacity is limited."""
    clusters = {"east": new_kube(), "west": new_kube()}
    joined: dict[str, Any] = {}
    for context, kube in clusters.items():
        kube.context = context
        kube.faults.stop_s = 0.05
        for zone in (f"{context}-1", f"{context}-2"):
            kube.add_node(f"{zone}-fixed", zone=zone, labels={"of": context})
            labels = {"karpenter.sh/capacity-type": "spot", "of": context}
            kube.add_node(f"{zone}-spot", zone=zone, labels=labels)
        for name, value in kube.kubeconfig_data().items():
            is_list = isinstance(value, list) and name in joined
            joined[name] = joined[name] + value if is_list else joined.get(name, value)
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(joined))
    configs = {name: {"allowed_nodes": {"label_selector": {"of": name}}} for name in clusters}
    configs["west"] |= {"pricing": {"cpu": 0.08, "memory": 0.01}}
    section = {"kubeconfig": str(tmp_path / "kubeconfig"), "allowed_contexts": "all", "context_configs": configs}
    cloud = SettledCloud(KubernetesSettings.from_mapping(section), SystemClock())

    def settle() -> None:
        for kube in clusters.values():
            kube.settle()

    cloud.settle = settle  # type: ignore[method-assign]

    def set_capacity(zone: str, capacity: int) -> None:
        clusters[zone.partition("-")[0]].limit_pods(f"{zone}-spot", capacity)

    with CloudBench(cloud, set_capacity) as bench:
        yield bench


class TestKubernetesContract(CloudContract):
    """On real servers."""
