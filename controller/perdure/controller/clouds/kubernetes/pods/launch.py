"""Launches the pods of an attempt so that a repeated call, after a kill at any instant, finds what the first one did.

1. The anchor is created: from now on the launch exists. 2. Every pod is created, with a gate that keeps it from being
scheduled. 3. The anchor becomes complete: from now on no pod is ever created for this token. 4. The gates are removed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from typing import Any

from perdure.controller.clouds.base.faults import CloudRejected
from perdure.controller.clouds.base.protocol import LaunchRequest
from perdure.controller.clouds.kubernetes import faults
from perdure.controller.clouds.kubernetes.api.errors import ApiError
from perdure.controller.clouds.kubernetes.api.watch import Object
from perdure.controller.clouds.kubernetes.cluster import Cluster
from perdure.controller.clouds.kubernetes.nodes import capacity, markets, offers
from perdure.controller.clouds.kubernetes.nodes.node_view import NO_ZONE, NodeView, is_usable
from perdure.controller.clouds.kubernetes.nodes.slices import PodSize
from perdure.controller.clouds.kubernetes.pods import anchors, names
from perdure.controller.clouds.kubernetes.pods.pod_spec import PodTemplate, build_pod
from perdure.controller.clouds.kubernetes.settings import PodOptions, task_options

# Launches within this time share a list of the cluster's pods. It takes megabytes.
PODS_AGE_S = 5.0


def launch(cluster: Cluster, request: LaunchRequest) -> list[Object]:
    """The pods of the request, created if this is the first call with its token; fewer if some have ended already.

    Raises what `ApiClient` does, CloudRejected and SectionError. A launch that was rejected leaves nothing.
    """
    anchor = cluster.find("secrets", names.anchor_name(request.owner))
    if anchor is None:
        template = _template(cluster, request)
        require_room(cluster, template)
        _ = build_pod(template, 0, "")  # an invalid pod_config creates nothing
        anchor = _create_anchor(cluster, request)
    if not anchors.is_complete(anchor) and anchors.terminated_at(anchor) is None:
        try:
            _create_pods(cluster, request, anchor)
        except (ApiError, CloudRejected) as error:
            if isinstance(error, CloudRejected) or _is_final(error):
                _undo(cluster, request)
            raise
        anchors.annotate(cluster, anchor["metadata"]["name"], {anchors.COMPLETE: "yes"})
    return _open_gates(cluster, request)


def require_room(cluster: Cluster, template: PodTemplate) -> None:
    """Raises CloudRejected if all nodes are full and nothing would add one."""
    offer, count = template.request.offer, template.request.num_nodes
    is_elastic = cluster.settings.autoscaler is not None or bool(cluster.settings.node_types)
    if is_elastic or template.options.queue or _may_preempt(template.options):
        return
    own = template.request.owner
    earlier = {
        names.JOB: str(own.job_id),
        names.TASK: str(own.task),
        names.CONTROLLER: names.controller_label(own.controller),
    }

    def fitting_beside(pods: Iterable[Object]) -> int:
        others = [pod for pod in pods if not _is_earlier(pod, earlier, own.generation)]
        return capacity.count_that_fit(template.nodes, others, template.requests, count)

    if fitting_beside(cluster.room_takers.get(PODS_AGE_S)) >= count:
        return
    if (fitting := fitting_beside(cluster.room_takers.get())) < count:  # some may have ended meanwhile
        room = f"room for {fitting} of {count} pods of {template.size.name} ({offer.market})"
        raise CloudRejected(faults.NO_ROOM, f"{offer.zone} of {cluster.context} has {room}")


def _is_final(error: ApiError) -> bool:
    """Whether the server has rejected the request for what it is: the same one would be rejected again."""
    return 400 <= error.status < 500 and error.status not in (401, 409, 429)


def _may_preempt(options: PodOptions) -> bool:
    """Pods with a priority class may take the place of others: only the scheduler knows."""
    spec = options.pod_config.get("spec") or {}
    return bool(spec.get("priorityClassName")) and spec.get("preemptionPolicy") != "Never"


def _is_earlier(pod: Object, of_task: dict[str, str], generation: int) -> bool:
    labels = pod["metadata"].get("labels") or {}
    if any(labels.get(name) != value for name, value in of_task.items()):
        return False
    text = labels.get(names.GENERATION, "")
    return text.isdecimal() and int(text) < generation


def _template(cluster: Cluster, request: LaunchRequest) -> PodTemplate:
    """Raises CloudRejected if no node is as the offer says, and none would be added: the pods' affinity comes from the
    nodes, and without it they would run on any node, such as one with another accelerator."""
    size = PodSize.parse(request.offer.instance_type)
    if size is None:
        message = f"{request.offer.instance_type!r} is not the size of a pod, such as 4CPU--16GB--H100:1"
        raise CloudRejected(faults.UNSUPPORTED, message)
    options = task_options(cluster.settings.options, request.settings)
    nodes = _candidates(cluster, request, size)
    if not nodes:
        message = f"no node in {request.offer.zone} of {cluster.context} has {size.name} ({request.offer.market})"
        raise CloudRejected(faults.NO_NODES, message)
    return PodTemplate(request, size, options, cluster.settings, nodes, cluster.is_restricted)


def _candidates(cluster: Cluster, request: LaunchRequest, size: PodSize) -> Sequence[NodeView]:
    """The nodes that the offer means: those that exist, and those that an autoscaler would add."""
    known, offer = markets.marks(cluster.settings.spot_label), request.offer
    existing = [one for one in cluster.nodes(max_age_s=0.0) if is_usable(one, known)]
    return [
        node
        for node in [*existing, *offers.possible_nodes(cluster.settings)]
        if offers.is_allowed(node, cluster.settings)
        and offers.has_slice(node, size)
        and node.market is offer.market
        and offer.zone in (NO_ZONE, node.zone)
    ]


def _create_anchor(cluster: Cluster, request: LaunchRequest) -> Object:
    try:
        return cluster.client.post(
            cluster.path("secrets"), anchors.build_anchor(request, cluster.settings.controller_url)
        )
    except ApiError as error:
        if error.status != 409:
            raise
        anchor = cluster.find("secrets", names.anchor_name(request.owner))  # another call was first
        if anchor is None or names.owner_of(anchor) != request.owner:
            raise
        return anchor


def _create_pods(cluster: Cluster, request: LaunchRequest, anchor: Object) -> None:
    template = _template(cluster, request)
    for rank in range(request.num_nodes):
        try:
            _create_pod(cluster, build_pod(template, rank, anchor["metadata"]["uid"]), request)
        except ApiError as error:
            if cluster.is_restricted or not faults.violates_restricted(error):
                raise
            cluster.is_restricted = True
            template = _template(cluster, request)
            _create_pod(cluster, build_pod(template, rank, anchor["metadata"]["uid"]), request)


def _create_pod(cluster: Cluster, pod: dict[str, Any], request: LaunchRequest) -> None:
    try:
        created = cluster.client.post(cluster.path("pods"), pod)
        cluster.room_takers.add(capacity.reduce_pod(created))
    except ApiError as error:
        if error.status != 409:
            raise
        existing = cluster.find("pods", pod["metadata"]["name"])
        if existing is not None and names.owner_of(existing) != request.owner:
            raise


def _open_gates(cluster: Cluster, request: LaunchRequest) -> list[Object]:
    pods = cluster.pods(f"{names.TOKEN}={names.digest_of(request.owner.token)}")
    own = [pod for pod in pods if names.owner_of(pod) == request.owner]
    return [_open_gate(cluster, pod) for pod in own]


def _open_gate(cluster: Cluster, pod: Object) -> Object:
    """Remove our gate. Those of others, such as Kueue's, stay."""
    gates = pod["spec"].get("schedulingGates") or []
    others = [gate for gate in gates if gate["name"] != names.GATE]
    if len(others) == len(gates) or "deletionTimestamp" in pod["metadata"]:
        return pod
    version = pod["metadata"]["resourceVersion"]
    patch = {"metadata": {"resourceVersion": version}, "spec": {"schedulingGates": others}}
    return cluster.client.patch(cluster.path("pods", pod["metadata"]["name"]), patch)


def _undo(cluster: Cluster, request: LaunchRequest) -> None:
    """Remove all of a rejected launch: the anchor last, so that a failure here is repaired by the next call."""
    with contextlib.suppress(ApiError, OSError):
        for pod in cluster.pods(f"{names.TOKEN}={names.digest_of(request.owner.token)}"):
            delete(cluster, "pods", pod["metadata"]["name"], grace_s=0)  # gated: it never ran
        delete(cluster, "secrets", names.anchor_name(request.owner))


def delete(cluster: Cluster, resource: str, name: str, *, grace_s: int | None = None, uid: str | None = None) -> None:
    """Delete an object. One that does not exist, or that has been replaced, is a success."""
    options: dict[str, Any] = {} if grace_s is None else {"gracePeriodSeconds": grace_s}
    if uid is not None:
        options["preconditions"] = {"uid": uid}
    try:
        cluster.client.delete(cluster.path(resource, name), options)
    except ApiError as error:
        if error.status not in (404, 409):
            raise
