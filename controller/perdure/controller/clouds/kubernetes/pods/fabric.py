"""A fast network between the nodes of a task: what a pod needs for it, and how it is added to the pod."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class RdmaSettings:
    """`kubernetes.rdma`: virtual functions of the nodes' RDMA adapters, by a device plugin of SR-IOV."""

    resource: str
    networks: tuple[str, ...] = ()  # NetworkAttachmentDefinitions; one stands for all functions


@dataclass(frozen=True)
class PodFabric:
    """What a pod needs for the fast network."""

    name: str = ""  # for the job's log; "": there is none
    resources: Mapping[str, str] = field(default_factory=dict)  # requests and limits
    env: Mapping[str, str] = field(default_factory=dict)
    capabilities: tuple[str, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    volumes: Mapping[str, tuple[str, str]] = field(
        default_factory=dict
    )  # name → (path of the node or "", of the container)
    sidecars: tuple[Mapping[str, Any], ...] = ()  # containers that start first, and end last
    sidecar_volumes: Mapping[str, str] = field(default_factory=dict)  # name → path of the node; only sidecars mount it
    #: The container is privileged, or uses the node's own network.
    is_privileged: bool = False
    uses_host_network: bool = False

    @property
    def needs_host(self) -> bool:
        """Whether the pod gets files or rights of its node, which a namespace may forbid."""
        return bool(self.volumes or self.sidecars or self.is_privileged or self.capabilities)


NO_FABRIC = PodFabric()


def add_fabric(fabric: PodFabric, pod: dict[str, Any]) -> None:
    """Add the fabric to a pod, all but its resources and variables."""
    spec, container = pod["spec"], pod["spec"]["containers"][0]
    pod["metadata"]["annotations"] |= fabric.annotations
    for name, (source, target) in fabric.volumes.items():
        volume: dict[str, Any] = {"hostPath": {"path": source}} if source else {"emptyDir": {}}
        spec["volumes"].append({"name": name, **volume})
        container["volumeMounts"].append({"name": name, "mountPath": target})
    for name, source in fabric.sidecar_volumes.items():
        spec["volumes"].append({"name": name, "hostPath": {"path": source}})
    if fabric.sidecars:
        spec["initContainers"] = [*spec.get("initContainers", ()), *json.loads(json.dumps(fabric.sidecars))]
    context = container.setdefault("securityContext", {})
    if fabric.capabilities:
        capabilities = context.setdefault("capabilities", {})
        capabilities["add"] = [*capabilities.get("add", ()), *fabric.capabilities]
    if fabric.is_privileged:
        context["privileged"] = True
    if not context:
        del container["securityContext"]
    if fabric.uses_host_network:
        spec["hostNetwork"], spec["dnsPolicy"] = True, "ClusterFirstWithHostNet"
