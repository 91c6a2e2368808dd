"""Pods of tasks that mount buckets get FUSE where the nodes have it, with no rights outside a user namespace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from perdure.controller.clouds.base.protocol import LaunchRequest
from perdure.controller.clouds.kubernetes.api.errors import ApiError
from perdure.controller.clouds.kubernetes.cloud import KubernetesCloud
from perdure.recovery.market.unavailable import FaultKind
from support.fakes.kube import FakeKube
from support.fakes.kube.schemas import schema_errors

NewCloud = Callable[..., KubernetesCloud]
RequestOf = Callable[..., LaunchRequest]
DEVICE = "smarter-devices/fuse"
CACHED = ("MOUNT_CACHED",)


def started_with_rights(kube: FakeKube) -> list[str]:
    started = [one for one in kube.store._history if one[2] == "pods" and one[3]["status"]["phase"] == "Running"]
    return [
        one[3]["metadata"]["name"] for one in started if rights(one[3])[2] and one[3]["spec"].get("hostUsers") is None
    ]


def only_pod(kube: FakeKube) -> dict[str, Any]:
    (pod,) = kube.pods()
    assert pod["status"]["phase"] == "Running"
    return pod


def rights(pod: dict[str, Any]) -> tuple[str | None, bool | None, dict[str, Any]]:
    """(how many devices, whether it shares the users of its node, the container's security context)."""
    container = pod["spec"]["containers"][0]
    limits = container["resources"]["limits"]
    return limits.get(DEVICE), pod["spec"].get("hostUsers"), container.get("securityContext") or {}


def test_fuse__comes_from_the_nodes_device_plugin_in_a_user_namespace(
    kube: FakeKube, new_cloud: NewCloud, request_of: RequestOf
) -> None:
    kube.add_node("n1", resources={DEVICE: 20})
    new_cloud().launch(request_of(mount_modes=CACHED))
    pod = only_pod(kube)
    devices, host_users, context = rights(pod)
    assert (devices, host_users) == ("1", False)
    assert context == {"capabilities": {"add": ["SYS_ADMIN"]}, "appArmorProfile": {"type": "Unconfined"}}
    pod["metadata"].pop("managedFields", None)
    assert schema_errors({"apiVersion": "v1", "kind": "Pod", **pod}) == ""


@pytest.mark.parametrize(
    ("modes", "section"),
    [((), {}), (CACHED, {"fuse": False})],
    ids=["a task without mounts", "switched off"],
)
def test_fuse__is_not_asked_for_without_need(
    kube: FakeKube, new_cloud: NewCloud, request_of: RequestOf, modes: tuple[str, ...], section: dict[str, Any]
) -> None:
    kube.add_node("n1", resources={DEVICE: 20})
    new_cloud(**section).launch(request_of(mount_modes=modes))
    assert rights(only_pod(kube)) == (None, None, {})


def test_fuse__is_left_to_pod_config_that_grants_it(kube: FakeKube, new_cloud: NewCloud, request_of: RequestOf) -> None:
    kube.add_node("n1", resources={DEVICE: 20})
    config = {"spec": {"containers": [{"securityContext": {"privileged": True}}]}}
    new_cloud(pod_config=config).launch(request_of(mount_modes=CACHED))
    assert rights(only_pod(kube)) == (None, None, {"privileged": True})


@pytest.mark.parametrize(
    ("modes", "num_nodes", "expected"), [(CACHED, 1, None), (("MOUNT",), 1, "1"), (CACHED, 2, "1")]
)
def test_fuse__keeps_pods_off_nodes_without_it_only_if_they_need_it(
    kube: FakeKube,
    new_cloud: NewCloud,
    request_of: RequestOf,
    modes: tuple[str, ...],
    num_nodes: int,
    expected: str | None,
) -> None:
    kube.add_node("with", resources={DEVICE: 20})
    kube.add_node("without")
    new_cloud().launch(request_of(mount_modes=modes, num_nodes=num_nodes))
    assert {rights(pod)[0] for pod in kube.pods()} == {expected}
    if expected:
        assert {pod["spec"]["nodeName"] for pod in kube.pods()} == {"with"}


def test_cluster_without_user_namespaces__runs_no_pod_with_rights_on_its_node(
    kube: FakeKube, new_cloud: NewCloud, request_of: RequestOf
) -> None:
    """The API server drops the field `hostUsers` silently there, and SYS_ADMIN would be the node's own."""
    kube.faults.user_namespaces = False
    kube.add_node("n1", resources={DEVICE: 20})
    cloud = new_cloud()
    assert len(cloud.launch(request_of(mount_modes=CACHED, num_nodes=2))) == 2
    pods = kube.pods()
    assert [rights(pod) for pod in pods] == [(None, None, {})] * 2
    assert not started_with_rights(kube)
    cloud.offers()
    assert "device plugin" in str(cloud.mount_problem(kube.context, {}, mode="MOUNT", num_nodes=1))


def test_cluster_without_user_namespaces__runs_no_such_pod_of_a_call_whose_answer_was_lost(
    kube: FakeKube, new_cloud: NewCloud, request_of: RequestOf
) -> None:
    """Another launch has learned meanwhile what the cluster does, and the repeated call asks for no rights."""
    kube.faults.user_namespaces = False
    kube.add_node("n1", resources={DEVICE: 20})
    cloud = new_cloud()
    kube.faults.lost_answers["POST pods"] = 1
    with pytest.raises(ConnectionError):
        cloud.launch(request_of("t1", mount_modes=CACHED))
    assert rights(kube.pods()[0])[2], "the pod exists, and asked for rights"
    cloud.launch(request_of("t2", mount_modes=CACHED))
    (repeated,) = cloud.launch(request_of("t1", mount_modes=CACHED))
    assert rights(kube.pod(repeated.id)) == (None, None, {})
    assert kube.pod(repeated.id)["status"]["phase"] == "Running"
    assert not started_with_rights(kube)


def test_cluster_without_user_namespaces__opens_no_gate_of_a_launch_that_was_given_up(
    kube: FakeKube, new_cloud: NewCloud, request_of: RequestOf
) -> None:
    """The termination was cut short after the anchor had been marked: no pod is created for it any more."""
    kube.faults.user_namespaces = False
    kube.add_node("n1", resources={DEVICE: 20})
    cloud = new_cloud()
    kube.faults.lost_answers["POST pods"] = 1
    with pytest.raises(ConnectionError):
        cloud.launch(request_of(mount_modes=CACHED))
    (pod,) = kube.pods()
    kube.faults.lost_requests["DELETE pods"] = 1
    with pytest.raises(ConnectionError):
        cloud.terminate(kube.context, [pod["metadata"]["name"]])
    cloud.launch(request_of(mount_modes=CACHED))
    assert kube.pods()[0]["spec"]["schedulingGates"]
    assert not started_with_rights(kube)


def test_cluster_without_user_namespaces__waits_for_a_finalizer_in_a_later_call(
    kube: FakeKube, new_cloud: NewCloud, request_of: RequestOf
) -> None:
    kube.faults.user_namespaces = False
    kube.add_node("n1", resources={DEVICE: 20})
    cloud = new_cloud(kueue={"local_queue_name": "research"})
    for _ in range(2):
        with pytest.raises(ApiError) as conflict:
            cloud.launch(request_of(mount_modes=CACHED))
        assert cloud.classify(conflict.value).kind is FaultKind.AMBIGUOUS
    (pod,) = kube.pods()
    kube.release(pod["metadata"]["name"])
    (launched,) = cloud.launch(request_of(mount_modes=CACHED))
    assert rights(kube.pod(launched.id)) == (None, None, {})


def test_fuse__is_not_granted_to_a_pod_with_its_nodes_users(
    kube: FakeKube, new_cloud: NewCloud, request_of: RequestOf
) -> None:
    kube.add_node("n1", resources={DEVICE: 20})
    new_cloud(pod_config={"spec": {"hostUsers": True}}).launch(request_of(mount_modes=CACHED))
    assert rights(only_pod(kube)) == (None, True, {})


@pytest.mark.parametrize("standard", ["baseline", "restricted"])
def test_pod_security_standard__that_forbids_mounts_gets_pods_without(
    kube: FakeKube, new_cloud: NewCloud, request_of: RequestOf, standard: str
) -> None:
    setattr(kube.faults, standard, True)
    kube.add_node("n1", resources={DEVICE: 20})
    new_cloud().launch(request_of(mount_modes=CACHED))
    devices, host_users, context = rights(only_pod(kube))
    assert (devices, host_users) == (None, None)
    assert "SYS_ADMIN" not in str(context)


@pytest.mark.parametrize(
    ("mode", "num_nodes", "devices", "is_possible"),
    [
        ("MOUNT_CACHED", 1, {}, True),
        ("MOUNT_CACHED", 2, {}, False),
        ("MOUNT", 1, {}, False),
        ("MOUNT", 1, {DEVICE: 20}, True),
        ("MOUNT_CACHED", 2, {DEVICE: 20}, True),
        ("MOUNT", 1, {DEVICE: 0}, False),
    ],
)
def test_mounts__are_possible_where_the_nodes_have_fuse_and_cached_ones_of_a_single_node_everywhere(
    kube: FakeKube, new_cloud: NewCloud, mode: str, num_nodes: int, devices: dict[str, int], is_possible: bool
) -> None:
    kube.add_node("n1", resources=devices)
    cloud = new_cloud()
    cloud.offers()
    problem = cloud.mount_problem(None, {}, mode=mode, num_nodes=num_nodes)
    assert (problem is None) is is_possible, problem
