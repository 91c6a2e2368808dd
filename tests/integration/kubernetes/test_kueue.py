"""Attempts in a queue of Kueue: they wait for admission, are preempted as a group, and its finalizer is left alone."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from perdure.controller.clouds.base.account_checks import Severity
from perdure.controller.clouds.base.protocol import InstanceState, LaunchRequest
from perdure.controller.clouds.kubernetes.cloud import KubernetesCloud
from perdure.controller.clouds.kubernetes.notices import ContextWatch
from perdure.controller.clouds.kubernetes.pods import names
from perdure.recovery.reasons import Reason
from support.fakes.kube import FakeKube
from support.fakes.kube.kueue import NO_QUOTA
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


@pytest.mark.parametrize("version", ["v1beta2", "v1beta1"])
@pytest.mark.parametrize("num_nodes", [1, 2])
def test_wait__is_explained_in_kueues_words_until_it_is_over(
    kube: FakeKube, new_cloud: NewCloud, request_of: RequestOf, version: str, num_nodes: int
) -> None:
    kube.install_kueue(version)
    kube.admit_by_kueue(NO_QUOTA)
    kube.add_node("n1")
    cloud = new_cloud(**QUEUE)
    (queue,) = cloud.notice_queues()
    assert isinstance(queue, ContextWatch)
    threading.Thread(target=queue.receive, daemon=True).start()
    try:
        (first, *_) = cloud.launch(request_of(num_nodes=num_nodes))

        def words() -> str:
            return cloud.why_waiting("ctl", 7, 0) or ""

        wait_until(lambda: "insufficient unused quota for cpu" in words(), words, 30)
        assert "waits in the queue research of Kueue" in words()
        assert "position 1 in the queue" in words()
        assert cloud.why_waiting("another", 7, 0) is None
        kube.admit_by_kueue()
        wait_until(lambda: not words(), words, 10)
        assert cloud.describe(kube.context, [first.id])[0].state is InstanceState.RUNNING
    finally:
        queue.stop()


def test_preempted_group__says_for_whom(kube: FakeKube, new_cloud: NewCloud, request_of: RequestOf) -> None:
    kube.install_kueue()
    kube.add_node("n1")
    cloud = new_cloud(**QUEUE)
    launched = cloud.launch(request_of(num_nodes=2))
    kube.preempt_by_kueue(names.anchor_name(launched[0].owner), 1)
    for one in cloud.describe(kube.context, [one.id for one in launched]):
        assert (one.state, one.gone_reason) == (InstanceState.ENDING, Reason.PREEMPTED)
        assert "Preempted to accommodate a workload (UID: 9f542104, JobUID: a20d0a6a)" in one.gone_message


def test_check__tells_of_extensions_and_of_a_queue_without_kueue(kube: FakeKube, new_cloud: NewCloud) -> None:
    kube.add_node("n1")
    kube.api.groups["jobset.x-k8s.io"] = ["v1alpha2"]
    kube.api.groups["scheduling.k8s.io"] = ["v1", "v1alpha2"]
    texts = [one.text for one in new_cloud().check()]
    assert "fake: JobSet (v1alpha2), gang scheduling of Kubernetes (v1alpha2); Perdure needs none of them" in texts
    warning = next(one for one in new_cloud(**QUEUE).check() if "has no Kueue" in one.text)
    assert warning.severity is Severity.WARNING
    kube.install_kueue()
    assert not [one for one in new_cloud(**QUEUE).check() if "has no Kueue" in one.text]
