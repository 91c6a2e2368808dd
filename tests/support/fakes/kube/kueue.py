"""Kueue, as far as plain pods see it: Workloads with its conditions and words, events, its gate, and evictions.

The texts are those of Kueue 0.19: scheduler (quota), preemption, and the integration of pods.
"""

from __future__ import annotations

import copy
from typing import Any

from support.fakes.kube.admission import KUEUE_GATE, QUEUE, condition, set_condition
from support.fakes.kube.store import Object, Store

GROUP = "kueue.x-k8s.io/pod-group-name"
COUNT = "kueue.x-k8s.io/pod-group-total-count"
NO_QUOTA = "couldn't assign flavors to pod set main: insufficient unused quota for cpu in flavor spot, 4 more needed"
PREEMPTED = (
    "Preempted to accommodate a workload (UID: 9f542104, JobUID: a20d0a6a) due to prioritization in the ClusterQueue; "
    "preemptor path: /research; preemptee path: /research"
)


class Kueue:
    """`store`: its lock is held by whoever calls `sync`. A group is known by its name, other pods by theirs."""

    def __init__(self, store: Store, namespace: str) -> None:
        self._store, self._namespace = store, namespace
        self.version = "v1beta2"  # of its API
        self.is_installed = False
        self.refusal = ""  # why nothing is admitted now; "": everything is

    def sync(self) -> bool:
        """Make Workloads of complete groups, and admit them unless that is refused. Whether anything changed."""
        if not self.is_installed:
            return False
        changed = False
        for name, pods in self._groups().items():
            held = [pod for pod in pods if any(one["name"] == KUEUE_GATE for one in _gates(pod))]
            if not held:
                continue
            wanted = int((pods[0]["metadata"].get("annotations") or {}).get(COUNT, 1))
            if len(pods) < wanted:
                message = f"'{name}' group has fewer runnable pods than expected"
                changed |= self._record(pods[0], "ErrWorkloadCompose", message)
                continue
            changed |= self._set(name, pods, self._waiting() if self.refusal else self._admitted())
            if not self.refusal:
                changed |= any([self._open(pod) for pod in held])
        return changed

    def preempt(self, name: str, message: str = PREEMPTED) -> list[str]:
        """Evict an admitted group: its pods get a condition. Returns their names; the caller deletes them."""
        pods = self._groups()[name]
        workload = copy.deepcopy(self._store.get("workloads", self._namespace, name))
        conditions = {one["type"]: one for one in workload["status"]["conditions"]}
        conditions |= {"Evicted": condition("Evicted", "True", "Preempted", message)}
        conditions |= {"Preempted": condition("Preempted", "True", "InClusterQueue", message)}
        workload["status"]["conditions"] = list(conditions.values())
        self._store.update("workloads", self._namespace, workload)
        for pod in pods:
            new = copy.deepcopy(pod)
            set_condition(new, condition("TerminationTarget", "True", "WorkloadEvicted", message))
            self._store.update("pods", self._namespace, new)
        return [pod["metadata"]["name"] for pod in pods]

    def pending(self, queue: str) -> Object:
        """The answer of the API of positions for a LocalQueue."""
        waiting = [
            one
            for one in self._store.all("workloads")
            if one["spec"]["queueName"] == queue and not _is_true(one, "QuotaReserved")
        ]
        waiting.sort(key=lambda one: int(one["metadata"]["resourceVersion"]))
        items = [
            {"metadata": {"name": one["metadata"]["name"]}, "positionInLocalQueue": number, "priority": 0}
            for number, one in enumerate(waiting)
        ]
        return {"kind": "PendingWorkloadsSummary", "items": items}

    # ---- private ----

    def _groups(self) -> dict[str, list[Object]]:
        groups: dict[str, list[Object]] = {}
        for pod in self._store.all("pods", self._namespace):
            labels = pod["metadata"].get("labels") or {}
            if QUEUE in labels and "deletionTimestamp" not in pod["metadata"]:
                groups.setdefault(labels.get(GROUP) or f"pod-{pod['metadata']['name']}", []).append(pod)
        return groups

    def _waiting(self) -> list[Object]:
        return [condition("QuotaReserved", "False", "Pending", self.refusal)]

    def _admitted(self) -> list[Object]:
        return [
            condition("QuotaReserved", "True", "QuotaReserved", "Quota reserved in ClusterQueue research"),
            condition("Admitted", "True", "Admitted", "The workload is admitted"),
        ]

    def _set(self, name: str, pods: list[Object], conditions: list[Object]) -> bool:
        key = ("workloads", self._namespace, name)
        owners = [
            {"apiVersion": "v1", "kind": "Pod", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
            for pod in pods
        ]
        known = self._store.objects.get(key)
        if known is not None and known["status"]["conditions"] == conditions:
            return False
        queue = pods[0]["metadata"]["labels"][QUEUE]
        one: dict[str, Any] = {"metadata": {"name": name}, "spec": {"queueName": queue, "active": True}}
        if known is None:
            one["metadata"]["ownerReferences"] = owners
            self._store.create("workloads", self._namespace, one | {"status": {"conditions": conditions}})
        else:
            self._store.update("workloads", self._namespace, {**known, "status": {"conditions": conditions}})
        return True

    def _open(self, pod: Object) -> bool:
        new = copy.deepcopy(self._store.get("pods", self._namespace, pod["metadata"]["name"]))
        new["spec"]["schedulingGates"] = [one for one in _gates(new) if one["name"] != KUEUE_GATE]
        self._store.update("pods", self._namespace, new)
        return True

    def _record(self, pod: Object, reason: str, message: str) -> bool:
        """An event about the pod, once."""
        metadata = pod["metadata"]
        name = f"{metadata['name']}.{reason.lower()}"
        if ("events", self._namespace, name) in self._store.objects:
            return False
        of = {"kind": "Pod", "name": metadata["name"], "namespace": self._namespace, "uid": metadata["uid"]}
        event = {"metadata": {"name": name}, "involvedObject": of, "reason": reason, "message": message}
        self._store.create("events", self._namespace, event | {"source": {"component": "pod-kueue-controller"}})
        return True


def _gates(pod: Object) -> list[Object]:
    return list(pod["spec"].get("schedulingGates") or ())


def _is_true(workload: Object, kind: str) -> bool:
    return any(one["type"] == kind and one["status"] == "True" for one in workload["status"]["conditions"])
