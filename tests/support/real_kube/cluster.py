"""A namespace of a real cluster with nodes of its own, with the methods of `support.fakes.kube.FakeKube`."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import yaml

from perdure.controller.clouds.kubernetes.api.errors import ApiError
from perdure.controller.clouds.kubernetes.api.watch import Object, list_objects
from support.helpers.timing import wait_until
from support.real_kube.hollow_nodes import NODES, HollowNodes, ready
from support.real_kube.servers import Servers

RBAC = Path(__file__).resolve().parents[3] / "deploy/kubernetes/rbac.yaml"
ACCOUNT = "perdure"
_AUTHORIZATION = "/apis/rbac.authorization.k8s.io/v1"
_POLICIES = "/apis/policy/v1beta1/podsecuritypolicies"
_numbers = itertools.count(1)


class RealKube:
    """`kubeconfig` has the credentials of the service account of deploy/kubernetes/rbac.yaml, and nothing else.

    `kinds`: the roles of that file that the account gets. `restricted`: the namespace admits only pods as the Pod
    Security Standard `restricted` describes them.
    """

    def __init__(
        self,
        servers: Servers,
        nodes: HollowNodes,
        folder: Path,
        *,
        kinds: tuple[str, ...] = ("Role", "ClusterRole"),
        restricted: bool = False,
    ) -> None:
        self.servers, self.nodes, self.client = servers, nodes, nodes.client
        self.namespace, self.context = f"test-{next(_numbers)}", "real"
        self.faults = nodes.faults
        self.settings: dict[str, Any] = {}
        self.kubeconfig = folder / f"{self.namespace}.kubeconfig"
        self._kinds = kinds
        self._create_namespace(restricted=restricted)
        self.kubeconfig.write_text(yaml.safe_dump(self.kubeconfig_data()))

    def close(self) -> None:
        """Remove the namespace with everything in it, and the nodes."""
        self.nodes.faults.stop_s, self.nodes.faults.images = 0.0, {}
        self.nodes.faults.no_kubelet.clear()
        for pod in self.pods():
            if pod["metadata"].get("finalizers"):
                self.release(pod["metadata"]["name"])
            self._quietly(lambda name=pod["metadata"]["name"]: self.delete_pod(name, 0))  # type: ignore[misc]
        for path in self._cluster_wide:
            self._quietly(lambda path=path: self.client.delete(path))  # type: ignore[misc]
        self.client.delete(f"/api/v1/namespaces/{self.namespace}")
        self.nodes.remove_all()
        self.nodes.faults.stop_s = float("inf")

    @property
    def environ(self) -> dict[str, str]:
        return {"KUBECONFIG": str(self.kubeconfig)}

    def kubeconfig_data(self) -> dict[str, Any]:
        user = {"token": self._token()}
        return self.servers.kubeconfig_with(user, context=self.context, namespace=self.namespace)

    # ---- nodes ----

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
        amounts = {"cpu": f"{round(cpu * 1000)}m", "memory": f"{round(memory_gib * 1024)}Mi", "pods": "110"}
        amounts |= {"ephemeral-storage": "200Gi", **{key: str(one) for key, one in (resources or {}).items()}}
        places = {"kubernetes.io/hostname": name, "topology.kubernetes.io/zone": zone}
        spec: dict[str, Any] = {"taints": taints or []} | ({"providerID": provider_id} if provider_id else {})
        self.nodes.add(name, places | (labels or {}), spec, amounts)

    def change_node(self, name: str, **spec: Any) -> None:
        self.client.patch(f"{NODES}/{name}", {"spec": spec})

    def taint(self, name: str, key: str, effect: str = "NoSchedule") -> None:
        taints = self.client.get(f"{NODES}/{name}")["spec"].get("taints") or []
        self.change_node(name, taints=[*taints, {"key": key, "effect": effect}])

    def limit_pods(self, name: str, count: int) -> None:
        self.nodes.report(name, {"allocatable": {"pods": str(count)}})

    def set_ready(self, name: str, status: str, message: str = "") -> None:
        """The node's condition Ready. Unknown: the node falls silent, and the node controller notices."""
        if status != "Unknown":
            self.nodes.report(name, {"conditions": [ready(status, message)]})
            return
        self.nodes.silent.add(name)
        wait_until(lambda: self._ready_of(name) == "Unknown", "the node controller's patience", 60)

    def remove_node(self, name: str) -> None:
        """The node object goes. The pods follow, by the pod garbage collector or as here by the node's vendor."""
        self.nodes.remove(name)
        for pod in self.pods():
            if pod["spec"].get("nodeName") == name:
                self.delete_pod(pod["metadata"]["name"], 0)

    # ---- pods ----

    def pods(self) -> list[Object]:
        """The pods once the scheduler and the kubelets have acted."""
        self.settle()
        return self._list_pods()

    def settle(self) -> None:
        """Wait until every pod has a node and is reported, or is known to have none, as the fake's pods are at once."""

        def is_settled() -> bool:
            pods = self._list_pods()
            return all(map(self._has_been_seen, pods)) and all(map(self.nodes.has_seen, pods))

        wait_until(is_settled, lambda: f"the scheduler and the kubelets: {self._list_pods()}", 20)

    def secrets(self) -> list[Object]:
        """Those that are not of service accounts."""
        listed = list_objects(self.client, self._path("secrets"))[0]
        return [one for one in listed if one["type"] != "kubernetes.io/service-account-token"]

    def pod(self, name: str) -> Object | None:
        return next((one for one in self.pods() if one["metadata"]["name"] == name), None)

    def delete_pod(self, name: str, grace_s: int | None = None) -> None:
        self.client.delete(self._path("pods", name), {"gracePeriodSeconds": grace_s} if grace_s is not None else {})

    def evict(self, name: str, grace_s: int | None = None) -> None:
        options = {"gracePeriodSeconds": grace_s} if grace_s is not None else {}
        metadata = {"name": name, "namespace": self.namespace}
        eviction = {"apiVersion": "policy/v1beta1", "kind": "Eviction", "metadata": metadata, "deleteOptions": options}
        self.client.post(f"{self._path('pods', name)}/eviction", eviction)

    def disrupt(self, name: str, reason: str, grace_s: int | None = None, *, kind: str = "DisruptionTarget") -> None:
        """Set the condition that newer versions set by themselves, and delete the pod."""
        pod = self.client.get(self._path("pods", name))
        one = {"type": kind, "status": "True", "reason": reason, "message": f"the pod is ended: {reason}"}
        conditions = [*(pod["status"].get("conditions") or ()), one]
        self.client.patch(f"{self._path('pods', name)}/status", {"status": {"conditions": conditions}})
        self.delete_pod(name, grace_s)

    def hold(self, name: str, finalizer: str) -> None:
        """Add a finalizer of somebody else."""
        self.client.patch(self._path("pods", name), {"metadata": {"finalizers": [finalizer]}})

    def release(self, name: str) -> None:
        self.client.patch(self._path("pods", name), {"metadata": {"finalizers": None}})

    def fail_pod(self, name: str, reason: str, message: str) -> None:
        """The kubelet ends the pod: evicted, or at the shutdown of the node. The object stays."""
        one = self.client.get(self._path("pods", name))
        self.nodes.end(one, 137, "Error", status={"reason": reason, "message": message})

    def end_container(self, name: str, exit_code: int, reason: str, message: str = "") -> None:
        self.nodes.end(self.client.get(self._path("pods", name)), exit_code, reason, message)

    def add_event(self, pod: str, reason: str, source: str = "default-scheduler", message: str = "") -> None:
        of = self.client.get(self._path("pods", pod))["metadata"]
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": f"{pod}."},
            "involvedObject": {"kind": "Pod", "name": pod, "namespace": self.namespace, "uid": of["uid"]},
            "reason": reason,
            "message": message,
            "source": {"component": source},
            "type": "Normal",
        }
        self.client.post(self._path("events"), event)

    # ---- policies ----

    def limit_namespace(self, *, pods: int) -> None:
        """A quota, once its controller has counted what exists."""
        quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "limit"}}
        self.client.post(self._path("resourcequotas"), {**quota, "spec": {"hard": {"pods": str(pods)}}})
        wait_until(lambda: self.client.get(self._path("resourcequotas", "limit"))["status"].get("used"), "the quota")

    def forbid_disruptions(self) -> None:
        """A disruption budget that allows none, once its controller has counted the pods."""
        path = f"/apis/policy/v1beta1/namespaces/{self.namespace}/poddisruptionbudgets"
        spec = {"minAvailable": "100%", "selector": {"matchLabels": {"app.kubernetes.io/managed-by": "perdure"}}}
        budget = {"apiVersion": "policy/v1beta1", "kind": "PodDisruptionBudget", "metadata": {"name": "none"}}
        self.client.post(path, {**budget, "spec": spec})
        wait_until(lambda: "currentHealthy" in (self.client.get(f"{path}/none").get("status") or {}), "the budget")

    def add_pod_of_class(self, name: str, priority: int, *, cpu: str) -> None:
        """A pod of somebody else, of a priority class with that name."""
        path = "/apis/scheduling.k8s.io/v1/priorityclasses"
        one = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}}
        self.client.post(path, {**one, "value": priority})
        self._cluster_wide.append(f"{path}/{name}")
        container = {"name": "main", "image": "busybox", "resources": {"requests": {"cpu": cpu}}}
        spec = {"priorityClassName": name, "containers": [container]}
        self.client.post(self._path("pods"), {"metadata": {"name": name}, "spec": spec})

    # ---- private ----

    def _path(self, resource: str, name: str = "") -> str:
        return f"/api/v1/namespaces/{self.namespace}/{resource}" + (f"/{name}" if name else "")

    def _list_pods(self) -> list[Object]:
        return list_objects(self.client, self._path("pods"))[0]

    def _has_been_seen(self, pod: Object) -> bool:
        """Whether the scheduler has placed the pod, or says that it cannot."""
        conditions = pod["status"].get("conditions") or ()
        is_placed = bool(pod["spec"].get("nodeName")) or any(one["type"] == "PodScheduled" for one in conditions)
        return is_placed or "deletionTimestamp" in pod["metadata"]

    def _ready_of(self, name: str) -> str:
        conditions = self.client.get(f"{NODES}/{name}")["status"]["conditions"]
        return str(next(one["status"] for one in conditions if one["type"] == "Ready"))

    def _create_namespace(self, *, restricted: bool) -> None:
        metadata = {"name": self.namespace}
        self.client.post("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
        self._cluster_wide = [
            path
            for one in yaml.safe_load_all(RBAC.read_text())
            if one["kind"].removesuffix("Binding") in (*self._kinds, "ServiceAccount")
            and (path := self._apply(one)) is not None
        ]
        wait_until(lambda: self._exists("serviceaccounts", "default"), "the namespace's default account")
        self._allow_pods("restricted" if restricted else "anything")

    def _apply(self, one: Object) -> str | None:
        """Create an object of rbac.yaml. Returns its path if it is cluster-wide, which has a name of its own here."""
        kind = one["kind"]
        if kind == "ServiceAccount":
            self.client.post(self._path("serviceaccounts"), one)
            return None
        resource = {"Role": "roles", "ClusterRole": "clusterroles"}[kind.removesuffix("Binding")]
        resource = resource if not kind.endswith("Binding") else resource.removesuffix("s") + "bindings"
        if not kind.startswith("Cluster"):
            self.client.post(f"{_AUTHORIZATION}/namespaces/{self.namespace}/{resource}", one)
            return None
        name = f"{one['metadata']['name']}-{self.namespace}"
        one["metadata"]["name"] = name
        if kind.endswith("Binding"):
            one["roleRef"]["name"] = name
            one["subjects"][0]["namespace"] = self.namespace
        self.client.post(f"{_AUTHORIZATION}/{resource}", one)
        return f"{_AUTHORIZATION}/{resource}/{name}"

    def _allow_pods(self, policy: str) -> None:
        """Let the namespace's accounts use a pod security policy."""
        binding = {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": f"policy-{policy}"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": f"policy-{policy}"},
            "subjects": [
                {
                    "apiGroup": "rbac.authorization.k8s.io",
                    "kind": "Group",
                    "name": f"system:serviceaccounts:{self.namespace}",
                }
            ],
        }
        self.client.post(f"{_AUTHORIZATION}/namespaces/{self.namespace}/rolebindings", binding)

    def _token(self) -> str:
        request = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": 7200},
        }
        answer = self.client.post(f"{self._path('serviceaccounts', ACCOUNT)}/token", request)
        return str(answer["status"]["token"])

    def _exists(self, resource: str, name: str) -> bool:
        try:
            return bool(self.client.get(self._path(resource, name)))
        except ApiError as error:
            if error.status != 404:
                raise
            return False

    def _quietly(self, call: Any) -> None:
        try:
            call()
        except ApiError as error:
            if error.status != 404:
                raise


def create_pod_policies(servers: Servers) -> None:
    """The policies that stand for the Pod Security Standards, which version 1.20 does not have.

    `restricted`: as in k8s.io/docs/concepts/policy/pod-security-policy of that version.
    """
    client, everything = servers.client(), {"rule": "RunAsAny"}
    anything = {
        "privileged": True,
        "allowPrivilegeEscalation": True,
        "allowedCapabilities": ["*"],
        "volumes": ["*"],
        "hostNetwork": True,
        **dict.fromkeys(("runAsUser", "seLinux", "supplementalGroups", "fsGroup"), everything),
    }
    no_root = {"rule": "MustRunAs", "ranges": [{"min": 1, "max": 65535}]}
    restricted = {
        "privileged": False,
        "allowPrivilegeEscalation": False,
        "requiredDropCapabilities": ["ALL"],
        "volumes": ["configMap", "emptyDir", "projected", "secret", "downwardAPI", "persistentVolumeClaim"],
        "runAsUser": {"rule": "MustRunAsNonRoot"},
        "seLinux": everything,
        "supplementalGroups": no_root,
        "fsGroup": no_root,
    }
    for name, spec in (("anything", anything), ("restricted", restricted)):
        profiles = {"allowedProfileNames": "*" if name == "anything" else "runtime/default"}
        annotations = {f"seccomp.security.alpha.kubernetes.io/{key}": value for key, value in profiles.items()}
        metadata = {"name": name, "annotations": annotations}
        policy = {"apiVersion": "policy/v1beta1", "kind": "PodSecurityPolicy", "metadata": metadata, "spec": spec}
        client.post(_POLICIES, policy)
        rule = {
            "apiGroups": ["policy"],
            "resources": ["podsecuritypolicies"],
            "verbs": ["use"],
            "resourceNames": [name],
        }
        role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "rules": [rule]}
        client.post(f"{_AUTHORIZATION}/clusterroles", role | {"metadata": {"name": f"policy-{name}"}})
