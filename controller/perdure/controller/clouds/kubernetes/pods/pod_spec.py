"""Writes the pods of an attempt: the agent, below its init, in the user's image, on the nodes of the offer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from perdure.controller.clouds.base.protocol import LaunchRequest
from perdure.controller.clouds.kubernetes.nodes import markets
from perdure.controller.clouds.kubernetes.nodes.accelerators import GPU_RESOURCES, LABELS
from perdure.controller.clouds.kubernetes.nodes.node_view import (
    GPU_TAINTS,
    INSTANCE_TYPE,
    NO_ZONE,
    SOON_GONE_TAINTS,
    ZONE,
    NodeView,
)
from perdure.controller.clouds.kubernetes.nodes.offers import resource_name
from perdure.controller.clouds.kubernetes.nodes.quantities import parse_quantity
from perdure.controller.clouds.kubernetes.nodes.slices import PodSize
from perdure.controller.clouds.kubernetes.pods import fabrics, fuse, names, pod_config
from perdure.controller.clouds.kubernetes.pods.fabric import NO_FABRIC, PodFabric, add_fabric
from perdure.controller.clouds.kubernetes.settings import ContextSettings, PodOptions
from perdure.recovery.market.view import Market

BOOT_KEY, INIT_KEY = "boot.py", "init.py"
STATE_VOLUME = "/var/lib/perdure"
STATE_DIR = f"{STATE_VOLUME}/agent"  # the agent's own: an emptyDir belongs to root, also where the agent is not root
HOME_DIR = "/home/perdure"
PYTHON_DIR = "/opt/perdure"
NO_PYTHON = "the image has no Python 3.9 or newer, which the agent needs"
NO_PYTHON_EXIT = 78
# The controller judges by the agent's connection, which often outlives that of a kubelet.
TOLERATE_SILENT_NODE_S = 3600
QUEUE = "kueue.x-k8s.io/queue-name"
GROUP = "kueue.x-k8s.io/pod-group-name"
GROUP_SIZE = "kueue.x-k8s.io/pod-group-total-count"
RETRIABLE = "kueue.x-k8s.io/retriable-in-group"
MAX_RUN_DURATION = "provreq.kueue.x-k8s.io/maxRunDurationSeconds"
# An autoscaler that tidies up must not take nodes with pods of a job. A spot interruption does not ask.
_KEEP = {
    "karpenter.sh/do-not-disrupt": "true",
    "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
}
# The init becomes the container's first process, and passes the kubelet's SIGTERM on to the agent. The boot program is
# a variable, because it holds the attempt's token, which must not be in the pod's description.
_START = f"""
init=$PERDURE_INIT; unset PERDURE_INIT
for python in python3 {PYTHON_DIR}/bin/python3 /usr/bin/python3 /usr/local/bin/python3 /opt/conda/bin/python3; do
  if "$python" -c 'import sys; sys.exit(sys.version_info < (3, 9))' >/dev/null 2>&1; then
    exec "$python" -c "$init"
  fi
done
echo "{NO_PYTHON}"
exit {NO_PYTHON_EXIT}
""".strip()


@dataclass(frozen=True)
class PodTemplate:
    """What all pods of an attempt have in common. `nodes`: those that they may run on, existing or possible."""

    request: LaunchRequest
    size: PodSize
    options: PodOptions
    settings: ContextSettings
    nodes: Sequence[NodeView]
    #: The namespace admits only pods that run without root (the Pod Security Standard `restricted`).
    is_restricted: bool = False
    #: The cluster may give pods a user namespace, and the right to mount in it.
    may_use_fuse: bool = True
    #: The namespace admits pods with files and rights of their node.
    may_use_host: bool = True

    @property
    def fabric(self) -> PodFabric:
        """The fast network, if the task asks for it, every node has it, and the namespace admits it."""
        if self.request.network_tier != "best":
            return NO_FABRIC
        chosen = fabrics.fabric_of(
            self.nodes,
            self.size.accelerators,
            self.settings.rdma,
            may_be_privileged=self.settings.privileged_network,
        )
        is_denied = chosen.needs_host and (self.is_restricted or not self.may_use_host)
        return NO_FABRIC if is_denied else chosen

    @property
    def network_note(self) -> str | None:
        """What became of `network_tier: best`, for the job's log."""
        if self.request.network_tier != "best":
            return None
        if self.fabric != NO_FABRIC:
            return f"network_tier best: {self.fabric.name}"
        is_denied = self.is_restricted or not self.may_use_host
        return fabrics.missing_note(self.nodes, self.size.accelerators, self.settings.rdma, denied=is_denied)

    @property
    def fuse_device(self) -> str | None:
        """What the pods request to mount buckets; None if they do not, or get it from `pod_config`."""
        modes = self.request.mount_modes
        is_possible = self.may_use_fuse and self.settings.fuse and not self.is_restricted
        config = self.options.pod_config
        has_host_users = (config.get("spec") or {}).get("hostUsers") is True  # SYS_ADMIN would be the node's own
        if not modes or not is_possible or has_host_users or pod_config.grants_fuse(config):
            return None
        return fuse.device_of(self.nodes, is_needed="MOUNT" in modes or self.request.num_nodes > 1)

    @property
    def grace_s(self) -> int:
        """How long a pod has between SIGTERM and SIGKILL. A spot node's vendor may leave less than the pod asks for."""
        marks = [node.mark.notice_s for node in self.nodes if node.mark is not None]
        return int(min([self.settings.grace_s, *marks]))

    @property
    def requests(self) -> dict[str, float]:
        """What one pod requests, as numbers."""
        amounts = {"cpu": self.size.vcpus, "memory": self.size.memory_gib * 2.0**30}
        if self.size.accelerators:
            amounts[resource_name(self.size.accelerators[0], self.nodes)] = float(self.size.accelerators[1])
        amounts |= {name: parse_quantity(amount) for name, amount in self.fabric.resources.items()}
        if self.request.disk_gib:
            amounts["ephemeral-storage"] = self.request.disk_gib * 2.0**30
        if (device := self.fuse_device) is not None:
            amounts[device] = 1.0
        return amounts


def build_pod(template: PodTemplate, rank: int, anchor_uid: str) -> dict[str, Any]:
    """The pod of a rank. Raises SectionError if `pod_config` does not fit."""
    owner, options = template.request.owner, template.options
    base = {"metadata": _metadata(template, rank), "spec": _spec(template, rank)}
    add_fabric(template.fabric, base)
    pod: dict[str, Any] = pod_config.merged(base, options.pod_config)
    metadata = pod["metadata"]
    metadata["name"] = names.pod_name(owner, rank)
    if template.fuse_device is not None:
        metadata["annotations"][names.FUSE] = template.fuse_device
    metadata["ownerReferences"] = [
        {"apiVersion": "v1", "kind": "Secret", "name": names.anchor_name(owner), "uid": anchor_uid}
    ]
    pod["spec"]["schedulingGates"] = [*(pod["spec"].get("schedulingGates") or ()), {"name": names.GATE}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod["spec"]}


def _metadata(template: PodTemplate, rank: int) -> dict[str, Any]:
    request, options = template.request, template.options
    labels = names.valid_labels(request.labels) | options.labels
    annotations = _KEEP | options.annotations
    if options.queue:
        labels[QUEUE] = options.queue
        if request.num_nodes > 1:
            labels[GROUP] = names.anchor_name(request.owner)
            annotations |= {GROUP_SIZE: str(request.num_nodes), RETRIABLE: "false"}
    if options.max_run_duration:
        annotations[MAX_RUN_DURATION] = str(_duration_s(options.max_run_duration))
    place = {"zone": request.offer.zone, "type": request.offer.instance_type, "market": request.offer.market.value}
    return {
        "labels": labels | names.owner_labels(request.owner, names.POD_KIND) | {names.RANK: str(rank)},
        "annotations": annotations
        | {
            names.OWNER: names.owner_annotation(request.owner),
            names.PLACE: json.dumps(place),
            names.PROVISION_TIMEOUT: f"{options.provision_timeout_s:g}",
            names.ADMISSION_TIMEOUT: f"{options.admission_timeout_s:g}",
        },
    }


def _spec(template: PodTemplate, rank: int) -> dict[str, Any]:
    settings, options = template.settings, template.options
    anchor = names.anchor_name(template.request.owner)
    volumes = [_empty("state", None), _empty("shm", "Memory")]
    mounts = [{"name": "state", "mountPath": STATE_VOLUME}, {"name": "shm", "mountPath": "/dev/shm"}]
    if template.is_restricted:
        volumes.append(_empty("home", None))
        mounts.append({"name": "home", "mountPath": HOME_DIR})
    container: dict[str, Any] = {
        "name": pod_config.CONTAINER,
        "image": _image(template),
        "command": ["/bin/sh", "-c", _START],
        "env": _environment(template, rank, anchor),
        "resources": _resources(template),
        "volumeMounts": mounts,
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": template.grace_s,
        "automountServiceAccountToken": options.service_account is not None,
        "enableServiceLinks": False,
        "affinity": _affinity(template),
        "tolerations": _tolerations(template),
        "containers": [container],
        "volumes": volumes,
    }
    if (device := template.fuse_device) is not None:
        fuse.grant(spec, device)
    if options.service_account:
        spec["serviceAccountName"] = options.service_account
    if settings.agent_image:
        _add_python(spec, container, settings.agent_image)
    if template.is_restricted:
        _restrict(spec)
    return spec


def _image(template: PodTemplate) -> str:
    image = template.request.image_id or template.settings.image
    return image[len("docker:") :] if image.lower().startswith("docker:") else image


def _environment(template: PodTemplate, rank: int, anchor: str) -> list[dict[str, Any]]:
    env: list[dict[str, Any]] = [
        {"name": "PERDURE_BOOT", "valueFrom": {"secretKeyRef": {"name": anchor, "key": BOOT_KEY}}},
        {"name": "PERDURE_INIT", "valueFrom": {"secretKeyRef": {"name": anchor, "key": INIT_KEY}}},
        {"name": "PERDURE_RANK", "value": str(rank)},
        {"name": "PERDURE_GRACE_S", "value": str(template.grace_s)},
        {"name": "PERDURE_NODE_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
    ]
    if template.size.accelerators is None:
        env.append({"name": "NVIDIA_VISIBLE_DEVICES", "value": "none"})
    env += [{"name": name, "value": value} for name, value in template.fabric.env.items()]
    if (note := template.network_note) is not None:
        env.append({"name": "PERDURE_NOTE", "value": note})
    if template.is_restricted:
        env.append({"name": "HOME", "value": HOME_DIR})
    return env


def _resources(template: PodTemplate) -> dict[str, Any]:
    size, multiplier = template.size, template.options.limits_multiplier
    requests: dict[str, str] = {"cpu": f"{round(size.vcpus * 1000)}m", "memory": f"{round(size.memory_gib * 1024)}Mi"}
    limits = {"memory": f"{round(size.memory_gib * 1024 * (multiplier or 1.0))}Mi"}
    if multiplier is not None:
        limits["cpu"] = f"{round(size.vcpus * 1000 * multiplier)}m"
    if template.request.disk_gib:
        requests["ephemeral-storage"] = limits["ephemeral-storage"] = f"{template.request.disk_gib}Gi"
    if size.accelerators:
        resource = resource_name(size.accelerators[0], template.nodes)
        requests[resource] = limits[resource] = str(size.accelerators[1])
    for resource, amount in template.fabric.resources.items():
        requests[resource] = limits[resource] = amount
    return {"requests": requests, "limits": limits}


def _affinity(template: PodTemplate) -> dict[str, Any]:
    """On nodes of the offer: a term for each way in which they are labelled, since clusters mix them."""
    terms = [{"matchExpressions": one} for one in _unique(_expressions(template, node) for node in template.nodes)]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    affinity: dict[str, Any] = {"nodeAffinity": required} if terms else {}
    if template.request.num_nodes > 1:
        token = {names.TOKEN: names.digest_of(template.request.owner.token)}
        spread = {"labelSelector": {"matchLabels": token}, "topologyKey": "kubernetes.io/hostname"}
        affinity["podAntiAffinity"] = {
            "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 10, "podAffinityTerm": spread}]
        }
    return affinity


def _expressions(template: PodTemplate, node: NodeView) -> list[dict[str, Any]]:
    offer, settings = template.request.offer, template.settings
    known = markets.marks(settings.spot_label)
    entries = markets.expressions(offer.market, node.mark, known)
    if offer.zone != NO_ZONE:
        entries.append({"key": ZONE, "operator": "In", "values": [offer.zone]})
    if template.size.accelerators is None:
        entries += [{"key": label, "operator": "DoesNotExist"} for label in LABELS]
    else:
        label = next((one.label for one in node.accelerators if one.name == template.size.accelerators[0]), None)
        if label is not None:
            entries.append({"key": label[0], "operator": "In", "values": [label[1]]})
    if node.is_possible and node.instance_type:
        entries.append({"key": INSTANCE_TYPE, "operator": "In", "values": [node.instance_type]})
    elif settings.allowed_names:
        entries.append({"key": "kubernetes.io/hostname", "operator": "In", "values": list(settings.allowed_names)})
    allowed = next(
        (one for one in settings.allowed_labels if all(node.labels.get(key) == one[key] for key in one)), None
    )
    entries += [{"key": key, "operator": "In", "values": [value]} for key, value in (allowed or {}).items()]
    return entries


def _unique(listed: Any) -> list[list[dict[str, Any]]]:
    entries: list[list[dict[str, Any]]] = []
    for one in listed:
        if one and one not in entries:
            entries.append(one)
    return entries


def _tolerations(template: PodTemplate) -> list[dict[str, Any]]:
    known = markets.marks(template.settings.spot_label)
    entries: list[dict[str, Any]] = list(markets.tolerations(template.request.offer.market, known))
    if template.size.accelerators:
        entries += [{"key": key, "operator": "Exists"} for key in GPU_TAINTS]
    silent = {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": TOLERATE_SILENT_NODE_S}
    return [*entries, *({"key": key, **silent} for key in SOON_GONE_TAINTS)]


def _add_python(spec: dict[str, Any], container: dict[str, Any], image: str) -> None:
    """Copy a Python into the pod, for images without one."""
    mount = {"name": "python", "mountPath": PYTHON_DIR}
    spec["volumes"].append(_empty("python", None))
    container["volumeMounts"].append(mount)
    spec["initContainers"] = [
        {
            "name": "python",
            "image": image,
            "command": ["/bin/sh", "-c", f"cp -a /perdure/. {PYTHON_DIR}/"],
            "volumeMounts": [mount],
            "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}},
        }
    ]


def _restrict(spec: dict[str, Any]) -> None:
    """What the Pod Security Standard `restricted` demands."""
    profile = {"type": "RuntimeDefault"}
    spec["securityContext"] = {
        "runAsNonRoot": True,
        "runAsUser": 1000,
        "runAsGroup": 1000,
        "fsGroup": 1000,
        "seccompProfile": profile,
    }
    for container in [*spec["containers"], *spec.get("initContainers", ())]:
        container["securityContext"] = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def _empty(name: str, medium: str | None) -> dict[str, Any]:
    return {"name": name, "emptyDir": {"medium": medium} if medium else {}}


def _duration_s(text: str) -> int:
    """Seconds of a duration such as 90m, 12h or 2d; a plain number is seconds."""
    units = {"s": 1, "m": 60, "h": 3600, "d": 86400}
    number, unit = (text[:-1], units[text[-1]]) if text[-1:] in units else (text, 1)
    return round(float(number) * unit) if number.replace(".", "", 1).isdecimal() else 86400


def gpu_request(pod: Mapping[str, Any]) -> int:
    """How many accelerators the pod requests."""
    requests = pod["spec"]["containers"][0]["resources"].get("requests") or {}
    return sum(int(amount) for resource, amount in requests.items() if resource in GPU_RESOURCES)


def is_spot(place: Mapping[str, Any]) -> bool:
    return place.get("market") == Market.SPOT.value
