"""The rights of deploy/kubernetes/rbac.yaml suffice, and `check` names those that are missing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from perdure.controller.clouds.base.account_checks import Severity
from perdure.controller.clouds.base.notice_queue import Signal
from perdure.controller.clouds.base.protocol import LaunchRequest
from perdure.controller.clouds.kubernetes.cloud import KubernetesCloud
from perdure.controller.clouds.kubernetes.notices import ContextWatch
from perdure.recovery.reasons import Reason
from support.fakes.kube import FakeKube
from support.helpers.timing import wait_until

RBAC = Path(__file__).parents[3] / "deploy/kubernetes/rbac.yaml"
VERBS = ("get", "list", "watch", "create", "patch", "update", "delete")
RESOURCES = ("pods", "pods/eviction", "pods/log", "secrets", "events", "nodes", "namespaces", "networkpolicies")


def allow(kube: FakeKube, kinds: tuple[str, ...]) -> None:
    """Forbid everything that no role of these kinds grants. The fake does not tell a namespace from the cluster."""
    rules = [rule for one in yaml.safe_load_all(RBAC.read_text()) if one["kind"] in kinds for rule in one["rules"]]
    granted = {f"{verb} {resource}" for rule in rules for resource in rule["resources"] for verb in rule["verbs"]}
    kube.faults.forbid = {f"{verb} {resource}" for verb in VERBS for resource in RESOURCES} - granted


@pytest.mark.parametrize("kinds", [("Role", "ClusterRole"), ("Role",)], ids=["with-nodes", "without-nodes"])
def test_roles__suffice_for_everything(
    kube: FakeKube,
    new_cloud: Callable[..., KubernetesCloud],
    request_of: Callable[..., LaunchRequest],
    kinds: tuple[str, ...],
) -> None:
    kube.add_node("n1")
    kube.faults.stop_s = 0.1
    allow(kube, kinds)
    cloud = new_cloud(node_types=[{"vcpus": 4, "memory_gib": 16, "zones": ["zone-1"]}])
    assert cloud.offers()
    launched = cloud.launch(request_of(num_nodes=2))
    cloud.interrupt(kube.context, launched[0].id, notice_s=1)
    cloud.describe(kube.context, [one.id for one in launched])
    assert cloud.list_owned("ctl")
    cloud.terminate(kube.context, [one.id for one in launched])
    findings = cloud.check()
    assert {one.severity for one in findings} <= {Severity.OK, Severity.WARNING}
    missing = [one.text for one in findings if "is missing" in one.text]
    assert bool(missing) is ("ClusterRole" not in kinds)


def test_check__names_missing_rights_and_unlabelled_gpus(
    kube: FakeKube, new_cloud: Callable[..., KubernetesCloud]
) -> None:
    kube.add_node("n1", resources={"nvidia.com/gpu": 8}, labels={"cloud.google.com/gke-accelerator": "nvidia-l4"})
    kube.add_node("n2", resources={"nvidia.com/gpu": 8})
    kube.faults.forbid = {"create pods"}
    findings = new_cloud().check()
    texts = [one.text for one in findings]
    assert "fake: 2 nodes with 8 L4" in texts
    assert any("1 nodes have GPUs that no label names, such as n2" in text for text in texts)
    error = next(one for one in findings if one.severity is Severity.ERROR)
    assert error.text == "fake: create pods in the namespace is missing: the pods of attempts"
    assert "deploy/kubernetes/rbac.yaml" in str(error.fix)


def test_check__says_why_a_context_does_not_answer(kube: FakeKube, new_cloud: Callable[..., KubernetesCloud]) -> None:
    kube.api.tokens.clear()
    (finding,) = new_cloud().check()
    assert finding.severity is Severity.ERROR
    assert "Unauthorized" in finding.text


def test_role_without_nodes_and_events__still_notices_ends_of_pods_and_of_waits(
    kube: FakeKube, new_cloud: Callable[..., KubernetesCloud], request_of: Callable[..., LaunchRequest]
) -> None:
    """The controller may touch nothing but its pods and Secrets."""
    kube.add_node("n1", cpu=2, memory_gib=8)
    allow(kube, ("Role",))
    kube.faults.forbid |= {f"{verb} events" for verb in VERBS}
    types = [{"vcpus": 2, "memory_gib": 8, "zones": ["zone-1"]}]
    cloud = new_cloud(node_types=types, autoscaler="generic", provision_timeout=0.2)
    missing = [one.text for one in cloud.check() if "is missing" in one.text]
    assert any("list events in the namespace is missing" in text for text in missing), missing
    assert any("watch nodes in all namespaces is missing" in text for text in missing), missing
    (queue,) = cloud.notice_queues()
    assert isinstance(queue, ContextWatch)
    signals: list[tuple[Signal, str]] = []

    def consume() -> None:
        while not queue._stopped.is_set():
            messages = queue.receive()
            signals.extend((one.signal, one.instance_id) for message in messages for one in queue.parse(message))
            queue.delete(messages)

    threading.Thread(target=consume, daemon=True).start()
    try:
        (runs,) = cloud.launch(request_of("runs"))
        (waits,) = cloud.launch(request_of("waits", kind="2CPU--4GB"))
        wait_until(lambda: (Signal.ENDING, waits.id) in signals, "the end of the wait for a node", 10)
        (described,) = cloud.describe(kube.context, [waits.id])
        assert described.gone_reason is Reason.NO_CAPACITY
        wait_until(lambda: queue.pods.find(runs.id), "the pod in the watch", 10)
        kube.evict(runs.id, 30)
        wait_until(lambda: (Signal.NOTICE, runs.id) in signals, "the notice", 10)
        assert cloud.describe(kube.context, [runs.id])[0].gone_reason is Reason.PREEMPTED
    finally:
        queue.stop()
