"""Attempts in a queue of Kueue: they wait for admission, are preempted as a group, and its finalizer is left alone."""

from __future__ import annotations

from collections.abc import Callable

from perdure.controller.clouds.base.protocol import InstanceState, LaunchRequest
from perdure.controller.clouds.kubernetes.cloud import KubernetesCloud
from perdure.controller.clouds.kubernetes.pods import names
from perdure.recovery.reasons import Reason
from support.fakes.kube import FakeKube
from support.helpers.timing import wait_until

NewCloud = Callable[..., KubernetesCloud]
RequestOf = Callable[..., LaunchRequest]
QUEUE = {"kueue": {"local_queue_name": "research", "admission_timeout": -1}}


def test_attempt__waits_for_admission_as_one_group(kube: FakeKube, new_cloud: NewCloud, request_of: RequestOf) -> None:
    kube.add_node("n1")
    cloud = new_cloud(**QUEUE)
    launched = cloud.launch(request_of(num_nodes=2))
    assert [one.state for one in launched] == [InstanceState.PENDING] * 2
    for pod in kube.pods():
        labels, annotations = pod["metadata"]["labels"], pod["metadata"]["annotations"]
        assert labels["kueue.x-k8s.io/queue-name"] == "research"
        assert labels["kueue.x-k8s.io/pod-group-name"] == names.anchor_name(launched[0].owner)
        assert annotations["kueue.x-k8s.io/pod-group-total-count"] == "2"
        assert [gate["name"] for gate in pod["spec"]["schedulingGates"]] == ["kueue.x-k8s.io/admission"]
    for one in launched:
        kube.admit(one.id)
    described = cloud.describe(kube.context, [one.id for one in launched])
    assert [one.state for one in described] == [InstanceState.RUNNING] * 2


def test_preempted_attempt__is_gone_while_kueues_finalizer_stands(
    kube: FakeKube, new_cloud: NewCloud, request_of: RequestOf
) -> None:
    kube.add_node("n1")
    cloud = new_cloud(**QUEUE)
    (first,) = cloud.launch(request_of())
    kube.admit(first.id)
    kube.disrupt(first.id, "Preempted", 1, kind="TerminationTarget")

    def is_gone() -> bool:
        (one,) = cloud.describe(kube.context, [first.id])
        return (
            one.state is InstanceState.GONE and one.gone_reason is Reason.PREEMPTED and "Preempted" in one.gone_message
        )

    wait_until(is_gone, "the end of the container", 10)
    assert kube.pod(first.id) is not None, "the finalizer keeps the object"
    (second,) = cloud.launch(request_of("t2"))
    assert second.id != first.id
    cloud.terminate(kube.context, [first.id])
    assert kube.api.foreign_finalizers_changed == 0
    kube.release(first.id)
    assert [one.id for one in cloud.list_owned("ctl")] == [second.id]


def test_admission__that_takes_too_long_frees_the_offer(
    kube: FakeKube, new_cloud: NewCloud, request_of: RequestOf
) -> None:
    kube.add_node("n1")
    cloud = new_cloud(kueue={"local_queue_name": "research", "admission_timeout": 0.2})
    (waiting,) = cloud.launch(request_of())

    def is_given_up() -> bool:
        (one,) = cloud.describe(kube.context, [waiting.id])
        return one.gone_reason is Reason.NO_CAPACITY and "not admitted" in one.gone_message

    wait_until(is_given_up, "the end of the wait", 10)
