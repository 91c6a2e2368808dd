"""Pods as machines: how an attempt's pods are described, also after they are gone, and how they are ended."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from perdure.controller.clouds.base.protocol import Instance, InstanceState, Owner
from perdure.controller.clouds.kubernetes.api.errors import ApiError
from perdure.controller.clouds.kubernetes.api.watch import Object
from perdure.controller.clouds.kubernetes.cluster import Cluster
from perdure.controller.clouds.kubernetes.pods import anchors, names
from perdure.controller.clouds.kubernetes.pods.anchors import RememberedEnd
from perdure.controller.clouds.kubernetes.pods.launch import delete
from perdure.controller.clouds.kubernetes.pods.pod_spec import is_spot
from perdure.controller.clouds.kubernetes.pods.status import (
    PodEnd,
    PodStatus,
    epoch_s,
    scheduling,
    start_problem,
    status_of,
)
from perdure.controller.clouds.kubernetes.settings import DEFAULT_ADMISSION_TIMEOUT_S, DEFAULT_PROVISION_TIMEOUT_S
from perdure.recovery.reasons import Reason

# For how long a kubelet may fail to start a container before the task fails. One attempt times out after 2 minutes.
START_RETRIES_S = 300.0
# A pod that is terminated has drained already, or was given up: it needs no more time than its agent to end.
TERMINATE_GRACE_S = 10


def describe(cluster: Cluster, cloud: str, ids: Sequence[str]) -> list[Instance]:
    """Those of `ids` that exist or have existed. Raises what `ApiClient` does."""
    return [
        instance
        for anchor, pods in _by_anchor(ids).items()
        for instance in _describe_group(cluster, cloud, anchor, pods)
    ]


def list_owned(cluster: Cluster, cloud: str, controller: str) -> list[Instance]:
    """The machines of the controller that exist: a pod that failed before it ran is ENDING until its object is deleted.

    Removes anchors that nothing needs any more.
    """
    selector = f"{names.CONTROLLER}={names.controller_label(controller)},{names.KIND}={names.POD_KIND}"
    pods = cluster.pods(selector)
    instances = [instance for pod in pods if (instance := _to_existing(cluster, cloud, pod)) is not None]
    _remove_old_anchors(cluster, controller, pods)
    return [one for one in instances if one.owner.controller == controller and one.state is not InstanceState.GONE]


def terminate(cluster: Cluster, ids: Iterable[str]) -> None:
    """End these pods. Their anchors say first that the controller has asked for it. Raises what `ApiClient` does."""
    for anchor, pods in _by_anchor(ids).items():
        cluster.note_termination(pods)
        anchors.annotate(cluster, anchor, {anchors.TERMINATED: f"{cluster.now():.3f}"})
        for pod in pods:
            delete(cluster, "pods", pod, grace_s=TERMINATE_GRACE_S)


def _by_anchor(ids: Iterable[str]) -> dict[str, list[str]]:
    """The pods of each anchor, without names that are no pods of ours."""
    groups: dict[str, list[str]] = {}
    for id in ids:
        if (anchor := names.anchor_of(id)) is not None:
            groups.setdefault(anchor, []).append(id)
    return groups


def evict(cluster: Cluster, pod: Object, grace_s: int) -> None:
    """Evict the pod with that grace. Its anchor says first how it ends, since with a grace of 0 its object vanishes.

    Raises what `ApiClient` does. A pod whose eviction is refused, such as for a disruption budget, runs on.
    """
    name = pod["metadata"]["name"]
    anchor = names.anchor_of(name)
    assert anchor is not None, name
    launched_at = epoch_s(pod["metadata"].get("creationTimestamp")) or cluster.now()
    end = RememberedEnd(Reason.PREEMPTED, launched_at, None, "a simulated interruption")
    anchors.remember_end(cluster, anchor, names.rank_of(name), end)
    try:
        _post_eviction(cluster, name, grace_s)
    except ApiError as error:
        if error.status < 500:
            anchors.forget_end(cluster, anchor, names.rank_of(name))
        raise


def _post_eviction(cluster: Cluster, name: str, grace_s: int) -> None:
    """Clusters before 1.22 know the older version only, and reject the newer one for its name."""
    eviction = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": name, "namespace": cluster.namespace},
        "deleteOptions": {"gracePeriodSeconds": grace_s},
    }
    path = cluster.path("pods", name, sub="eviction")
    try:
        cluster.client.post(path, eviction)
    except ApiError as error:
        if error.status != 400 or "policy/v1" not in error.message:
            raise
        cluster.client.post(path, eviction | {"apiVersion": "policy/v1beta1"})


def to_instance(cluster: Cluster, cloud: str, pod: Object) -> Instance | None:
    """The pod as a machine; None if it is not one of an attempt."""
    owner = names.owner_of(pod)
    if owner is None:
        return None
    status, place = current_status(cluster, pod), anchors.place_of(pod)
    launched_at = epoch_s(pod["metadata"].get("creationTimestamp"))
    ended_at = None
    if status.state is InstanceState.GONE:
        ended_at = max(launched_at or 0.0, status.ended_at or cluster.now())
    return Instance(
        id=pod["metadata"]["name"],
        rank=names.rank_of(pod["metadata"]["name"]),
        owner=owner,
        state=status.state,
        cloud=cloud,
        region=cluster.context,
        zone=place["zone"],
        instance_type=place["type"],
        ip=(pod.get("status") or {}).get("podIP"),
        launched_at=launched_at,
        ended_at=ended_at,
        gone_reason=status.end.reason if status.end and status.state is not InstanceState.RUNNING else None,
        gone_message=status.end.message if status.end and status.state is not InstanceState.RUNNING else "",
    )


def _to_existing(cluster: Cluster, cloud: str, pod: Object) -> Instance | None:
    """As `to_instance`. A pod that cannot start has failed its task, but it holds what it requests until it is deleted,
    and it starts when the mistake is mended."""
    instance = to_instance(cluster, cloud, pod)
    cannot_start = (pod.get("status") or {}).get("phase") == "Pending" and "deletionTimestamp" not in pod["metadata"]
    if instance is not None and instance.state is InstanceState.GONE and cannot_start:
        return replace(instance, state=InstanceState.ENDING, ended_at=None)
    return instance


def current_status(cluster: Cluster, pod: Object) -> PodStatus:
    """The status with what time and the pod's node say about it."""
    status = status_of(pod)
    if status.state is InstanceState.PENDING and not (pod.get("spec") or {}).get("nodeName"):
        return _status_of_waiting(cluster, pod, status)
    if status.state is InstanceState.PENDING and (problem := start_problem(pod)) is not None:
        return _status_of_failed_start(cluster, pod, status, problem)
    cluster.end_wait(pod["metadata"]["name"])
    if status.state is InstanceState.ENDING and _is_abandoned(cluster, pod):
        return PodStatus(
            InstanceState.GONE, PodEnd(Reason.UNREACHABLE, "its node has not answered since it was deleted")
        )
    return status


def waiting_limit_s(pod: Object) -> float:
    """How long the pod may wait for a node, without an autoscaler's help."""
    is_gated = scheduling(pod)[0] == "SchedulingGated"
    annotation = names.ADMISSION_TIMEOUT if is_gated else names.PROVISION_TIMEOUT
    try:
        return float((pod["metadata"].get("annotations") or {})[annotation])
    except (KeyError, ValueError):
        return DEFAULT_ADMISSION_TIMEOUT_S if is_gated else DEFAULT_PROVISION_TIMEOUT_S


def _status_of_waiting(cluster: Cluster, pod: Object, status: PodStatus) -> PodStatus:
    """A pod without a node: NO_CAPACITY once it has waited for too long, and no autoscaler is at work."""
    reason, message = scheduling(pod)
    if reason not in ("Unschedulable", "SchedulingGated"):
        return status
    waited_s = cluster.now() - cluster.waiting_since(pod["metadata"]["name"], reason)
    limit_s = waiting_limit_s(pod)
    if waited_s < limit_s:
        return status
    sign = cluster.scale_ups.sign_for(pod) if reason == "Unschedulable" else None
    if sign is not None and sign.holds_at(cluster.now()):
        return status
    words = f"no node for {waited_s:.0f} s: {message}" if reason == "Unschedulable" else f"not admitted: {message}"
    if sign is not None:
        words += f"; the autoscaler: {sign.refusal}" if sign.refusal else "; the autoscaler has added none"
    return PodStatus(InstanceState.ENDING, PodEnd(Reason.NO_CAPACITY, words))


def _status_of_failed_start(cluster: Cluster, pod: Object, status: PodStatus, problem: PodEnd) -> PodStatus:
    """A pod whose container could not be started: its kubelet tries again, and often succeeds."""
    failing_s = cluster.now() - cluster.waiting_since(pod["metadata"]["name"], "start")
    if failing_s < START_RETRIES_S:
        return status
    return PodStatus(
        InstanceState.GONE, replace(problem, message=f"not started for {failing_s:.0f} s: {problem.message}")
    )


def _is_abandoned(cluster: Cluster, pod: Object) -> bool:
    """Whether the pod can no longer be ended by its kubelet: its node is gone, or has been silent for long."""
    deadline = epoch_s(pod["metadata"].get("deletionTimestamp"))
    node_name = (pod.get("spec") or {}).get("nodeName")
    if deadline is None or cluster.now() < deadline + 5.0 or not node_name or cluster.nodes_problem:
        return False
    node = cluster.find_node(node_name)
    if node is None:
        return cluster.nodes_problem is None and bool(cluster.nodes())
    ready = [one for one in node["status"]["conditions"] if one.get("type") == "Ready"]
    is_silent = bool(ready) and ready[0].get("status") == "Unknown"
    return is_silent and cluster.now() >= deadline + cluster.settings.silent_node_s


def _describe_group(cluster: Cluster, cloud: str, anchor: str, ids: Sequence[str]) -> list[Instance]:
    pods = {pod["metadata"]["name"]: pod for pod in cluster.pods(names.group_selector(ids[0]))}
    record = None
    if any(id not in pods or _may_have_ended(pods[id]) for id in ids):
        record = cluster.find("secrets", anchor)
    instances = []
    for id in ids:
        instance = to_instance(cluster, cloud, pods[id]) if id in pods else None
        if record is not None and (instance is None or instance.gone_reason is not None):
            instance = _with_memory(cluster, cloud, record, id, instance)
        if instance is not None:
            instances.append(instance)
    return instances


def _may_have_ended(pod: Object) -> bool:
    status = status_of(pod)
    return status.end is not None or status.state is InstanceState.GONE


def _with_memory(cluster: Cluster, cloud: str, record: Object, id: str, instance: Instance | None) -> Instance | None:
    """The instance as its anchor remembers it. What is new is written there."""
    rank = names.rank_of(id)
    owner = names.owner_of(record)
    if owner is None or rank >= anchors.num_nodes(record):
        return None
    known = anchors.end_of(record, rank)
    if instance is not None and instance.gone_reason is Reason.NO_CAPACITY:
        return instance
    if known is not None and (known.ended_at is not None or (instance and instance.state is not InstanceState.GONE)):
        return _remembered(cluster, cloud, record, owner, id, known, instance)
    end = _new_end(cluster, record, known, instance, cluster.noted_end(id))
    anchors.remember_end(cluster, record["metadata"]["name"], rank, end)
    return _remembered(cluster, cloud, record, owner, id, end, instance)


def _new_end(
    cluster: Cluster,
    record: Object,
    known: RememberedEnd | None,
    instance: Instance | None,
    noted: tuple[Reason, str] | None,
) -> RememberedEnd:
    """How the pod ends, as far as is known now. The first reason counts: what follows is its consequence."""
    now = cluster.now()
    created_at = epoch_s(record["metadata"].get("creationTimestamp")) or now
    by_us = anchors.terminated_at(record) is not None
    if instance is not None:
        reason, message = instance.gone_reason or Reason.MACHINE_CRASHED, instance.gone_message
        launched_at, ended_at = instance.launched_at or created_at, instance.ended_at
    else:
        # Its object is gone, and nobody saw how: the node was taken, unless the controller ended it.
        reason = Reason.PREEMPTED if is_spot(anchors.place_of(record)) else Reason.MACHINE_CRASHED
        message, launched_at, ended_at = "the pod no longer exists", created_at, now
    if known is not None:
        reason, message, launched_at = known.reason, known.message, known.launched_at
    elif by_us and reason is not Reason.UNREACHABLE:
        reason, message = Reason.MACHINE_STOPPED, "the controller ended the pod"
    elif noted is not None and (instance is None or reason is Reason.MACHINE_STOPPED):
        reason, message = noted
    return RememberedEnd(reason, launched_at, ended_at, message)


def _remembered(
    cluster: Cluster,
    cloud: str,
    record: Object,
    owner: Owner,
    id: str,
    end: RememberedEnd,
    instance: Instance | None,
) -> Instance:
    if instance is not None and instance.state is not InstanceState.GONE:
        return replace(instance, gone_reason=end.reason, gone_message=end.message)
    place = anchors.place_of(record)
    return Instance(
        id=id,
        rank=names.rank_of(id),
        owner=owner,
        state=InstanceState.GONE,
        cloud=cloud,
        region=cluster.context,
        zone=place["zone"],
        instance_type=place["type"],
        ip=None,
        launched_at=end.launched_at,
        ended_at=end.ended_at,
        gone_reason=end.reason,
        gone_message=end.message,
    )


def _remove_old_anchors(cluster: Cluster, controller: str, pods: Sequence[Object]) -> None:
    """Remove anchors without pods after an hour: until then a repeated launch must find that its pods have ended."""
    in_use = {(pod["metadata"].get("labels") or {}).get(names.TOKEN) for pod in pods}
    for anchor in cluster.anchors(controller):
        metadata = anchor["metadata"]
        age_s = cluster.now() - (epoch_s(metadata.get("creationTimestamp")) or cluster.now())
        asked_at = anchors.terminated_at(anchor)
        idle_s = age_s if asked_at is None else cluster.now() - asked_at
        if metadata["labels"].get(names.TOKEN) not in in_use and min(age_s, idle_s) >= anchors.KEEP_S:
            delete(cluster, "secrets", metadata["name"], uid=metadata["uid"])
