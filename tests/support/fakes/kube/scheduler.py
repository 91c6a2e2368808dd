"""The scheduler: gives each pod without gates a node that it fits, or says why there is none."""

from __future__ import annotations

from collections import Counter

from support.fakes.kube.admission import condition, set_condition
from support.fakes.kube.faults import Faults
from support.fakes.kube.selectors import fits_node, quantity, requests
from support.fakes.kube.store import Object, Store

ZONE = "topology.kubernetes.io/zone"


def schedule(store: Store, faults: Faults) -> bool:
    """Whether anything changed."""
    changed = False
    for pod in store.all("pods"):
        metadata, spec = pod["metadata"], pod["spec"]
        if spec.get("nodeName") or spec.get("schedulingGates") or "deletionTimestamp" in metadata:
            continue
        node, message = _find_node(store, pod, faults)
        new = {**pod, "metadata": dict(metadata), "spec": dict(spec), "status": dict(pod["status"])}
        if node is not None:
            new["spec"]["nodeName"] = node
            set_condition(new, condition("PodScheduled", "True", ""))
        else:
            set_condition(new, condition("PodScheduled", "False", "Unschedulable", message))
        if new != pod:
            store.update("pods", metadata["namespace"], new)
            changed = True
    return changed


def _find_node(store: Store, pod: Object, faults: Faults) -> tuple[str | None, str]:
    reasons: Counter[str] = Counter()
    nodes = store.all("nodes")
    for node in nodes:
        why = fits_node(pod, node) or _missing(store, pod, node, nodes, faults)
        if why is None:
            return node["metadata"]["name"], ""
        reasons[why] += 1
    listed = ", ".join(f"{count} {why}" for why, count in sorted(reasons.items()))
    return None, f"0/{len(nodes)} nodes are available: {listed}. preemption: 0/{len(nodes)} nodes are available."


def _missing(store: Store, pod: Object, node: Object, nodes: list[Object], faults: Faults) -> str | None:
    living = [one for one in store.all("pods") if one["status"]["phase"] in ("Pending", "Running")]
    here = [one for one in living if one["spec"].get("nodeName") == node["metadata"]["name"]]
    allocatable = {name: quantity(amount) for name, amount in node["status"]["allocatable"].items()}
    zone = node["metadata"]["labels"].get(ZONE, "")
    if zone in faults.capacity:
        of_zone = {one["metadata"]["name"] for one in nodes if one["metadata"]["labels"].get(ZONE) == zone}
        if sum(one["spec"].get("nodeName") in of_zone for one in living) >= faults.capacity[zone]:
            return "Too many pods"
    if len(here) >= allocatable.get("pods", 110):
        return "Too many pods"
    for name, amount in requests(pod).items():
        if sum(requests(one).get(name, 0.0) for one in here) + amount > allocatable.get(name, 0.0) + 1e-6:
            return f"Insufficient {name}"
    return None
