"""AWS's own descriptions of its services, which botocore builds clients from, cut down to what is called here.

EC2's takes 24 MiB as botocore reads it, and each region's client one more: nearly all of it for operations that are
never called, and documentation. Other services lose their documentation alone: credentials may need any of those. Of
the list of every service's endpoints, 4 MiB, those of the services that may be called are kept.
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
            "GetSpotPlacementScores",
            "ReleaseAddress",
            "RevokeSecurityGroupIngress",
            "RunInstances",
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
"""What is called of the services whose descriptions are large; a client has no other methods."""

ENDPOINTS = frozenset({"api.pricing", "ec2", "fis", "iam", "oidc", "portal.sso", "servicequotas", "sqs", "ssm", "sts"})
"""Of the services called, and of those that credentials may need, by their names in the list of endpoints."""


def loader(data_path: str | None) -> Loader:
    """A session's `data_loader`. `data_path`: the session's, where somebody keeps descriptions of their own."""
    made = create_loader(data_path)
    made.file_loader = _Cut()
    return made


class _Cut(JSONFileLoader):
    """`file_path`: …/SERVICE/VERSION/KIND, or …/KIND, without the extension."""

    def load_file(self, file_path: str) -> Any:
        text = _text(Path(f"{file_path}.json"))
        if text is None:
            return None
        *_, service, _version, kind = Path(file_path).parts
        if kind == "service-2" and service in OPERATIONS:
            return _only(text, OPERATIONS[service])
        if kind == "endpoints":
            return _sift(text, _after(text, 0), (), _is_endpoint_used)[0]
        return json.loads(text, object_pairs_hook=_undocumented)


def _text(path: Path) -> str | None:
    if path.is_file():
        return path.read_text(encoding="utf-8")
    packed = path.with_name(f"{path.name}.gz")
    return gzip.decompress(packed.read_bytes()).decode() if packed.is_file() else None


def _undocumented(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Documentation is a text; what else has that name is a part of a shape."""
    return {name: value for name, value in pairs if name != "documentation" or not isinstance(value, str)}


def _only(text: str, called: frozenset[str]) -> dict[str, Any]:
    """Those operations, and the shapes that they lead to."""
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

    model, _ = _sift(text, _after(text, 0), (), keep)
    left: list[Any] = [model["operations"]]
    while left:
        match left.pop():
            case list() as several:
                left.extend(several)
            case dict() as one:
                left.extend(one.values())
                name = one.get("shape")
                if isinstance(name, str) and name not in model["shapes"]:
                    model["shapes"][name], _ = _read(text, described[name])
                    left.append(model["shapes"][name])
    return dict(model)


def _is_endpoint_used(path: _Path, _at: int) -> bool | None:
    match path:
        case () | ("partitions",) | ("partitions", _) | ("partitions", _, "services"):
            return None
        case ("partitions", _, "services", name):
            return name in ENDPOINTS
    return True


# ---- reading a part of a JSON text, a member at a time: of the whole, what was dropped would lie between what is kept,
# and nearly all of its memory stay with the process

_Path = tuple[str | int, ...]
_read = json.JSONDecoder(object_pairs_hook=_undocumented).raw_decode
_skip = json.JSONDecoder().raw_decode
_BLANK = re.compile(r"[ \t\r\n]*")


def _sift(text: str, at: int, path: _Path, keep: Callable[[_Path, int], bool | None]) -> tuple[Any, int]:
    """Of the value that begins at `at`, what is kept; and where it ends.

    `keep`: of what lies at a path and begins there: all (True), nothing (False), or of its members some (None).
    """
    whole = keep(path, at)
    if whole is not None:
        return _read(text, at) if whole else (_DROPPED, _skip(text, at)[1])
    is_list, close = text[at] == "[", "]" if text[at] == "[" else "}"
    made: dict[str | int, Any] = {}
    at = _after(text, at + 1)
    while text[at] != close:
        name: str | int = len(made)
        if not is_list:
            name, at = _skip(text, at)
            at = _after(text, _after(text, at) + 1)  # the colon
        made[name], at = _sift(text, at, (*path, name), keep)
        at = _after(text, at)
        if text[at] == ",":
            at = _after(text, at + 1)
    kept = {name: value for name, value in made.items() if value is not _DROPPED}
    return (list(kept.values()) if is_list else kept), at + 1


_DROPPED = object()


def _after(text: str, at: int) -> int:
    """Where what follows blanks begins."""
    found = _BLANK.match(text, at)
    assert found is not None
    return found.end()
