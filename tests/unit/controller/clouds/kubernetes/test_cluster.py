"""What is remembered of a cluster's pods, and for how long."""

from __future__ import annotations

import pytest

from perdure.controller.clouds.kubernetes import cluster as cluster_module
from perdure.controller.clouds.kubernetes.api.kubeconfig import Kubeconfig
from perdure.controller.clouds.kubernetes.cluster import Cluster
from perdure.controller.clouds.kubernetes.settings import ContextSettings
from perdure.controller.runtime.clock import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def cluster(clock: ManualClock) -> Cluster:
    return Cluster("prod", Kubeconfig({}), ContextSettings(), clock)


def test_wait__ends_with_the_pods_start(cluster: Cluster, clock: ManualClock) -> None:
    since = cluster.waiting_since("p", "Unschedulable")
    clock.advance(10)
    assert cluster.waiting_since("p", "Unschedulable") == since
    assert cluster.waiting_since("p", "start") == since + 10, "another wait begins"
    cluster.end_wait("p")
    clock.advance(10)
    assert cluster.waiting_since("p", "start") == since + 20


def test_wait__is_forgotten_for_the_oldest_pod_only(
    cluster: Cluster, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_module, "_MAX_REMEMBERED", 3)
    since = clock.now()
    for name in "abcd":
        assert cluster.waiting_since(name, "Unschedulable") == since
    clock.advance(10)
    assert cluster.waiting_since("d", "Unschedulable") == since
    assert cluster.waiting_since("b", "Unschedulable") == since
    assert cluster.waiting_since("a", "Unschedulable") == since + 10
