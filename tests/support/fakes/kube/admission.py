"""What the API server checks and adds before it stores an object: schemas, defaults, quota, Pod Security Standards."""

from __future__ import annotations

import base64
import re
from typing import Any

from support.fakes.kube.faults import Faults
from support.fakes.kube.schemas import schema_errors
from support.fakes.kube.selectors import canonical, quantity
from support.fakes.kube.store import Object, Rejected, Store

NAME = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
LABEL_VALUE = r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?"
LABEL_NAME = r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
QUEUE = "kueue.x-k8s.io/queue-name"
KUEUE_GATE = "kueue.x-k8s.io/admission"
KUEUE_FINALIZER = "kueue.x-k8s.io/managed"
MAX_SECRET_BYTES = 1 << 20
MAX_ARGUMENT_BYTES = 128 << 10  # Linux's limit of one argument


def check(store: Store, resource: str, one: Object, faults: Faults) -> None:
    """Raises Rejected, as the API server would."""
    metadata = one.get("metadata") or {}
    name = metadata.get("name", "")
    if not re.fullmatch(NAME, name) or len(name) > 253:
        raise Rejected(422, "Invalid", f'{resource} "{name}" is invalid: metadata.name: Invalid value: "{name}"')
    for label, value in (metadata.get("labels") or {}).items():
        if not re.fullmatch(LABEL_NAME, label) or not re.fullmatch(LABEL_VALUE, value) or len(value) > 63:
            raise Rejected(422, "Invalid", f"metadata.labels: Invalid value: {label!r}={value!r}")
    if errors := schema_errors(one):
        raise Rejected(400, "BadRequest", f"strict decoding error: {errors}")
    if resource == "secrets" and sum(len(value) for value in (one.get("stringData") or {}).values()) > MAX_SECRET_BYTES:
        raise Rejected(422, "Invalid", "data: Too long: may not be more than 1048576 bytes")
    if resource == "pods":
        _check_pod(store, one, faults)


def _check_pod(store: Store, pod: Object, faults: Faults) -> None:
    name, spec = pod["metadata"]["name"], pod["spec"]
    if len(name) > 63:
        raise Rejected(422, "Invalid", f'Pod "{name}" is invalid: spec.hostname: Too long')
    for container in spec["containers"]:
        if any(len(word.encode()) > MAX_ARGUMENT_BYTES for word in container.get("command") or ()):
            raise Rejected(422, "Invalid", "argument list too long")
        resources = container.get("resources") or {}
        limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
        for resource, amount in limits.items():
            wanted = requests.setdefault(resource, amount) if requests or "/" in resource else amount
            if quantity(wanted) > quantity(amount):
                raise Rejected(422, "Invalid", f'Pod "{name}" is invalid: requests of {resource} exceed its limit')
            if "/" in resource and quantity(wanted) != quantity(amount):
                raise Rejected(422, "Invalid", f'Pod "{name}" is invalid: {resource}: must be equal to limit')
        if any("/" in resource and resource not in limits for resource in requests):
            raise Rejected(
                422, "Invalid", f'Pod "{name}" is invalid: Limit must be set for non overcommitable resources'
            )
    if faults.quota_pods is not None and len(store.all("pods")) >= faults.quota_pods:
        used = len(store.all("pods"))
        raise Rejected(
            403,
            "Forbidden",
            f'pods "{name}" is forbidden: exceeded quota: compute, requested: pods=1, used: pods={used}, '
            f"limited: pods={faults.quota_pods}",
        )
    if faults.baseline and (why := _baseline_violation(spec)):
        raise Rejected(403, "Forbidden", f'pods "{name}" is forbidden: violates PodSecurity "baseline:latest": {why}')
    if faults.restricted and (why := _restricted_violation(spec)):
        raise Rejected(403, "Forbidden", f'pods "{name}" is forbidden: violates PodSecurity "restricted:latest": {why}')


_BASELINE_CAPABILITIES = {
    *("AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE", "SETFCAP"),
    *("SETGID", "SETPCAP", "SETUID", "SYS_CHROOT"),
}


def _baseline_violation(spec: Object) -> str | None:
    """kubernetes.io/docs/concepts/security/pod-security-standards, as far as pods of a test can violate it."""
    for one in [*spec["containers"], *(spec.get("initContainers") or ())]:
        own = one.get("securityContext") or {}
        if own.get("privileged"):
            return "privileged"
        if added := set((own.get("capabilities") or {}).get("add") or ()) - _BASELINE_CAPABILITIES:
            return f"non-default capabilities ({', '.join(sorted(added))})"
        if (own.get("appArmorProfile") or {}).get("type") == "Unconfined":
            return "forbidden AppArmor profile"
    if any(spec.get(name) for name in ("hostNetwork", "hostPID", "hostIPC")):
        return "host namespaces"
    if any("hostPath" in volume for volume in spec.get("volumes") or ()):
        return "hostPath volumes"
    return None


def _restricted_violation(spec: Object) -> str | None:
    """kubernetes.io/docs/concepts/security/pod-security-standards, as far as pods of a test can violate it."""
    pod_level = spec.get("securityContext") or {}
    for one in [*spec["containers"], *(spec.get("initContainers") or ())]:
        own = one.get("securityContext") or {}
        if own.get("allowPrivilegeEscalation") is not False:
            return "allowPrivilegeEscalation != false"
        if "ALL" not in ((own.get("capabilities") or {}).get("drop") or ()):
            return "unrestricted capabilities"
        if own.get("privileged") or set((own.get("capabilities") or {}).get("add") or ()) - {"NET_BIND_SERVICE"}:
            return "privileged"
        if not own.get("runAsNonRoot", pod_level.get("runAsNonRoot")):
            return "runAsNonRoot != true"
        if own.get("runAsUser", pod_level.get("runAsUser")) == 0:
            return "runAsUser=0"
        profile = own.get("seccompProfile") or pod_level.get("seccompProfile") or {}
        if profile.get("type") not in ("RuntimeDefault", "Localhost"):
            return "seccompProfile"
    if any(spec.get(name) for name in ("hostNetwork", "hostPID", "hostIPC")):
        return "host namespaces"
    if any("hostPath" in volume for volume in spec.get("volumes") or ()):
        return "hostPath volumes"
    return None


def with_defaults(resource: str, one: Object, faults: Faults) -> Object:
    if resource == "secrets":
        one.setdefault("type", "Opaque")
        given = one.pop("stringData", None) or {}
        data = one.setdefault("data", {})
        data |= {name: base64.b64encode(value.encode()).decode() for name, value in given.items()}
    if resource == "pods":
        if not faults.user_namespaces:
            one["spec"].pop("hostUsers", None)
        one["spec"] = {
            "restartPolicy": "Always",
            "terminationGracePeriodSeconds": 30,
            "dnsPolicy": "ClusterFirst",
            "schedulerName": "default-scheduler",
            "priority": 0,
            **one["spec"],
        }
        for container in one["spec"]["containers"]:
            resources = container.get("resources") or {}
            for part in ("requests", "limits"):
                amounts = resources.get(part) or {}
                amounts |= {name: canonical(amount) for name, amount in amounts.items()}
        one["status"] = {"phase": "Pending", "qosClass": "Burstable"}
        if QUEUE in (one["metadata"].get("labels") or {}):  # as Kueue's webhook does it
            one["spec"]["schedulingGates"] = [*one["spec"].get("schedulingGates", ()), {"name": KUEUE_GATE}]
            one["metadata"]["finalizers"] = [KUEUE_FINALIZER]
        if one["spec"].get("schedulingGates"):
            gated = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}
            one["status"]["conditions"] = [
                gated | {"message": "Scheduling is blocked due to non-empty scheduling gates"}
            ]
    return one


MUTABLE = ("schedulingGates", "tolerations", "activeDeadlineSeconds")


def check_update(resource: str, old: Object, new: Object) -> None:
    """A pod's spec is immutable but for a few fields, and its gates can only be removed."""
    if resource != "pods":
        return
    before, after = dict(old["spec"]), dict(new["spec"])
    gates = [{one["name"] for one in spec.pop("schedulingGates", None) or ()} for spec in (before, after)]
    if not gates[1] <= gates[0]:
        raise Rejected(422, "Invalid", "spec.schedulingGates: Forbidden: only deletion is allowed")
    changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)} - set(MUTABLE)
    if changed:
        raise Rejected(422, "Invalid", f"spec: Forbidden: pod updates may not change fields other than …: {changed}")


def condition(kind: str, status: str, reason: str, message: str = "") -> dict[str, Any]:
    return {"type": kind, "status": status, "reason": reason, "message": message}


def set_condition(pod: Object, one: dict[str, Any]) -> None:
    others = [other for other in pod["status"].get("conditions") or () if other["type"] != one["type"]]
    pod["status"]["conditions"] = [*others, one]
