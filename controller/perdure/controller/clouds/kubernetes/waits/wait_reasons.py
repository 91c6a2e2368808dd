"""Why pods wait, for users: kept up to date by the watch of a context, and read without calling the cluster."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from perdure.controller.clouds.kubernetes.api.watch import Object
from perdure.controller.clouds.kubernetes.pods import names
from perdure.controller.clouds.kubernetes.pods.status import scheduling
from perdure.controller.clouds.kubernetes.waits import kueue
from perdure.controller.clouds.kubernetes.waits.kueue import Workloads

REREAD_S = 15.0
_MAX_CHARS = 600

TaskKey = tuple[str, str, str]  # the labels of controller, job and task


class WaitReasons:
    """Thread-safe. `update` is called by one thread."""

    def __init__(
        self,
        read_workloads: Callable[[Sequence[str]], Workloads],
        list_events: Callable[[str], list[Object]],
        now: Callable[[], float],
    ) -> None:
        """`read_workloads`: of these queues of Kueue. `list_events`: about an object by its uid."""
        self._read_workloads = read_workloads
        self._list_events = list_events
        self._now = now
        self._lock = threading.Lock()
        self._reasons: dict[TaskKey, str] = {}
        self._workloads = kueue.NO_WORKLOADS
        self._unmade: dict[str, str] = {}  # uid of a pod without a Workload → why it has none
        self._read_at = float("-inf")

    def of(self, controller: str, job_id: int, task: int) -> str | None:
        """Why pods of the task wait, in the cluster's words; None if none does."""
        with self._lock:
            return self._reasons.get((names.controller_label(controller), str(job_id), str(task)))

    def update(self, waiting: Iterable[Object]) -> None:
        """`waiting`: all pods that do not run yet. May call the cluster, once in REREAD_S."""
        pods = list(waiting)
        queued = [pod for pod in pods if _gates(pod, kueue.GATE_PREFIX)]
        if queued and self._now() - self._read_at >= REREAD_S:
            self._read_at = self._now()
            self._read(queued)
        by_task: dict[TaskKey, list[Object]] = {}
        for pod in pods:
            by_task.setdefault(_key(pod), []).append(pod)
        reasons = {key: text for key, of_task in by_task.items() if (text := self._reason(of_task))}
        with self._lock:
            self._reasons = reasons

    def _read(self, queued: Sequence[Object]) -> None:
        queues = sorted({(pod["metadata"].get("labels") or {}).get(kueue.QUEUE, "") for pod in queued} - {""})
        try:
            self._workloads = self._read_workloads(queues)
            without = {_key(pod): pod["metadata"]["uid"] for pod in queued if self._workloads.of(pod) is None}
            self._unmade = {uid: kueue.compose_problem(self._list_events(uid)) for uid in without.values()}
        except Exception:  # noqa: BLE001 - what was last read still holds, and the caller has more to do
            return

    def _reason(self, pods: Sequence[Object]) -> str:
        """The first reason of a task's pods: those of one attempt mostly wait for the same."""
        text = next(filter(None, map(self._reason_of, pods)), "")
        others = f" (and {len(pods) - 1} more)" if len(pods) > 1 else ""
        return f"pod {pods[0]['metadata']['name']}{others}: {text}"[:_MAX_CHARS] if text else ""

    def _reason_of(self, pod: Object) -> str:
        reason, message = scheduling(pod)
        if _gates(pod, kueue.GATE_PREFIX):
            queue = (pod["metadata"].get("labels") or {}).get(kueue.QUEUE, "")
            return f"waits in the queue {queue} of Kueue: {self._queue_words(pod)}"
        if others := [name for name in _gates(pod, "") if name != names.GATE]:
            return f"is held back by the scheduling gate {others[0]}"
        if reason == "Unschedulable":
            return f"waits for a node: {message}"
        return _start_words(pod)

    def _queue_words(self, pod: Mapping[str, Any]) -> str:
        workload = self._workloads.of(pod)
        if workload is None:
            problem = self._unmade.get(pod["metadata"].get("uid", ""), "")
            return problem or "it is not admitted yet"
        position = self._workloads.positions.get(workload["metadata"]["name"])
        return kueue.explanation(workload, position) or "admitted just now"


def _key(pod: Object) -> TaskKey:
    labels = pod["metadata"].get("labels") or {}
    return labels.get(names.CONTROLLER, ""), labels.get(names.JOB, ""), labels.get(names.TASK, "")


def _gates(pod: Object, prefix: str) -> list[str]:
    return [gate["name"] for gate in pod["spec"].get("schedulingGates") or () if gate["name"].startswith(prefix)]


def _start_words(pod: Object) -> str:
    """What a container that has a node waits for, unless it is ordinary: every image takes its time."""
    status = pod.get("status") or {}
    for one in [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]:
        waiting = (one.get("state") or {}).get("waiting") or {}
        if waiting.get("message"):
            return f"{waiting.get('reason', 'waits')}: {waiting['message']}"
    return ""
