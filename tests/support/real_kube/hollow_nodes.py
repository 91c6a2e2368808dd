"""Nodes of a real cluster that are objects alone: one thread renews their leases, and acts as the kubelet of all.

Pods that the scheduler gives them are reported as running, and end with their grace when they are deleted, as a kubelet
reports and ends them. No process runs.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from perdure.controller.clouds.kubernetes.api.client import ApiClient
from perdure.controller.clouds.kubernetes.api.errors import ApiError
from perdure.controller.clouds.kubernetes.api.watch import Object, ObjectWatch
from perdure.controller.clouds.kubernetes.pods.machines import TERMINATE_GRACE_S
from support.helpers.timing import wait_until

PODS, NODES, LEASES = "/api/v1/pods", "/api/v1/nodes", "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
RENEW_S = 1.0
_GONE = (404, 409)


@dataclass
class HollowFaults:
    """As `support.fakes.kube.Faults`, as far as they concern kubelets."""

    #: How long a container takes to end after SIGTERM, if its pod is deleted as the controller deletes pods: with a
    #: grace of TERMINATE_GRACE_S or more. Others take all of their grace.
    stop_s: float = float("inf")
    images: dict[str, tuple[str, str]] = field(default_factory=dict)  # image → (waiting reason, message)
    no_kubelet: set[str] = field(default_factory=set)  # nodes whose kubelet does nothing any more


class HollowNodes:
    """`client`: of somebody who may do everything."""

    def __init__(self, client: ApiClient) -> None:
        self.client = client
        self.faults = HollowFaults()
        self.silent: set[str] = set()  # nodes whose lease is not renewed
        self._names: set[str] = set()
        self._handled: dict[str, str] = {}  # uid of a pod → what was done last
        self._ends: list[tuple[float, str, str, str]] = []  # heap of (when to kill, uid, namespace, name)
        self._addresses = 0
        self._stopped = threading.Event()
        self.problems: list[Exception] = []
        self._watch = ObjectWatch(lambda: client, PODS, lambda _old, _new: None)
        self._threads = [
            threading.Thread(target=self._follow, daemon=True),
            threading.Thread(target=self._repeat, args=(self._act, 0.05), daemon=True),
            threading.Thread(target=self._repeat, args=(self._renew_leases, RENEW_S), daemon=True),
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()
        wait_until(self._watch.is_synced.is_set, "the pods")

    def stop(self) -> None:
        self._stopped.set()
        for thread in self._threads[1:]:  # the first one ends with its connection
            thread.join()

    # ---- nodes ----

    def add(self, name: str, labels: dict[str, str], spec: dict[str, Any], amounts: dict[str, str]) -> None:
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}, "spec": spec}
        self.client.post(NODES, node)
        self._names.add(name)
        lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name}}
        spec_of_lease = {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": _micro_time()}
        self.client.post(LEASES, {**lease, "spec": spec_of_lease})
        self.report(name, {"allocatable": amounts, "capacity": amounts, "conditions": [ready("True")]})
        wait_until(lambda: not self._is_tainted(name), f"the node controller's word that {name} is ready")

    def remove(self, name: str) -> None:
        self._names.discard(name)
        self.silent.discard(name)
        for path in (f"{LEASES}/{name}", f"{NODES}/{name}"):
            _ignore_missing(lambda path=path: self.client.delete(path))  # type: ignore[misc]

    def remove_all(self) -> None:
        for name in list(self._names):
            self.remove(name)

    def report(self, name: str, status: dict[str, Any]) -> None:
        self.client.patch(f"{NODES}/{name}/status", {"status": status})

    # ---- containers ----

    def has_seen(self, pod: Object) -> bool:
        """Whether a pod on one of these nodes is reported as it is, as far as its kubelet works."""
        node = pod["spec"].get("nodeName")
        is_ours = node in self._names and node not in self.faults.no_kubelet
        is_new = pod["status"].get("phase") == "Pending" and not pod["status"].get("containerStatuses")
        return not (is_ours and is_new) or "deletionTimestamp" in pod["metadata"]

    def end(
        self, pod: Object, exit_code: int, reason: str, message: str = "", status: Mapping[str, str] | None = None
    ) -> None:
        """The container ends, and `status` says why, if the kubelet itself ended it."""
        self._handled[pod["metadata"]["uid"]] = "ended"
        ended = {"exitCode": exit_code, "reason": reason, "message": message}
        ended |= {"startedAt": _time(), "finishedAt": _time()}
        statuses = [_container_status(pod["spec"]["containers"][0], {"terminated": ended})]
        phase = "Succeeded" if exit_code == 0 else "Failed"
        self._report(pod, {"phase": phase, "containerStatuses": statuses, **(status or {})})

    def _sync(self, pod: Object) -> None:
        metadata, uid = pod["metadata"], pod["metadata"]["uid"]
        done, phase = self._handled.get(uid), (pod.get("status") or {}).get("phase")
        if "deletionTimestamp" not in metadata:
            if done is None and phase == "Pending":
                self._start(pod)
            return
        if done == "deleted":
            return
        if phase in ("Succeeded", "Failed") or done in (None, "waiting"):
            self._confirm(pod)
            return
        grace_s = float(metadata.get("deletionGracePeriodSeconds") or 0)
        grace_s = min(grace_s, self.faults.stop_s) if grace_s >= TERMINATE_GRACE_S else grace_s
        if done != f"stopping {grace_s}":
            self._handled[uid] = f"stopping {grace_s}"
            heapq.heappush(self._ends, (time.monotonic() + grace_s, uid, metadata["namespace"], metadata["name"]))

    def _start(self, pod: Object) -> None:
        container = pod["spec"]["containers"][0]
        if (problem := self.faults.images.get(container["image"])) is not None:
            self._handled[pod["metadata"]["uid"]] = "waiting"
            waiting = {"waiting": {"reason": problem[0], "message": problem[1]}}
            self._report(pod, {"containerStatuses": [_container_status(container, waiting)]})
            return
        self._handled[pod["metadata"]["uid"]] = "started"
        self._addresses += 1
        address = f"10.1.{self._addresses // 250}.{self._addresses % 250 + 1}"
        running = [_container_status(container, {"running": {"startedAt": _time()}})]
        conditions = [*(pod["status"].get("conditions") or ()), {"type": "Ready", "status": "True"}]
        status = {"phase": "Running", "podIP": address, "startTime": _time(), "containerStatuses": running}
        self._report(pod, status | {"podIPs": [{"ip": address}], "conditions": conditions})

    def _confirm(self, pod: Object) -> None:
        """Tell the API server that nothing of a deleted pod runs any more. A finalizer may still keep the object."""
        self._handled[pod["metadata"]["uid"]] = "deleted"
        options = {"gracePeriodSeconds": 0, "preconditions": {"uid": pod["metadata"]["uid"]}}
        _ignore_missing(lambda: self.client.delete(_path(pod), options))

    def _report(self, pod: Object, status: dict[str, Any]) -> None:
        _ignore_missing(lambda: self.client.patch(f"{_path(pod)}/status", {"status": status}))

    # ---- threads ----

    def _act(self) -> None:
        for pod in self._watch.snapshot():
            node = pod["spec"].get("nodeName")
            if node in self._names and node not in self.faults.no_kubelet:
                self._sync(pod)
        while self._ends and self._ends[0][0] <= time.monotonic():
            _, uid, _, name = heapq.heappop(self._ends)
            pod = self._watch.find(name) or {"metadata": {}}
            if pod["metadata"].get("uid") == uid and self._handled.get(uid) not in ("ended", "deleted"):
                self.end(pod, 137, "Error")
                self._confirm(pod)

    def _follow(self) -> None:
        self._repeat(self._watch.run_once, 0.1)

    def _renew_leases(self) -> None:
        for name in self._names - self.silent - self.faults.no_kubelet:
            patch = {"spec": {"renewTime": _micro_time()}}
            _ignore_missing(lambda name=name, patch=patch: self.client.patch(f"{LEASES}/{name}", patch))  # type: ignore[misc]

    def _repeat(self, act: Any, pause_s: float) -> None:
        while not self._stopped.wait(pause_s):
            try:
                act()
            except (ApiError, OSError) as error:  # the server may be away: that is a test's own fault
                self.problems.append(error)

    def _is_tainted(self, name: str) -> bool:
        taints = self.client.get(f"{NODES}/{name}")["spec"].get("taints") or ()
        return any(one["key"] == "node.kubernetes.io/not-ready" for one in taints)


def ready(status: str, message: str = "") -> dict[str, str]:
    """A node's condition Ready."""
    stamps = {"lastHeartbeatTime": _time(), "lastTransitionTime": _time()}
    return {"type": "Ready", "status": status, "reason": "KubeletReady", "message": message, **stamps}


def _container_status(container: Object, state: Object) -> Object:
    return {
        "name": container["name"],
        "image": container["image"],
        "imageID": f"sha256:{container['image']}",
        "ready": "running" in state,
        "restartCount": 0,
        "state": state,
    }


def _path(pod: Object) -> str:
    return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"


def _ignore_missing(call: Any) -> None:
    try:
        call()
    except ApiError as error:
        if error.status not in _GONE:
            raise


def _time() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _micro_time() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S.000000Z", time.gmtime())
