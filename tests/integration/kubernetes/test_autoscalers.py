"""Pods that wait for nodes to come: offers of NodePools, signs of the autoscalers, and when a wait is over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from perdure.controller.clouds.base.protocol import InstanceState, LaunchRequest
from perdure.controller.clouds.kubernetes.cloud import KubernetesCloud
from perdure.controller.clouds.kubernetes.settings import KubernetesSettings
from perdure.controller.clouds.kubernetes.waits.scale_ups import RECHECK_S, SCALE_UP_S
from perdure.controller.runtime.clock import ManualClock
from perdure.recovery.market.view import Market
from perdure.recovery.reasons import Reason
from support.fakes.kube import FakeKube

NewCloud = Callable[..., KubernetesCloud]
RequestOf = Callable[..., LaunchRequest]
POOL = {
    "metadata": {"name": "gpu"},
    "spec": {
        "template": {
            "spec": {
                "nodeClassRef": {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"},
                "requirements": [
                    {"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["p5.48xlarge"]},
                    {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["spot"]},
                    {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["us-east-1a"]},
                ],
            }
        }
    },
}


def add_the_node(kube: FakeKube) -> None:
    labels = {
        "karpenter.sh/capacity-type": "spot",
        "karpenter.k8s.aws/instance-gpu-name": "h100",
        "node.kubernetes.io/instance-type": "p5.48xlarge",
    }
    kube.add_node("new", cpu=191.8, memory_gib=1894, zone="us-east-1a", labels=labels, resources={"nvidia.com/gpu": 8})


def test_node_pool__is_offered_without_any_node_and_its_pod_runs_on_the_node_that_comes(
    kube: FakeKube, new_cloud: NewCloud, request_of: RequestOf
) -> None:
    kube.add("nodepools", POOL)
    cloud = new_cloud()
    (offer,) = [one for one in cloud.offers() if one.accelerators == ("H100", 8.0)]
    assert (offer.zone, offer.market) == ("us-east-1a", Market.SPOT)
    request = request_of(
        kind=offer.instance_type, zone=offer.zone, market=offer.market, accelerators=offer.accelerators
    )
    (waiting,) = cloud.launch(request)
    assert waiting.state is InstanceState.PENDING
    kube.add_node("cpu", cpu=191.8, memory_gib=1894, zone="us-east-1a")
    assert cloud.describe(kube.context, [waiting.id])[0].state is InstanceState.PENDING, "that is no GPU"
    add_the_node(kube)
    assert cloud.describe(kube.context, [waiting.id])[0].state is InstanceState.RUNNING


@pytest.mark.parametrize("has_right", [True, False])
def test_cluster_without_node_pools__is_asked_for_them_once(
    kube: FakeKube, new_cloud: NewCloud, request_of: RequestOf, has_right: bool
) -> None:
    if not has_right:
        kube.faults.forbid.add("list nodepools")
    kube.add_node("n1")
    cloud = new_cloud()
    assert cloud.offers()
    for number in range(3):
        cloud.launch(request_of(f"t{number}"))
    assert kube.calls["GET nodepools"] == 1


class Waiting:
    """A pod that no node has room for, seen with a clock of its own."""

    def __init__(self, kube: FakeKube, request: LaunchRequest, **section: Any) -> None:
        self.kube, self.clock = kube, ManualClock()
        settings = {"kubeconfig": str(kube.kubeconfig), "autoscaler": "generic", "provision_timeout": 100}
        self.cloud = KubernetesCloud(KubernetesSettings.from_mapping(settings | section), self.clock)
        kube.add_node("n1", cpu=2, memory_gib=4)
        kube.limit_pods("n1", 0)
        (launched,) = self.cloud.launch(request)
        self.id = launched.id
        self.state()

    def state(self) -> tuple[InstanceState, Reason | None, str]:
        (one,) = self.cloud.describe(self.kube.context, [self.id])
        return one.state, one.gone_reason, one.gone_message

    def is_over(self) -> bool:
        return self.state()[:2] == (InstanceState.ENDING, Reason.NO_CAPACITY)


@pytest.mark.parametrize(("reason", "source"), [("TriggeredScaleUp", "cluster-autoscaler"), ("Nominated", "karpenter")])
def test_scale_up__holds_the_wait_and_a_later_refusal_ends_it(
    kube: FakeKube, request_of: RequestOf, reason: str, source: str
) -> None:
    waiting = Waiting(kube, request_of())
    waiting.clock.advance(99)
    assert not waiting.is_over()
    kube.add_event(waiting.id, reason, source)
    waiting.clock.advance(1)
    assert not waiting.is_over()
    waiting.clock.advance(SCALE_UP_S - 10)
    assert not waiting.is_over(), "it counts from the sign, not from the beginning"
    refusal = ("NotTriggerScaleUp", source) if reason == "TriggeredScaleUp" else ("FailedScheduling", "karpenter")
    kube.add_event(waiting.id, *refusal, "no instance type fits")
    waiting.clock.advance(RECHECK_S)
    assert waiting.is_over()
    assert "no instance type fits" in waiting.state()[2]


def test_wait__without_a_sign_ends_at_the_limit(kube: FakeKube, request_of: RequestOf) -> None:
    waiting = Waiting(kube, request_of())
    waiting.clock.advance(99)
    kube.add_event(waiting.id, "FailedScheduling", "default-scheduler", "0/1 nodes are available")
    assert not waiting.is_over()
    waiting.clock.advance(1)
    assert waiting.is_over()
