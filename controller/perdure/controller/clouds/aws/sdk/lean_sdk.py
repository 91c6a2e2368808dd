"""Loads botocore's service descriptions without the parts that are not used here, to save memory.

EC2's description takes 24 MiB in botocore's form, and each region's client one more, mostly for unused operations and
documentation. Of other services only the documentation is dropped, since credentials may need any operation. Of the
list of endpoints, 4 MiB, only those of services that may be called are loaded.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from botocore.loaders import JSONFileLoader, Loader, create_loader

OPERATIONS: dict[str, frozenset[str]] = {
    "ec2": frozenset(
        {
            "AllocateAddress",
            "AssociateAddress",
            "AttachVolume",
            "AuthorizeSecurityGroupIngress",
            "CreateSecurityGroup",
            "CreateTags",
            "CreateVolume",
            "DeleteSecurityGroup",
            "DeleteVolume",
            "DescribeAddresses",
            "DescribeAvailabilityZones",
            "DescribeImages",
            "DescribeInstanceTypeOfferings",
            "DescribeInstanceTypes",
            "DescribeInstances",
            "DescribeRegions",
            "DescribeSecurityGroups",
            "DescribeSpotPriceHistory",
            "DescribeSubnets",
            "DescribeVolumes",
            "DescribeVpcs",
            "GetConsoleOutput",
            "GetSpotPlacementScores",
            "ModifyInstanceAttribute",
            "ReleaseAddress",
            "RevokeSecurityGroupIngress",
            "RunInstances",
            "StartInstances",
            "StopInstances",
            "TerminateInstances",
        }
    ),
    "iam": frozenset(
        {
            "AddRoleToInstanceProfile",
            "CreateInstanceProfile",
            "CreateRole",
            "GetInstanceProfile",
            "GetRole",
            "PutRolePolicy",
            "SimulatePrincipalPolicy",
        }
    ),
    "ssm": frozenset({"GetParameter"}),
}
"""The operations in use of services with large descriptions. Their clients have no other methods."""

ENDPOINTS = frozenset({"api.pricing", "ec2", "fis", "iam", "oidc", "portal.sso", "servicequotas", "sqs", "ssm", "sts"})
"""The services in use, and those that credentials may need, by their names in the list of endpoints."""


def loader(data_path: str | None) -> Loader:
    """A `data_loader` for a session. `data_path`: the session's setting for custom descriptions."""
    result = create_loader(data_path)
    result.file_loader = _LeanFileLoader()
    return result


class _LeanFileLoader(JSONFileLoader):
    """`file_path`: …/SERVICE/VERSION/KIND, or …/KIND, without the extension."""

    def load_file(self, file_path: str) -> Any:
        text = _text(Path(f"{file_path}.json"))
        if text is None:
            return None
        *_, service, _version, kind = Path(file_path).parts
        if kind == "service-2" and service in OPERATIONS:
            return _with_operations(text, OPERATIONS[service])
        if kind == "endpoints":
            return _parse_part(text, _skip_blanks(text, 0), (), _is_endpoint_used)[0]
        return json.loads(text, object_pairs_hook=_without_documentation)


def _text(path: Path) -> str | None:
    if path.is_file():
        return path.read_text(encoding="utf-8")
    packed = path.with_name(f"{path.name}.gz")
    return gzip.decompress(packed.read_bytes()).decode() if packed.is_file() else None


def _without_documentation(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Documentation is text; a `documentation` of another type is a member of a shape."""
    return {name: value for name, value in pairs if name != "documentation" or not isinstance(value, str)}


def _with_operations(text: str, called: frozenset[str]) -> dict[str, Any]:
    """The description with the `called` operations and the shapes that they reference."""
    described: dict[str, int] = {}

    def keep(path: _Path, at: int) -> bool | None:
        match path:
            case () | ("operations" | "shapes",):
                return None
            case ("operations", name):
                return name in called
            case ("shapes", str(name)):
                described[name] = at
                return False
        return True

    model, _ = _parse_part(text, _skip_blanks(text, 0), (), keep)
    pending: list[Any] = [model["operations"]]
    while pending:
        match pending.pop():
            case list() as items:
                pending.extend(items)
            case dict() as one:
                pending.extend(one.values())
                name = one.get("shape")
                if isinstance(name, str) and name not in model["shapes"]:
                    model["shapes"][name], _ = _read(text, described[name])
                    pending.append(model["shapes"][name])
    return dict(model)


def _is_endpoint_used(path: _Path, _at: int) -> bool | None:
    match path:
        case () | ("partitions",) | ("partitions", _) | ("partitions", _, "services"):
            return None
        case ("partitions", _, "services", name):
            return name in ENDPOINTS
    return True


# ---- parsing parts of a JSON text, member by member. Parsing the whole would interleave dropped and kept objects in
# memory, and the process could return little of it to the system.

_Path = tuple[str | int, ...]
_read = json.JSONDecoder(object_pairs_hook=_without_documentation).raw_decode
_skip = json.JSONDecoder().raw_decode
_BLANK = re.compile(r"[ \t\r\n]*")


def _parse_part(text: str, at: int, path: _Path, keep: Callable[[_Path, int], bool | None]) -> tuple[Any, int]:
    """The kept parts of the value that begins at `at`, and the index of its end.

    `keep`: (path, index of the value's begin) → keep all of it (True), nothing (False), or decide per member (None).
    """
    whole = keep(path, at)
    if whole is not None:
        return _read(text, at) if whole else (_DROPPED, _skip(text, at)[1])
    is_list, close = text[at] == "[", "]" if text[at] == "[" else "}"
    members: dict[str | int, Any] = {}
    at = _skip_blanks(text, at + 1)
    while text[at] != close:
        name: str | int = len(members)
        if not is_list:
            name, at = _skip(text, at)
            at = _skip_blanks(text, _skip_blanks(text, at) + 1)  # the colon
        members[name], at = _parse_part(text, at, (*path, name), keep)
        at = _skip_blanks(text, at)
        if text[at] == ",":
            at = _skip_blanks(text, at + 1)
    result = {name: value for name, value in members.items() if value is not _DROPPED}
    return (list(result.values()) if is_list else result), at + 1


_DROPPED = object()


def _skip_blanks(text: str, at: int) -> int:
    """The index after the blanks at `at`."""
    match = _BLANK.match(text, at)
    assert match is not None
    return match.end()
