"""Names, labels and annotations of an attempt's objects. They follow from the owner alone, so launches repeat safely.

An attempt has an anchor, a Secret, and one pod per rank: `pd-<job>-<task>-<generation>-<rank>-<digest of the token>`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from perdure.controller.clouds.base.protocol import Owner

DOMAIN = "perdure.dev/"
CONTROLLER = f"{DOMAIN}controller"
TOKEN = f"{DOMAIN}token"
JOB = f"{DOMAIN}job"
TASK = f"{DOMAIN}task"
GENERATION = f"{DOMAIN}generation"
RANK = f"{DOMAIN}rank"
KIND = f"{DOMAIN}kind"
OWNER = f"{DOMAIN}owner"  # annotation: the owner as JSON
PLACE = f"{DOMAIN}place"  # annotation: zone, instance type and market
PROVISION_TIMEOUT = f"{DOMAIN}provision-timeout"  # annotation: how long the pod may wait for a node, in seconds
ADMISSION_TIMEOUT = f"{DOMAIN}admission-timeout"  # annotation: how long it may wait behind gates
FUSE = f"{DOMAIN}fuse"  # annotation: the device for which the pod got SYS_ADMIN in its user namespace
GATE = f"{DOMAIN}launch"  # a pod is scheduled once its attempt is complete
ANCHOR_KIND, POD_KIND = "anchor", "pod"

_POD_NAME = re.compile(r"pd-(?P<job>\d+)-(?P<task>\d+)-(?P<generation>\d+)-(?P<rank>\d+)-(?P<digest>[0-9a-f]{10})")
_LABEL_VALUE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_LABEL_NAME = re.compile(r"(?:[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")


def digest_of(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()[:10]


def pod_name(owner: Owner, rank: int) -> str:
    return f"pd-{owner.job_id}-{owner.task}-{owner.generation}-{rank}-{digest_of(owner.token)}"


def anchor_name(owner: Owner) -> str:
    return f"pd-{owner.job_id}-{owner.task}-{owner.generation}-anchor-{digest_of(owner.token)}"


def anchor_of(pod: str) -> str | None:
    """The anchor of a pod with that name; None if no pod of an attempt has such a name."""
    match = _POD_NAME.fullmatch(pod)
    return f"pd-{match['job']}-{match['task']}-{match['generation']}-anchor-{match['digest']}" if match else None


def rank_of(pod: str) -> int:
    match = _POD_NAME.fullmatch(pod)
    assert match is not None, pod
    return int(match["rank"])


def group_selector(pod: str) -> str:
    """The label selector of all pods of the attempt."""
    return f"{TOKEN}={pod.rpartition('-')[2]}"


def controller_label(controller: str) -> str:
    """The label's value: the controller's id, or its digest if that is no valid value."""
    is_valid = _LABEL_VALUE.fullmatch(controller) is not None
    return controller if is_valid else hashlib.sha256(controller.encode()).hexdigest()[:32]


def owner_labels(owner: Owner, kind: str) -> dict[str, str]:
    return {
        CONTROLLER: controller_label(owner.controller),
        JOB: str(owner.job_id),
        TASK: str(owner.task),
        GENERATION: str(owner.generation),
        TOKEN: digest_of(owner.token),
        KIND: kind,
        "app.kubernetes.io/managed-by": "perdure",
    }


def owner_annotation(owner: Owner) -> str:
    return json.dumps(asdict(owner), sort_keys=True)


def owner_of(one: Mapping[str, Any]) -> Owner | None:
    """The owner that is written on an object; None if none is, or what is written is invalid."""
    try:
        return Owner(**json.loads(one["metadata"]["annotations"][OWNER]))
    except (KeyError, TypeError, ValueError):
        return None


def valid_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Those of the user's labels that Kubernetes admits as labels. A value with other characters is simplified."""
    simplified = {name: re.sub(r"[^A-Za-z0-9._-]", "_", value)[:63].strip("._-") for name, value in labels.items()}
    return {name: value for name, value in simplified.items() if _LABEL_NAME.fullmatch(name)}
