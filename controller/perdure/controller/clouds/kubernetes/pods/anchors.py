"""The anchor of an attempt: a Secret that is created first, says whether the launch is complete, and outlives the pods.

It holds the program that the pods run, owns them, and remembers how each ended: a pod's object vanishes with the pod.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from perdure.controller.clouds.base.protocol import LaunchRequest
from perdure.controller.clouds.bootstrap.render import init_program, render_boot_program
from perdure.controller.clouds.kubernetes.api.errors import ApiError
from perdure.controller.clouds.kubernetes.cluster import Cluster
from perdure.controller.clouds.kubernetes.pods import names
from perdure.controller.clouds.kubernetes.pods.pod_spec import BOOT_KEY, INIT_KEY, STATE_DIR
from perdure.recovery.reasons import Reason

COMPLETE = f"{names.DOMAIN}complete"  # "yes" once every pod exists
NUM_NODES = f"{names.DOMAIN}nodes"
TERMINATED = f"{names.DOMAIN}terminated"  # epoch seconds of the controller's own request
_END = f"{names.DOMAIN}end-"  # + rank: how the pod ended
KEEP_S = 3600.0


@dataclass(frozen=True)
class RememberedEnd:
    """How a pod ended. Times are epoch seconds."""

    reason: Reason
    launched_at: float
    ended_at: float | None  # None: it is ending
    message: str = ""


def build_anchor(request: LaunchRequest, controller_url: str | None) -> dict[str, Any]:
    """`controller_url`: where pods reach the controller; None: as all machines."""
    place = {
        "zone": request.offer.zone,
        "type": request.offer.instance_type,
        "market": request.offer.market.value,
    }
    # Nothing in a pod can be powered off: it ends with its first process.
    bootstrap = replace(request.bootstrap, endpoint=controller_url) if controller_url else request.bootstrap
    boot = render_boot_program(bootstrap, None, PERDURE_STATE_DIR=STATE_DIR, PERDURE_POWER_OFF=":")
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": names.anchor_name(request.owner),
            "labels": names.owner_labels(request.owner, names.ANCHOR_KIND),
            "annotations": {
                names.OWNER: names.owner_annotation(request.owner),
                names.PLACE: json.dumps(place),
                COMPLETE: "no",
                NUM_NODES: str(request.num_nodes),
            },
        },
        "stringData": {BOOT_KEY: boot, INIT_KEY: init_program()},
    }


def is_complete(anchor: Mapping[str, Any]) -> bool:
    return _annotations(anchor).get(COMPLETE) == "yes"


def num_nodes(anchor: Mapping[str, Any]) -> int:
    text = _annotations(anchor).get(NUM_NODES, "")
    return int(text) if text.isdecimal() else 0


def terminated_at(anchor: Mapping[str, Any]) -> float | None:
    """When the controller asked for the end of the pods; None if it did not."""
    try:
        return float(_annotations(anchor)[TERMINATED])
    except (KeyError, ValueError):
        return None


def place_of(one: Mapping[str, Any]) -> dict[str, str]:
    """The zone, type and market that are written on an anchor or a pod."""
    try:
        place = json.loads(_annotations(one)[names.PLACE])
        return {name: str(place[name]) for name in ("zone", "type", "market")}
    except (KeyError, TypeError, ValueError):
        return {"zone": "", "type": "", "market": ""}


def end_of(anchor: Mapping[str, Any], rank: int) -> RememberedEnd | None:
    try:
        data = json.loads(_annotations(anchor)[f"{_END}{rank}"])
        return RememberedEnd(Reason(data["reason"]), data["launched_at"], data["ended_at"], data.get("message", ""))
    except (KeyError, TypeError, ValueError):
        return None


def remember_end(cluster: Cluster, anchor: str, rank: int, end: RememberedEnd) -> None:
    """Write how a pod ended on its anchor. An anchor that is gone needs no memory. Raises what `ApiClient` does."""
    data = {"reason": end.reason.value, "launched_at": end.launched_at, "ended_at": end.ended_at}
    text = json.dumps(data | {"message": end.message[:1000]})
    annotate(cluster, anchor, {f"{_END}{rank}": text})


def forget_end(cluster: Cluster, anchor: str, rank: int) -> None:
    """Remove how a pod ended: it did not. Raises what `ApiClient` does."""
    annotate(cluster, anchor, {f"{_END}{rank}": None})


def annotate(cluster: Cluster, anchor: str, annotations: Mapping[str, str | None]) -> bool:
    """Set annotations of an anchor; None removes one. False if it does not exist."""
    try:
        cluster.client.patch(cluster.path("secrets", anchor), {"metadata": {"annotations": dict(annotations)}})
    except ApiError as error:
        if error.status != 404:
            raise
        return False
    return True


def _annotations(one: Mapping[str, Any]) -> Mapping[str, str]:
    return one["metadata"].get("annotations") or {}
