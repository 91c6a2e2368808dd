"""Launches on a real API server and scheduler: the tests of the fake, and what only real admission can show."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from conformance.kubernetes.conftest import cloud_maker
from integration.kubernetes.test_launch import (
    test_best_network__gets_adapters_in_proportion_to_gpus,
    test_container__that_does_not_start_fails_the_task_after_minutes_and_stays_listed,
    test_gang__that_does_not_fit_holds_no_node,
    test_gpu_task__lands_on_a_whole_gpu_only,
    test_grace__is_what_the_vendor_leaves,
    test_launch__killed_at_any_request_makes_exactly_one_set_of_pods,
    test_launches__share_a_list_of_the_pods_and_still_see_each_other,
    test_spot_pods__land_on_spot_nodes_of_every_vendor_and_others_never_do,
    test_waiting_pod__is_given_up_unless_an_autoscaler_helps,
)
from perdure.controller.clouds.base.protocol import InstanceState, LaunchRequest, Owner
from perdure.controller.clouds.kubernetes.cloud import KubernetesCloud
from perdure.controller.clouds.kubernetes.pods import names
from perdure.recovery.market.unavailable import FaultKind
from perdure.recovery.market.view import Market
from perdure.recovery.reasons import Reason
from support.helpers.launch_requests import launch_request
from support.helpers.timing import wait_until
from support.real_kube import RealKube

pytestmark = pytest.mark.kubernetes
NewCloud = Callable[..., KubernetesCloud]
RequestOf = Callable[..., LaunchRequest]

__all__ = [
    "test_best_network__gets_adapters_in_proportion_to_gpus",
    "test_container__that_does_not_start_fails_the_task_after_minutes_and_stays_listed",
    "test_gang__that_does_not_fit_holds_no_node",
    "test_gpu_task__lands_on_a_whole_gpu_only",
    "test_grace__is_what_the_vendor_leaves",
    "test_launch__killed_at_any_request_makes_exactly_one_set_of_pods",
    "test_launches__share_a_list_of_the_pods_and_still_see_each_other",
    "test_spot_pods__land_on_spot_nodes_of_every_vendor_and_others_never_do",
    "test_waiting_pod__is_given_up_unless_an_autoscaler_helps",
]


def fixed(kube: RealKube) -> LaunchRequest:
    return launch_request("kubernetes", kube.context, "zone-1", "1CPU--2GB", market=Market.ON_DEMAND)


def test_restricted_namespace__gets_pods_without_root(
    new_kube: Callable[..., RealKube],
) -> None:
    kube = new_kube(restricted=True)
    kube.add_node("n1")
    (launched,) = cloud_maker(kube)().launch(fixed(kube))
    pod = kube.pod(launched.id)
    assert pod is not None
    assert pod["metadata"]["annotations"]["kubernetes.io/psp"] == "restricted"
    assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
    assert pod["status"]["phase"] == "Running"


def test_quota__is_named_and_leaves_nothing(kube: RealKube, new_cloud: NewCloud, request_of: RequestOf) -> None:
    kube.add_node("n1")
    kube.limit_namespace(pods=1)
    cloud = new_cloud()
    with pytest.raises(Exception, match="exceeded quota") as rejected:
        cloud.launch(request_of(num_nodes=2))
    fault = cloud.classify(rejected.value)
    assert (fault.kind, fault.reason) == (FaultKind.AVOID_REGION, Reason.QUOTA)
    assert not kube.pods()
    assert not kube.secrets()


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"containers": [{"resources": {"limits": {"memory": "1Gi"}}}]}, "must be less than or equal to memory limit"),
        ({"priorityClassName": "no-such-class"}, "no PriorityClass with name no-such-class"),
        ({"containers": [{"resources": {"limits": {"memory": "lots"}}}]}, "quantities must match"),
    ],
    ids=["limit below request", "missing class", "no quantity"],
)
def test_pod_config__that_the_server_rejects_says_why_and_leaves_nothing(
    kube: RealKube, new_cloud: NewCloud, request_of: RequestOf, spec: dict[str, Any], words: str
) -> None:
    kube.add_node("n1")
    cloud = new_cloud(pod_config={"spec": spec})
    with pytest.raises(Exception, match=words) as rejected:
        cloud.launch(request_of())
    assert cloud.classify(rejected.value).kind in (FaultKind.GIVE_UP, FaultKind.AVOID_REGION)
    assert not kube.pods()
    assert not kube.secrets()


def test_namespace__that_does_not_exist_is_named(kube: RealKube, new_cloud: NewCloud, request_of: RequestOf) -> None:
    kube.add_node("n1")
    cloud = new_cloud(namespace="no-such-namespace")
    with pytest.raises(Exception, match="no-such-namespace") as rejected:
        cloud.launch(request_of())
    assert cloud.classify(rejected.value).kind is FaultKind.AVOID_REGION


def test_anchor__that_is_removed_takes_its_pods_along(
    kube: RealKube, new_cloud: NewCloud, request_of: RequestOf
) -> None:
    """Somebody who removes the controller removes its pods so: by the cluster's own garbage collector."""
    kube.add_node("n1")
    kube.faults.stop_s = 0.0
    new_cloud().launch(request_of(num_nodes=2))
    new_cloud().launch(request_of("other"))
    anchor = names.anchor_name(request_of().owner)
    kube.client.delete(f"/api/v1/namespaces/{kube.namespace}/secrets/{anchor}")
    wait_until(lambda: len(kube.pods()) == 1, "the garbage collector", 60)
    assert [names.owner_of(pod) for pod in kube.pods()] == [request_of("other").owner]


def test_two_controllers__sweep_only_their_own(kube: RealKube, new_cloud: NewCloud, request_of: RequestOf) -> None:
    kube.add_node("n1")
    owners = [Owner(name, 7, 0, 1, f"token-of-{name}") for name in ("ctl-1", "ctl/2 with spaces")]
    launched = [new_cloud().launch(request_of(one.token, owner=one))[0] for one in owners]
    for owner, machine in zip(owners, launched, strict=True):
        assert [one.id for one in new_cloud().list_owned(owner.controller)] == [machine.id]


def test_pod_with_a_foreign_finalizer__is_gone_and_is_not_touched(
    kube: RealKube, new_cloud: NewCloud, request_of: RequestOf
) -> None:
    kube.add_node("n1")
    cloud = new_cloud()
    (machine,) = cloud.launch(request_of())
    kube.hold(machine.id, "example.com/audit")
    kube.faults.stop_s = 0.0
    cloud.terminate(kube.context, [machine.id])

    def is_gone() -> bool:
        return cloud.describe(kube.context, [machine.id])[0].state is InstanceState.GONE

    wait_until(is_gone, "the end of the container", 30)
    held = kube.pod(machine.id)
    assert held is not None, "the finalizer keeps the object"
    assert held["metadata"]["finalizers"] == ["example.com/audit"]
    assert not cloud.list_owned("ctl")
    assert cloud.launch(request_of("t2"))
