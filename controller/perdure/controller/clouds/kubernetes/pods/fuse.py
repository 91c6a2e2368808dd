"""FUSE in pods: `/dev/fuse` from a device plugin, and the right to mount in a user namespace of the pod's own.

The capability SYS_ADMIN is worth nothing outside that namespace. A cluster that does not have user namespaces drops the
field `hostUsers` silently, and the pod would have the capability on its node: such a pod never runs (`is_confined`).
Sources: kubernetes.io/docs/concepts/workloads/pods/user-namespaces, and the device plugins' own pages.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from perdure.controller.clouds.kubernetes.nodes.node_view import NodeView
from perdure.controller.clouds.kubernetes.nodes.quantities import parse_quantity
from perdure.controller.clouds.kubernetes.pods import names

# Such as smarter-devices/fuse, github.com/fuse, devic.es/dev_fuse.
_DEVICE = re.compile(r"[a-z0-9.-]+/(dev[-_])?fuse")


def device_of(nodes: Sequence[NodeView], *, is_needed: bool) -> str | None:
    """The resource that gives a pod /dev/fuse on `nodes`; None if they have none.

    All of them must offer it, since a request keeps pods off the others. `is_needed`: one is enough.
    """
    offered = [{name for name, amount in node.allocatable.items() if _is_device(name, amount)} for node in nodes]
    if not offered:
        return None
    common = set.union(*offered) if is_needed else set.intersection(*offered)
    return min(common, default=None)


def _is_device(name: str, amount: Any) -> bool:
    return _DEVICE.fullmatch(name) is not None and parse_quantity(amount) >= 1


def grant(spec: dict[str, Any], device: str) -> None:
    """Let the task's container mount file systems. Its pod needs the annotation `names.FUSE`: see `is_confined`."""
    container = spec["containers"][0]
    spec["hostUsers"] = False
    context = container.setdefault("securityContext", {})
    capabilities = context.setdefault("capabilities", {})
    capabilities["add"] = [*capabilities.get("add", ()), "SYS_ADMIN"]
    context["appArmorProfile"] = {"type": "Unconfined"}  # the default profile denies mount(2)
    for part in ("requests", "limits"):
        container["resources"][part][device] = "1"


def is_confined(pod: Mapping[str, Any]) -> bool:
    """Whether a pod that exists has no rights on its node by `grant`, whichever call created it, and for what."""
    is_granted = names.FUSE in (pod["metadata"].get("annotations") or {})
    return not is_granted or pod["spec"].get("hostUsers") is False
