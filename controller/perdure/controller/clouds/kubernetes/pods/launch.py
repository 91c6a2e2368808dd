"""Launches the pods of an attempt so that a repeated call, after a kill at any instant, finds what the first one did.

1. The anchor is created: from now on the launch exists. 2. Every pod is created, with a gate that keeps it from being
scheduled. 3. The anchor becomes complete: from now on no pod is ever created for this token. 4. The gates are removed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
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
from perdure.controller.clouds.kubernetes.pods import anchors, fuse, names, room
from perdure.controller.clouds.kubernetes.pods.pod_spec import PodTemplate, build_pod
from perdure.controller.clouds.kubernetes.settings import task_options


def launch(cluster: Cluster, request: LaunchRequest) -> list[Object]:
    """The pods of the request, created if this is the first call with its token; fewer if some have ended already.

    Raises what `ApiClient` does, CloudRejected and SectionError. A launch that was rejected leaves nothing.
    """
    anchor = cluster.find("secrets", names.anchor_name(request.owner))
    if anchor is not None:
        return _complete(cluster, request, anchor)
    template = _template(cluster, request)
    with room.reserved(cluster, template):
        _ = build_pod(template, 0, "")  # an invalid pod_config creates nothing
        return _complete(cluster, request, _create_anchor(cluster, request))


def _complete(cluster: Cluster, request: LaunchRequest, anchor: Object) -> list[Object]:
    """Do what is left of the launch."""
    created: list[Object] | None = None
    if not anchors.is_complete(anchor) and anchors.terminated_at(anchor) is None:
        try:
            created = _create_pods(cluster, request, anchor)
        except (ApiError, CloudRejected) as error:
            if isinstance(error, CloudRejected) or _is_final(error):
                _undo(cluster, request)
            raise
        anchors.annotate(cluster, anchor["metadata"]["name"], {anchors.COMPLETE: "yes"})
    # A list by label costs the API server a look at every pod of the namespace.
    return [_open_gate(cluster, pod) for pod in (_list_pods(cluster, request) if created is None else created)]


def _is_final(error: ApiError) -> bool:
    """Whether the server has rejected the request for what it is: the same one would be rejected again."""
    return 400 <= error.status < 500 and error.status not in (401, 409, 429)


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
    return PodTemplate(
        request,
        size,
        options,
        cluster.settings,
        nodes,
        cluster.is_restricted,
        may_use_fuse=cluster.may_use_fuse,
        may_use_host=cluster.may_use_host,
    )


def _candidates(cluster: Cluster, request: LaunchRequest, size: PodSize) -> Sequence[NodeView]:
    """The nodes that the offer means: those that exist, and those that an autoscaler would add."""
    known, offer = markets.marks(cluster.settings.spot_label), request.offer
    existing = [one for one in cluster.nodes(max_age_s=0.0) if is_usable(one, known)]
    return [
        node
        for node in [*existing, *(one for one in cluster.possible_nodes() if is_usable(one, known))]
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


def _create_pods(cluster: Cluster, request: LaunchRequest, anchor: Object) -> list[Object]:
    """The pods, also those that another call created; without those that have ended meanwhile."""
    pods: list[Object] = []
    template = _template(cluster, request)
    for rank in range(request.num_nodes):
        while True:
            pod = build_pod(template, rank, anchor["metadata"]["uid"])
            try:
                pods += _create_pod(cluster, pod, request)
                break
            except _HasRights:
                cluster.may_use_fuse = False
            except ApiError as error:
                if not _learn(cluster, template, error):
                    raise
            template = _template(cluster, request)
    return pods


def _learn(cluster: Cluster, template: PodTemplate, error: ApiError) -> bool:
    """Note what pods of the namespace may not have, by a rejection; False if it says nothing new."""
    if not cluster.is_restricted and faults.violates_restricted(error):
        cluster.is_restricted = True
        return True
    if not faults.violates_pod_security(error):
        return False
    if template.fuse_device is not None:
        cluster.may_use_fuse = False
        return True
    if template.fabric.needs_host:
        cluster.may_use_host = False
        return True
    return False


class _HasRights(Exception):
    """A pod would have had rights on its node. It has been removed."""


def _create_pod(cluster: Cluster, pod: dict[str, Any], request: LaunchRequest) -> list[Object]:
    """Create the pod, unless it exists. Empty if it existed and is gone. Raises _HasRights."""
    try:
        created = cluster.client.post(cluster.path("pods"), pod)
        cluster.room_takers.add(capacity.reduce_pod(created))
    except ApiError as error:
        if error.status != 409:
            raise
        existing = cluster.find("pods", pod["metadata"]["name"])
        if existing is not None and names.owner_of(existing) != request.owner:
            raise
        if existing is None:
            return []
        if not fuse.is_confined(existing) and "deletionTimestamp" in existing["metadata"]:
            raise  # a finalizer, such as Kueue's, keeps the one that was removed: a later call creates the next
        created = existing
    if not fuse.is_confined(created):
        delete(cluster, "pods", pod["metadata"]["name"], grace_s=0, uid=created["metadata"]["uid"])
        raise _HasRights
    return [created]


def _list_pods(cluster: Cluster, request: LaunchRequest) -> list[Object]:
    pods = cluster.pods(f"{names.TOKEN}={names.digest_of(request.owner.token)}")
    return [pod for pod in pods if names.owner_of(pod) == request.owner]


def _open_gate(cluster: Cluster, pod: Object) -> Object:
    """Remove our gate, also if somebody else changes the pod meanwhile, such as Kueue."""
    try:
        return _remove_own_gate(cluster, pod)
    except ApiError as error:
        if error.status != 409:
            raise
        present = cluster.find("pods", pod["metadata"]["name"])
        return pod if present is None else _remove_own_gate(cluster, present)


def _remove_own_gate(cluster: Cluster, pod: Object) -> Object:
    """The gates of others stay."""
    gates = pod["spec"].get("schedulingGates") or []
    others = [gate for gate in gates if gate["name"] != names.GATE]
    if len(others) == len(gates) or "deletionTimestamp" in pod["metadata"] or not fuse.is_confined(pod):
        return pod  # one with rights on its node is left from a launch that has been given up
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
