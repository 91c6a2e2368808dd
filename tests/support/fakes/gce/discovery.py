"""Google's descriptions of compute v1 and of the APIs about a project."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from support.fakes.google_discovery import Call, Discovery, Invalid

__all__ = ["MAY", "Call", "Invalid", "check", "check_answer", "read"]

MAY = "projects.testIamPermissions"  # of Cloud Resource Manager

_COMPUTE = Discovery("compute", "v1")
_PROJECTS = Discovery("cloudresourcemanager", "v3")
_IAM = Discovery("iam", "v1")
check = _COMPUTE.check


def read(http_method: str, path: str, query: Mapping[str, str], body: bytes) -> Call:
    """Parse a request. Raises Invalid."""
    return _of_path(path).read(http_method, path, query, body)


def check_answer(call: Call, answer: Mapping[str, Any]) -> None:
    """Raises Invalid if Google cannot return this."""
    _of_method(call.method).check_answer(call, answer)


def _of_path(path: str) -> Discovery:
    return _PROJECTS if path.startswith("/v3/") else _IAM if path.startswith("/v1/") else _COMPUTE


def _of_method(name: str) -> Discovery:
    if not name.startswith("projects."):
        return _COMPUTE
    return _IAM if name.count(".") > 1 else _PROJECTS
