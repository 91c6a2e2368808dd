"""Whether a launch has room in its cluster, and which launches hold room that nobody else can see yet.

Launches run at the same time. Without reservations, two gangs could both see room for one, and each would hold nodes
that the other needs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

from perdure.controller.clouds.base.faults import CloudRejected
from perdure.controller.clouds.kubernetes import faults
from perdure.controller.clouds.kubernetes.api.watch import Object
from perdure.controller.clouds.kubernetes.cluster import Cluster
from perdure.controller.clouds.kubernetes.nodes import capacity
from perdure.controller.clouds.kubernetes.pods import names
from perdure.controller.clouds.kubernetes.pods.pod_spec import PodTemplate, build_pod
from perdure.controller.clouds.kubernetes.settings import PodOptions

# Launches within this time share a list of the cluster's pods. It takes megabytes.
PODS_AGE_S = 5.0


@contextlib.contextmanager
def reserved(cluster: Cluster, template: PodTemplate) -> Iterator[None]:
    """Hold room for the pods until they exist. Raises CloudRejected if all nodes are full and nothing would add one."""
    is_elastic = cluster.settings.autoscaler is not None or any(node.is_possible for node in template.nodes)
    if is_elastic or template.options.queue or _may_preempt(template.options):
        yield
        return
    cluster.room_takers.get(PODS_AGE_S)  # may call the cluster, which must not happen under the lock
    if not _reserve(cluster, template):
        cluster.room_takers.get()  # some may have ended meanwhile
        if not _reserve(cluster, template):
            fitting, count, offer = _fitting(cluster, template), template.request.num_nodes, template.request.offer
            wanted = f"room for {min(fitting, count)} of {count} pods of {template.size.name} ({offer.market})"
            raise CloudRejected(faults.NO_ROOM, f"{offer.zone} of {cluster.context} has {wanted}")
    try:
        yield
    finally:
        with cluster.room_lock:
            cluster.reservations.pop(template.request.owner.token, None)


def _reserve(cluster: Cluster, template: PodTemplate) -> bool:
    with cluster.room_lock:
        if _fitting(cluster, template) < template.request.num_nodes:
            return False
        pods = [capacity.reduce_pod(build_pod(template, rank, "")) for rank in range(template.request.num_nodes)]
        cluster.reservations[template.request.owner.token] = pods
        return True


def _fitting(cluster: Cluster, template: PodTemplate) -> int:
    own = template.request.owner
    earlier = {
        names.JOB: str(own.job_id),
        names.TASK: str(own.task),
        names.CONTROLLER: names.controller_label(own.controller),
    }
    pods = _with_reserved(cluster.room_takers.get(PODS_AGE_S), cluster.reservations.values())
    others = [pod for pod in pods if not _is_earlier(pod, earlier, own.generation)]
    return capacity.count_that_fit(template.nodes, others, template.requests, template.request.num_nodes)


def _with_reserved(pods: list[Object], reservations: Iterable[list[Object]]) -> list[Object]:
    existing = {pod["metadata"].get("name") for pod in pods}
    return pods + [pod for one in reservations for pod in one if pod["metadata"]["name"] not in existing]


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
