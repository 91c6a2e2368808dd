"""Checks the contexts: whether each answers, what rights are missing there, and what its nodes offer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from perdure.controller.clouds.base.account_checks import (
    Check,
    Finding,
    Permission,
    Severity,
    permission_findings,
    run_checks,
)
from perdure.controller.clouds.kubernetes import faults
from perdure.controller.clouds.kubernetes.cluster import Cluster
from perdure.controller.clouds.kubernetes.rights import RIGHTS

RIGHTS_FIX = "grant what deploy/kubernetes/rbac.yaml lists, in this context's namespace"
CONTEXT_FIX = "see that `kubectl --context … get pods` succeeds where the controller runs, or leave the context out"
NODES_FIX = "label the nodes with their GPU, for example by NVIDIA's GPU feature discovery"
# API groups → what brings them.
EXTENSIONS = {
    "kueue.x-k8s.io": "Kueue",
    "jobset.x-k8s.io": "JobSet",
    "scheduling.volcano.sh": "Volcano",
    "scheduling.x-k8s.io": "PodGroups of the coscheduling plugin",
}
_REVIEW = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


def findings(clusters: Sequence[Cluster]) -> list[Finding]:
    """See `Checkable.check`. A context that does not answer does not affect the others."""
    results = []
    for cluster in clusters:
        for one in _findings_of(cluster):
            results.append(Finding(one.subject, one.severity, f"{cluster.context}: {one.text}", one.fix))
    return results


def _findings_of(cluster: Cluster) -> list[Finding]:
    return run_checks(
        Check("credentials", lambda: _identity(cluster), CONTEXT_FIX),
        (
            Check("permissions", lambda: _permissions(cluster), RIGHTS_FIX),
            Check("nodes", lambda: _nodes(cluster), RIGHTS_FIX),
            Check("extensions", lambda: _extensions(cluster), CONTEXT_FIX),
        ),
        faults.classify,
    )


def _identity(cluster: Cluster) -> Iterator[Finding]:
    """A call that everybody may make, but not without valid credentials."""
    version = cluster.client.get("/version").get("gitVersion", "unknown version")
    _is_allowed(cluster, "", "pods", "list", cluster.namespace)
    yield Finding("credentials", Severity.OK, f"Kubernetes {version}, namespace {cluster.namespace}")


def _permissions(cluster: Cluster) -> Iterator[Finding]:
    permissions, missing = [], []
    for right in RIGHTS:
        if right.is_for_kueue and cluster.settings.options.queue is None:
            continue
        scope = "in all namespaces" if right.is_cluster_wide else "in the namespace"
        for verb in right.verbs:
            permission = Permission(f"{verb} {right.resource} {scope}", right.purpose, right.is_required)
            permissions.append(permission)
            namespace = None if right.is_cluster_wide else cluster.namespace
            if not _is_allowed(cluster, right.group, right.resource, verb, namespace):
                missing.append(permission.name)
    yield from permission_findings(permissions, missing, RIGHTS_FIX)


def _nodes(cluster: Cluster) -> Iterator[Finding]:
    nodes = cluster.nodes(max_age_s=0.0)
    if cluster.nodes_problem:
        return  # `permissions` reports it
    gpus: dict[str, int] = {}
    for node in nodes:
        for one in node.accelerators:
            gpus[one.name] = gpus.get(one.name, 0) + one.count
    listed = ", ".join(f"{count} {name}" for name, count in sorted(gpus.items()))
    yield Finding("nodes", Severity.OK, f"{len(nodes)} nodes" + (f" with {listed}" if listed else ""))
    unlabelled = [node.name for node in nodes if node.is_unlabelled]
    if unlabelled:
        text = f"{len(unlabelled)} nodes have GPUs that no label names, such as {unlabelled[0]}: they are not offered"
        yield Finding("nodes", Severity.WARNING, text, NODES_FIX)


def _extensions(cluster: Cluster) -> Iterator[Finding]:
    """What is installed for queues and gangs. Only a queue that the configuration names is ever needed."""
    groups = {
        str(group.get("name")): [str(one.get("version")) for one in group.get("versions") or ()]
        for group in cluster.client.get("/apis").get("groups") or ()
    }
    present = [f"{words} ({', '.join(groups[name])})" for name, words in EXTENSIONS.items() if name in groups]
    if gangs := [version for version in groups.get("scheduling.k8s.io", ()) if version != "v1"]:
        present.append(f"gang scheduling of Kubernetes ({', '.join(gangs)})")
    yield Finding("extensions", Severity.OK, f"{', '.join(present) or 'none'}; Perdure needs none of them")
    queue = cluster.settings.options.queue
    if queue is not None and "kueue.x-k8s.io" not in groups:
        text = f"pods are meant for the queue {queue}, but the cluster has no Kueue: they would not wait for their turn"
        yield Finding(
            "extensions", Severity.WARNING, text, "install Kueue, or remove kubernetes.kueue and kubernetes.quota"
        )


def _is_allowed(cluster: Cluster, group: str, resource: str, verb: str, namespace: str | None) -> bool:
    name, _, subresource = resource.partition("/")
    attributes = {"group": group, "resource": name, "verb": verb}
    attributes |= {"subresource": subresource} if subresource else {}
    attributes |= {"namespace": namespace} if namespace else {}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
    return bool((cluster.client.post(_REVIEW, review).get("status") or {}).get("allowed"))
