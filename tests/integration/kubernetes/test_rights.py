"""The rights of deploy/kubernetes/rbac.yaml suffice, and `check` names those that are missing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from perdure.controller.clouds.base.account_checks import Severity
from perdure.controller.clouds.base.protocol import LaunchRequest
from perdure.controller.clouds.kubernetes.cloud import KubernetesCloud
from support.fakes.kube import FakeKube

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
