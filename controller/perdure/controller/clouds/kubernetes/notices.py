"""Notices from a cluster: two watches per context, of our pods and of the nodes, as a `NoticeQueue`.

A sign of a pod or a node becomes a signal within a second: the API server stores it before the kubelet acts. The
watches also know the nodes for offers, and notice when a pod has waited for too long.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from queue import SimpleQueue

import structlog

from perdure.controller.clouds.base.notice_queue import MachineSignal, QueueMessage, Signal
from perdure.controller.clouds.base.protocol import Fault, InstanceState
from perdure.controller.clouds.kubernetes import faults
from perdure.controller.clouds.kubernetes.api.errors import ApiError
from perdure.controller.clouds.kubernetes.api.watch import Object, ObjectWatch
from perdure.controller.clouds.kubernetes.cluster import NODES, Cluster
from perdure.controller.clouds.kubernetes.nodes import markets
from perdure.controller.clouds.kubernetes.nodes.node_view import reduce_node
from perdure.controller.clouds.kubernetes.nodes.node_words import NodeWord, words_of
from perdure.controller.clouds.kubernetes.pods import anchors, machines, names
from perdure.controller.clouds.kubernetes.pods.status import (
    DISRUPTIONS,
    disruption_of,
    epoch_s,
    start_problem,
    status_of,
)
from perdure.controller.clouds.kubernetes.waits import kueue

log = structlog.get_logger(__name__)

POLL_S = 20.0
TIMER_S = 1.0  # how often waiting pods are checked
DESCRIBE_WAITING_S = 120.0
MAX_BACKOFF_S = 30.0
LOOKUP_THREADS = 4  # anchors that are read at once
NO_RIGHTS_PAUSE_S = 600.0
_POD_LABELS = (names.CONTROLLER, names.JOB, names.TASK, names.TOKEN, kueue.QUEUE, kueue.GROUP)
_POD_ANNOTATIONS = (names.PROVISION_TIMEOUT, names.ADMISSION_TIMEOUT)
_POD_SPEC = ("nodeName", "schedulingGates", "terminationGracePeriodSeconds")


@dataclass(frozen=True)
class _Pending:
    """A signal that has not been acknowledged."""

    receipt: str
    signal: MachineSignal


class ContextWatch:
    """The `NoticeQueue` of one context. Its threads start with the first `receive`, and end with the process."""

    idle_s = 0.0  # `receive` waits for POLL_S

    def __init__(self, cloud: str, cluster: Cluster) -> None:
        self.name = f"{cloud}/{cluster.context}"
        self.cloud = cloud
        self._cluster = cluster
        self._condition = threading.Condition()
        self._pending: dict[str, _Pending] = {}
        self._waiting_checked: set[str] = set()  # pods whose wait is known to be over
        self._described_at: dict[str, float] = {}  # pod that waits → when it was last described, or first seen
        self._count = 0
        self._started = False
        self._stopped = threading.Event()
        self._unconfirmed: SimpleQueue[MachineSignal] = SimpleQueue()
        self._nodes_are_current = False
        self.pods = ObjectWatch(
            lambda: cluster.client,
            "",
            self._on_pod,
            reduce=reduce_pod,
            labelSelector=f"{names.KIND}={names.POD_KIND}",
        )
        self.nodes = ObjectWatch(lambda: cluster.client, NODES, self._on_node, reduce=reduce_node)

    # ---- the NoticeQueue protocol ----

    def receive(self) -> Sequence[QueueMessage]:
        self._start()
        with self._condition:
            self._condition.wait_for(lambda: self._pending or self._stopped.is_set(), POLL_S)
            return [QueueMessage(one.receipt, one.signal.instance_id) for one in self._pending.values()]

    def delete(self, messages: Sequence[QueueMessage]) -> None:
        with self._condition:
            for message in messages:
                self._pending.pop(message.receipt, None)

    def parse(self, message: QueueMessage) -> Sequence[MachineSignal]:
        with self._condition:
            pending = self._pending.get(message.receipt)
        return (pending.signal,) if pending else ()

    def classify(self, error: Exception) -> Fault:
        return faults.classify(error)

    def stop(self) -> None:
        """End the watches at their next event; for tests."""
        self._stopped.set()
        with self._condition:
            self._condition.notify_all()

    # ---- what the watches report ----

    def _on_pod(self, old: Object | None, new: Object | None) -> None:
        pod = new or old
        assert pod is not None
        name = pod["metadata"]["name"]
        if names.anchor_of(name) is None:
            return
        if new is None:
            self._described_at.pop(name, None)
            self._waiting_checked.discard(name)
            self._emit_unless_ours(pod, MachineSignal(Signal.ENDING, name))
            return
        status, before = status_of(new), status_of(old) if old else None
        if status.end is not None:
            self._cluster.note_end(name, status.end.reason, status.end.message)
        if status.state is InstanceState.GONE and (before is None or before.state is not InstanceState.GONE):
            self._emit(MachineSignal(Signal.ENDING, name))
        elif _is_newly_announced(old, new):
            self._emit_unless_ours(new, MachineSignal(Signal.NOTICE, name, self._deadline(new)))
        elif old is None and (node := self.nodes.find(new["spec"].get("nodeName", ""))) is not None:
            self._emit_words(name, words_of(node))  # the controller was away when the node changed

    def _on_node(self, old: Object | None, new: Object | None) -> None:
        before = words_of(old) if old else frozenset()
        words = words_of(new) - before if new else frozenset({NodeWord.GONE})
        if not words:
            return
        node = (new or old or {})["metadata"]["name"]
        for pod in self.pods.snapshot():
            if pod["spec"].get("nodeName") == node and "deletionTimestamp" not in pod["metadata"]:
                self._emit_words(pod["metadata"]["name"], words)

    def _emit_words(self, pod: str, words: frozenset[NodeWord]) -> None:
        log.info("kubernetes.node_words", pod=pod, words=sorted(words))
        if NodeWord.NOTICE in words:
            known = self.pods.find(pod)
            self._emit(MachineSignal(Signal.NOTICE, pod, self._deadline(known) if known else None))
        elif NodeWord.AT_RISK in words:
            self._emit(MachineSignal(Signal.AT_RISK, pod))
        elif words:
            self._emit(MachineSignal(Signal.ENDING, pod))

    def _deadline(self, pod: Object) -> float:
        """When the pod's processes are killed: as the API says, or by what its node's vendor grants."""
        stated = epoch_s(pod["metadata"].get("deletionTimestamp"))
        if stated is not None:
            return stated - self._cluster.client.clock_offset_s
        grace_s = float(pod["spec"].get("terminationGracePeriodSeconds") or self._cluster.settings.grace_s)
        node = self.nodes.find(pod["spec"].get("nodeName", ""))
        known = markets.marks(self._cluster.settings.spot_label)
        mark = markets.mark_of(node["metadata"].get("labels") or {}, known) if node else None
        return self._cluster.now() + min(grace_s, mark.notice_s if mark else grace_s)

    def _emit_unless_ours(self, pod: Object, signal: MachineSignal) -> None:
        """Emit the signal unless a controller itself asked for the pod's end: then it is no news.

        Only a bare deletion leaves that open, since a controller's own sets no condition. Its anchor is read on
        other threads: the notices of a whole node pool must not wait for each other.
        """
        if self._cluster.is_terminating(signal.instance_id):
            return
        if disruption_of(pod) is not None:
            self._emit(signal)
        else:
            self._unconfirmed.put(signal)

    def _is_terminated(self, name: str) -> bool:
        """Whether the pod's anchor says that a controller asked for its end."""
        anchor = names.anchor_of(name)
        assert anchor is not None
        try:
            record = self._cluster.find("secrets", anchor)
        except Exception:  # noqa: BLE001 - whatever the error, a notice too many is better than a lost one
            return False
        return record is None or anchors.terminated_at(record) is not None

    def _check_waiting_pods(self) -> None:
        """Have pods described whose wait, for a node or for their start, is over: nothing changes in the cluster then.

        Others are described now and then while they wait, so that their time to connect does not begin yet.
        """
        now, pods = self._cluster.now(), self.pods.snapshot()
        self._cluster.wait_reasons.update(pod for pod in pods if _is_waiting(pod))
        for pod in pods:
            name = pod["metadata"]["name"]
            is_starting = bool(pod["spec"].get("nodeName")) and start_problem(pod) is None
            if is_starting or name in self._waiting_checked or "deletionTimestamp" in pod["metadata"]:
                continue
            if machines.current_status(self._cluster, pod).state in (InstanceState.ENDING, InstanceState.GONE):
                self._waiting_checked.add(name)
                self._emit(MachineSignal(Signal.ENDING, name))
            elif now - self._described_at.setdefault(name, now) >= DESCRIBE_WAITING_S:
                self._described_at[name] = now
                self._emit(MachineSignal(Signal.ENDING, name))

    def _emit(self, signal: MachineSignal) -> None:
        with self._condition:
            self._count += 1
            receipt = str(self._count)
            self._pending[receipt] = _Pending(receipt, signal)
            self._condition.notify_all()

    # ---- threads ----

    def _start(self) -> None:
        if self._started:
            return
        self._started = True
        self._cluster.watched_nodes = lambda: self.nodes.snapshot() if self._nodes_are_current else None
        watches = ((self._watch_pods, "pods"), (self._watch_nodes, "nodes"), (self._watch_waiting_pods, "waiting"))
        lookups = [(self._confirm_signals, "anchors")] * LOOKUP_THREADS
        for target, name in (*watches, *lookups):
            threading.Thread(target=target, name=f"kubernetes-{name}", daemon=True).start()

    def _watch_pods(self) -> None:
        def run_once() -> None:
            self.pods.path = self._cluster.path("pods")
            self.pods.run_once()

        self._repeat(run_once)

    def _watch_nodes(self) -> None:
        def run_once() -> None:
            try:
                self.nodes.run_once()
                self._nodes_are_current = True
            except Exception:
                self._nodes_are_current = False
                raise

        self.nodes.on_sync = self._note_nodes_synced
        self._repeat(run_once)

    def _confirm_signals(self) -> None:
        while not self._stopped.is_set():
            signal = self._unconfirmed.get()
            if not self._is_terminated(signal.instance_id):
                self._emit(signal)

    def _watch_waiting_pods(self) -> None:
        def run_once() -> None:
            self._stopped.wait(TIMER_S)
            self._check_waiting_pods()

        self._repeat(run_once)

    def _note_nodes_synced(self) -> None:
        self._nodes_are_current = True

    def _repeat(self, run_once: Callable[[], None]) -> None:
        failures = 0
        while not self._stopped.is_set():
            try:
                run_once()
                failures = 0
            except Exception as error:  # noqa: BLE001 - a watch is repeated after any error
                fault = self.classify(error)
                pause_s = max(min(MAX_BACKOFF_S, 0.5 * 2.0 ** min(failures, 10)), fault.retry_after_s or 0.0)
                if isinstance(error, ApiError) and error.status == 403:
                    # An API server that has just started forbids everything for a moment: it knows no roles yet.
                    pause_s = min(NO_RIGHTS_PAUSE_S, 2.0 * 2.0 ** min(failures, 10))
                failures += 1
                log.warning("kubernetes.watch_failed", context=self._cluster.context, error=fault.message)
                self._stopped.wait(pause_s)


def reduce_pod(pod: Object) -> Object:
    """The part of a Pod object that is kept in memory: a kilobyte of six. Parts that are equal are one object."""
    metadata, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
    (container, *_) = spec.get("containers") or [{}]
    limits = (container.get("resources") or {}).get("limits") or {}
    kept = {
        name: metadata[name] for name in ("name", "uid", "resourceVersion", "deletionTimestamp") if name in metadata
    }
    kept["labels"] = _part(metadata.get("labels") or {}, _POD_LABELS)
    if not spec.get("nodeName"):
        kept["annotations"] = _part(metadata.get("annotations") or {}, _POD_ANNOTATIONS)
    statuses = {
        kind: [_container_status(one) for one in status[kind]]
        for kind in ("containerStatuses", "initContainerStatuses")
        if status.get(kind)
    }
    return {
        "metadata": kept,
        "spec": {
            "containers": _containers(container.get("name", ""), container.get("image"), limits.get("memory")),
            **_part(spec, _POD_SPEC),
        },
        "status": {
            **_part(status, ("phase", "reason", "message")),
            "conditions": [one for one in status.get("conditions") or () if _says_more(one)],
            **statuses,
        },
    }


def _says_more(condition: Object) -> bool:
    """Whether a condition tells of a disruption, or why a pod has no node."""
    kind = condition.get("type")
    return kind in DISRUPTIONS or (kind == "PodScheduled" and condition.get("status") != "True")


def _part(of: Object, wanted: tuple[str, ...]) -> Object:
    """Some members, whose texts are shared by all objects."""
    return {name: _interned(of[name]) for name in wanted if name in of}


def _interned(value: object) -> object:
    return sys.intern(value) if isinstance(value, str) else value


@lru_cache(maxsize=1024)
def _containers(name: str, image: str | None, memory: str | None) -> list[Object]:
    """The task's container."""
    resources = {"resources": {"limits": {"memory": memory}}} if memory is not None else {}
    return [{"name": name, "image": image, **resources}]


def _container_status(status: Object) -> Object:
    state = status.get("state") or {}
    return _running(status["name"]) if "running" in state else {**_part(status, ("name", "image")), "state": state}


@lru_cache(maxsize=1024)
def _running(name: str) -> Object:
    return {"name": name, "state": {"running": {}}}


def _is_waiting(pod: Object) -> bool:
    return pod["status"].get("phase", "Pending") == "Pending" and "deletionTimestamp" not in pod["metadata"]


def _is_newly_announced(old: Object | None, new: Object) -> bool:
    """Whether the pod has become one that is going to be ended, or gets another time: a second deletion shortens it."""
    if not _is_announced(new):
        return False
    stated = new["metadata"].get("deletionTimestamp")
    return old is None or not _is_announced(old) or stated != old["metadata"].get("deletionTimestamp")


def _is_announced(pod: Object) -> bool:
    """Whether the pod is going to be ended."""
    return "deletionTimestamp" in pod["metadata"] or disruption_of(pod) is not None
