"""The published OpenAPI schemas, if the package `kubernetes-validate` is installed: unknown fields are errors."""

from __future__ import annotations

from typing import Any

VERSIONS = ("1.27", "1.32", "1.37")

try:
    import kubernetes_validate
except ImportError:  # without the package, the fake accepts every field
    kubernetes_validate = None


def is_available() -> bool:
    return kubernetes_validate is not None


def schema_errors(one: dict[str, Any], versions: tuple[str, ...] = VERSIONS[-1:]) -> str:
    """What is wrong with the object in these versions; empty if nothing is, or there are no schemas."""
    if kubernetes_validate is None or "apiVersion" not in one:
        return ""
    for version in versions:
        try:
            kubernetes_validate.validate(one, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            return f"{version}: {'.'.join(map(str, error.path))}: {error.message}"
    return ""
