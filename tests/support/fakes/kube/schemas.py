"""The published OpenAPI schemas, if the package `kubernetes-validate` is installed: unknown fields are errors."""

from __future__ import annotations

import copy
import functools
from typing import Any

VERSIONS = ("1.27", "1.32", "1.37")

try:
    import kubernetes_validate
except ImportError:  # without the package, the fake accepts every field
    kubernetes_validate = None
else:  # it reads megabytes of schemas anew for every object
    kubernetes_validate.utils.schema_contents = functools.cache(kubernetes_validate.utils.schema_contents)


def is_available() -> bool:
    return kubernetes_validate is not None


def schema_errors(one: dict[str, Any], versions: tuple[str, ...] = VERSIONS) -> str:
    """What is wrong with the object in these versions; empty if nothing is, or there are no schemas."""
    if kubernetes_validate is None or "apiVersion" not in one:
        return ""
    for version in versions:
        try:
            kubernetes_validate.validate(_known_to(version, one), version, strict=True)
        except kubernetes_validate.ValidationError as error:
            return f"{version}: {'.'.join(map(str, error.path))}: {error.message}"
    return ""


def _known_to(version: str, one: dict[str, Any]) -> dict[str, Any]:
    """Without two fields that 1.27 has not: the profile of a container with FUSE (1.30), whose server drops it, and the
    `restartPolicy` of GKE's network sidecars (1.29), without which GKE offers no such network."""
    if version != "1.27" or one.get("kind") != "Pod":
        return one
    older = copy.deepcopy(one)
    for kind in ("containers", "initContainers"):
        for container in older["spec"].get(kind) or ():
            container.pop("restartPolicy", None)
            (container.get("securityContext") or {}).pop("appArmorProfile", None)
    return older
