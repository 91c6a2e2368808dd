"""What Kueue says about pods that wait for admission: its Workloads, and their positions in the queue.

Kueue makes one Workload for each pod group, with the group's name, or for a pod without a group, which then owns it.
Sources: kueue.sigs.k8s.io/docs/concepts/workload (conditions), tasks/run/plain_pods, and
tasks/manage/monitor_pending_workloads/pending_workloads_on_demand (positions).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from perdure.controller.clouds.kubernetes.api.client import ApiClient
from perdure.controller.clouds.kubernetes.api.errors import ApiError
from perdure.controller.clouds.kubernetes.api.watch import Object, list_objects

GATE_PREFIX = "kueue.x-k8s.io/"  # of its scheduling gates
QUEUE = "kueue.x-k8s.io/queue-name"
GROUP = "kueue.x-k8s.io/pod-group-name"
_VERSIONS = ("v1beta2", "v1beta1")  # the newest that is known first
_WORKLOADS = "/apis/kueue.x-k8s.io/{version}/namespaces/{namespace}/workloads"
_PENDING = "/apis/visibility.kueue.x-k8s.io/{version}/namespaces/{namespace}/localqueues/{queue}/pendingworkloads"
_ABSENT = (403, 404)  # not installed, another version, or no right
_COMPOSE = "ErrWorkloadCompose"


@dataclass(frozen=True)
class Workloads:
    """The Workloads of a namespace, and the positions of those that wait, the first one being 0."""

    by_name: Mapping[str, Object]
    by_pod: Mapping[str, Object]  # uid of the pod that owns it
    positions: Mapping[str, int]  # name → in its LocalQueue

    def of(self, pod: Mapping[str, Any]) -> Object | None:
        """The Workload of a pod; None if Kueue has not made it, or it cannot be seen."""
        metadata = pod["metadata"]
        group = (metadata.get("labels") or {}).get(GROUP)
        return self.by_name.get(group) if group else self.by_pod.get(metadata.get("uid", ""))


NO_WORKLOADS = Workloads({}, {}, {})


def read_workloads(client: ApiClient, namespace: str, queues: Iterable[str]) -> Workloads:
    """Empty without the right to see them. Raises what `ApiClient` does."""
    listed = _list(client, namespace)
    by_pod = {
        owner["uid"]: one
        for one in listed
        for owner in one["metadata"].get("ownerReferences") or ()
        if owner.get("kind") == "Pod"
    }
    positions = {name: number for queue in queues for name, number in _positions(client, namespace, queue)}
    return Workloads({one["metadata"]["name"]: one for one in listed}, by_pod, positions)


def explanation(workload: Mapping[str, Any], position: int | None = None) -> str:
    """Why the Workload is not admitted, in Kueue's words; "" if it is."""
    spec, status = workload.get("spec") or {}, workload.get("status") or {}
    conditions = {one.get("type"): one for one in status.get("conditions") or ()}
    if _is_true(conditions.get("Admitted")):
        return ""
    if spec.get("active") is False:
        return _message_of(conditions.get("Evicted")) or "the workload is deactivated"
    if _is_true(conditions.get("QuotaReserved")):
        checks = [one for one in status.get("admissionChecks") or () if one.get("state") != "Ready"]
        listed = "; ".join(_check(one) for one in checks)
        return f"its quota is reserved, and it waits for {listed or 'admission'}"
    words = [_message_of(conditions.get("QuotaReserved"))]
    if _is_true(conditions.get("Evicted")):
        words.append(f"evicted before: {_message_of(conditions.get('Evicted'))}")
    if (requeued_at := (status.get("requeueState") or {}).get("requeueAt")) is not None:
        words.append(f"tried again after {requeued_at}")
    if position is not None:
        words.append(f"position {position + 1} in the queue")
    return "; ".join(filter(None, words)) or "the quota has not been checked yet"


def compose_problem(events: Iterable[Mapping[str, Any]]) -> str:
    """Why Kueue could not make a Workload of a pod, by the pod's events; "" if it says nothing."""
    messages = [str(one.get("message", "")) for one in events if one.get("reason") == _COMPOSE]
    return messages[-1] if messages else ""


def _list(client: ApiClient, namespace: str) -> list[Object]:
    for version in _VERSIONS:
        try:
            return list_objects(client, _WORKLOADS.format(version=version, namespace=namespace), reduce=_reduce)[0]
        except ApiError as error:
            if error.status not in _ABSENT:
                raise
    return []


def _positions(client: ApiClient, namespace: str, queue: str) -> list[tuple[str, int]]:
    for version in _VERSIONS:
        try:
            answer = client.get(_PENDING.format(version=version, namespace=namespace, queue=queue))
        except ApiError as error:
            if error.status not in _ABSENT and error.status < 500:  # an extension server may be away
                raise
            continue
        items = [one for one in answer.get("items") or () if isinstance(one.get("positionInLocalQueue"), int)]
        return [(one["metadata"]["name"], one["positionInLocalQueue"]) for one in items]
    return []


def _reduce(workload: Object) -> Object:
    metadata, status = workload["metadata"], workload.get("status") or {}
    return {
        "metadata": {name: metadata[name] for name in ("name", "ownerReferences") if name in metadata},
        "spec": {"active": (workload.get("spec") or {}).get("active", True)},
        "status": {name: status[name] for name in ("conditions", "admissionChecks", "requeueState") if name in status},
    }


def _is_true(condition: Mapping[str, Any] | None) -> bool:
    return condition is not None and condition.get("status") == "True"


def _message_of(condition: Mapping[str, Any] | None) -> str:
    if condition is None:
        return ""
    return str(condition.get("message") or condition.get("reason") or "")


def _check(check: Mapping[str, Any]) -> str:
    message = f": {check['message']}" if check.get("message") else ""
    return f"the admission check {check.get('name')} ({check.get('state')}{message})"
