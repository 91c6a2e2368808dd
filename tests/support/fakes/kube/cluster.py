"""The fake cluster as a test uses it: nodes, pods, and what happens to them."""

from __future__ import annotations

import copy
import json
import tempfile
import threading
from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

from support.fakes.kube.admission import KUEUE_GATE, condition, set_condition
from support.fakes.kube.api import KubeApi
from support.fakes.kube.faults import Faults
from support.fakes.kube.kubelet import Kubelets
from support.fakes.kube.kueue import Kueue
from support.fakes.kube.scheduler import schedule
from support.fakes.kube.server import TOKEN, KubeServer
from support.fakes.kube.store import Object, Rejected, Store

NAMESPACE = "training"
TICK_S = 0.02


class FakeKube:
    """One API server. `folder` is for the files of pods, None to run no processes. `contexts`: names of its context."""

    def __init__(
        self, folder: Path | None = None, *, hidden: Path | None = None, context: str = "fake", history: int = 10_000
    ) -> None:
        self.faults = Faults()
        self.calls: Counter[str] = Counter()  # "POST pods" → how often; failed ones too
        self.context, self.namespace = context, NAMESPACE
        self.settings: dict[str, Any] = {}  # more of the section in config.yaml
        self.store = Store(history)
        self.api = KubeApi(self.store, self.faults, self._settle)
        self.api.tokens.add(TOKEN)
        self.kubelets = Kubelets(self.store, self.faults, folder)
        self.kueue = Kueue(self.store, NAMESPACE)
        self.api.pending_workloads = self.kueue.pending
        self._folder = tempfile.TemporaryDirectory()
        self._server = KubeServer(self.api, self.faults, self.calls)
        self._closed = threading.Event()
        self.problems: list[Exception] = []  # errors of this fake
        self._threads = [
            threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True),
            threading.Thread(target=self._tick, daemon=True),
        ]
        with self.store.lock:
            self.store.create("namespaces", "", {"metadata": {"name": NAMESPACE}})
        self.kubeconfig.write_text(yaml.safe_dump(self.kubeconfig_data()))

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Stop the server, and end all containers."""
        self._closed.set()
        self._server.is_closing = True
        self._server.shutdown()
        self._server.server_close()
        for thread in self._threads:
            thread.join()
        self.kubelets.close()
        self._folder.cleanup()
        assert not self.problems, "the cluster itself has failed"

    # ---- for the controller ----

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def kubeconfig(self) -> Path:
        return Path(self._folder.name) / "kubeconfig"

    @property
    def config(self) -> str:
        """A section of config.yaml."""
        return f"kubernetes: {json.dumps({'kubeconfig': str(self.kubeconfig), **self.settings})}\n"

    @property
    def environ(self) -> dict[str, str]:
        return {"KUBECONFIG": str(self.kubeconfig)}

    def kubeconfig_data(self) -> dict[str, Any]:
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": self.context,
            "contexts": [
                {
                    "name": self.context,
                    "context": {"cluster": self.context, "user": self.context, "namespace": NAMESPACE},
                }
            ],
            "clusters": [{"name": self.context, "cluster": {"server": self.url}}],
            "users": [{"name": self.context, "user": {"token": TOKEN}}],
        }

    # ---- for tests ----

    def add_node(
        self,
        name: str,
        *,
        cpu: float = 8,
        memory_gib: float = 32,
        zone: str = "zone-1",
        labels: dict[str, str] | None = None,
        taints: list[Object] | None = None,
        resources: dict[str, Any] | None = None,
        provider_id: str = "",
    ) -> None:
        amounts = {
            "cpu": f"{round(cpu * 1000)}m",
            "memory": f"{round(memory_gib * 1024)}Mi",
            "pods": "110",
            "ephemeral-storage": "200Gi",
            **{resource: str(amount) for resource, amount in (resources or {}).items()},
        }
        node = {
            "metadata": {
                "name": name,
                "labels": {"kubernetes.io/hostname": name, "topology.kubernetes.io/zone": zone, **(labels or {})},
            },
            "spec": {"providerID": provider_id, "taints": taints or []},
            "status": {"allocatable": amounts, "capacity": amounts, "conditions": [condition("Ready", "True", "")]},
        }
        with self.store.lock:
            self.store.create("nodes", "", node)
            self._settle()

    def change_node(self, name: str, **spec: Any) -> None:
        """Replace fields of a node's spec, such as `taints` and `unschedulable`."""
        with self.store.lock:
            node = copy.deepcopy(self.store.get("nodes", "", name))
            node["spec"] |= spec
            self.store.update("nodes", "", node)
            self._settle()

    def limit_pods(self, name: str, count: int) -> None:
        """How many pods the node takes."""
        with self.store.lock:
            node = copy.deepcopy(self.store.get("nodes", "", name))
            node["status"]["allocatable"]["pods"] = str(count)
            self.store.update("nodes", "", node)
            self._settle()

    def taint(self, name: str, key: str, effect: str = "NoSchedule") -> None:
        self.change_node(
            name, taints=[*self.store.get("nodes", "", name)["spec"]["taints"], {"key": key, "effect": effect}]
        )

    def set_ready(self, name: str, status: str, message: str = "") -> None:
        """The node's condition Ready: True, False or Unknown."""
        with self.store.lock:
            node = copy.deepcopy(self.store.get("nodes", "", name))
            node["status"]["conditions"] = [condition("Ready", status, "NodeStatus", message)]
            self.store.update("nodes", "", node)

    def remove_node(self, name: str) -> None:
        """The node object goes, and with it its pods."""
        with self.store.lock:
            self.store.remove(("nodes", "", name))
            for pod in self.pods():
                if pod["spec"].get("nodeName") == name:
                    if container := self.kubelets.container(pod):
                        container.kill()
                    pod["metadata"]["finalizers"] = []
                    self.store.remove(("pods", NAMESPACE, pod["metadata"]["name"]), pod)

    def pods(self) -> list[Object]:
        with self.store.lock:
            return copy.deepcopy(self.store.all("pods"))

    def secrets(self) -> list[Object]:
        with self.store.lock:
            return copy.deepcopy(self.store.all("secrets"))

    def pod(self, name: str) -> Object | None:
        return next((one for one in self.pods() if one["metadata"]["name"] == name), None)

    def delete_pod(self, name: str, grace_s: int | None = None) -> None:
        """As `kubectl delete pod` does it."""
        self._call("DELETE", name, None, {"gracePeriodSeconds": grace_s} if grace_s is not None else {})

    def signal_pod(self, name: str) -> None:
        """The container's SIGTERM, before anybody can see the deletion that it belongs to."""
        pod = self.pod(name)
        container = self.kubelets.container(pod) if pod else None
        assert container is not None, f"{name} has no container"
        container.stop()

    def silence_node(self, name: str, *, silent: bool = True) -> None:
        """The node answers nothing any more, its processes stand still, and its condition says so; or it is back."""
        with self.store.lock:
            for pod in self.store.all("pods"):
                container = self.kubelets.container(pod) if pod["spec"].get("nodeName") == name else None
                if container is not None:
                    container.freeze(thaw=not silent)
            (self.faults.no_kubelet.add if silent else self.faults.no_kubelet.discard)(name)
            self.set_ready(name, "Unknown" if silent else "True", "Kubelet stopped posting node status.")

    def evict(self, name: str, grace_s: int | None = None) -> None:
        """As `kubectl drain` does it."""
        options = {"gracePeriodSeconds": grace_s} if grace_s is not None else {}
        self._call("POST", name, "eviction", {"deleteOptions": options})

    def disrupt(self, name: str, reason: str, grace_s: int | None = None, *, kind: str = "DisruptionTarget") -> None:
        """Set a condition, such as DisruptionTarget with PreemptionByScheduler, and delete the pod."""
        with self.store.lock:
            pod = copy.deepcopy(self.store.get("pods", NAMESPACE, name))
            set_condition(pod, condition(kind, "True", reason, f"the pod is ended: {reason}"))
            self.store.update("pods", NAMESPACE, pod)
        self.delete_pod(name, grace_s)

    def install_kueue(self, version: str = "v1beta2") -> None:
        """Kueue with that version of its API. It makes Workloads, and admits them unless `admit_by_kueue` refuses."""
        self.kueue.version, self.kueue.is_installed = version, True
        self.api.groups["kueue.x-k8s.io"] = self.api.groups["visibility.kueue.x-k8s.io"] = [version]
        self.api.custom_resources.add("workloads")

    def admit_by_kueue(self, refusal: str = "") -> None:
        """Let Kueue admit what waits, or say why it does not."""
        with self.store.lock:
            self.kueue.refusal = refusal
            self._settle()

    def preempt_by_kueue(self, group: str, grace_s: int | None = None) -> None:
        """Kueue ends all pods of an admitted group for a more important one."""
        with self.store.lock:
            evicted = self.kueue.preempt(group)
        for name in evicted:
            self.delete_pod(name, grace_s)

    def admit(self, name: str) -> None:
        """As Kueue does it: remove its gate."""
        with self.store.lock:
            pod = copy.deepcopy(self.store.get("pods", NAMESPACE, name))
            pod["spec"]["schedulingGates"] = [
                one for one in pod["spec"]["schedulingGates"] if one["name"] != KUEUE_GATE
            ]
            self.store.update("pods", NAMESPACE, pod)
            self._settle()

    def release(self, name: str) -> None:
        """As Kueue does it once the group has ended: remove its finalizer."""
        with self.store.lock:
            pod = copy.deepcopy(self.store.get("pods", NAMESPACE, name))
            pod["metadata"]["finalizers"] = []
            self.store.update("pods", NAMESPACE, pod)

    def fail_pod(self, name: str, reason: str, message: str) -> None:
        """The kubelet ends the pod: evicted, or at the shutdown of the node. The object stays."""
        with self.store.lock:
            pod = copy.deepcopy(self.store.get("pods", NAMESPACE, name))
            self.kubelets.end(pod, 137, "Error")
            pod = copy.deepcopy(self.store.get("pods", NAMESPACE, name))
            pod["status"] |= {"phase": "Failed", "reason": reason, "message": message}
            self.store.update("pods", NAMESPACE, pod)

    def end_container(self, name: str, exit_code: int, reason: str, message: str = "") -> None:
        """The container ends by itself, such as by OOM (137, "OOMKilled")."""
        with self.store.lock:
            self.kubelets.end(self.store.get("pods", NAMESPACE, name), exit_code, reason, message)

    def add_event(self, pod: str, reason: str, source: str = "default-scheduler", message: str = "") -> None:
        with self.store.lock:
            of = self.store.get("pods", NAMESPACE, pod)["metadata"]
            event = {
                "metadata": {"name": f"{pod}.{self.store.version:x}"},
                "involvedObject": {"kind": "Pod", "name": pod, "namespace": NAMESPACE, "uid": of["uid"]},
                "reason": reason,
                "message": message,
                "source": {"component": source},
                "type": "Normal",
            }
            self.store.create("events", NAMESPACE, event)

    def add(self, resource: str, one: Object) -> None:
        """A cluster-wide object of a custom resource, whose definition is then installed."""
        self.api.custom_resources.add(resource)
        with self.store.lock:
            self.store.create(resource, "", one)

    def output(self, name: str) -> str:
        """What the containers of the pod printed."""
        pod = self.pod(name)
        return self.kubelets.output(pod) if pod else ""

    # ---- private ----

    def _call(self, method: str, pod: str, sub: str | None, body: Object) -> None:
        from support.fakes.kube.server import Route

        route = Route(None, NAMESPACE, "pods", pod, sub)
        try:
            self.api.answer(method, route, {}, json.dumps(body).encode(), "application/json")
        except Rejected as rejected:
            raise AssertionError(str(rejected)) from rejected

    def _settle(self) -> None:
        """Let the scheduler and the kubelets act until nothing changes."""
        for _ in range(100):
            if not (self.kueue.sync() | schedule(self.store, self.faults) | self.kubelets.sync()):
                return
        raise AssertionError("the cluster does not settle")

    def _tick(self) -> None:
        while not self._closed.wait(TICK_S):
            try:
                with self.store.lock:
                    self._settle()
            except Exception as error:
                self.problems.append(error)
                raise
