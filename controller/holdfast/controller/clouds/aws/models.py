"""AWS's own descriptions of its services, which botocore builds clients from, cut down to what is called here.

EC2's takes 24 MiB as botocore reads it, and each region's client one more: nearly all of it for operations that are
never called, and documentation. Other services lose their documentation alone: credentials may need any of those.
"""

from __future__ import annotations

import gc
import gzip
import json
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
    "ssm": frozenset({"GetParameter"}),
}
"""What is called of the services whose descriptions are large; a client has no other methods."""


def loader(data_path: str | None) -> Loader:
    """A session's `data_loader`. `data_path`: the session's, where somebody keeps descriptions of their own."""
    made = create_loader(data_path)
    made.file_loader = _Cut()
    return made


class _Cut(JSONFileLoader):
    """`file_path`: …/SERVICE/VERSION/KIND, without the extension."""

    def load_file(self, file_path: str) -> Any:
        text = _text(Path(f"{file_path}.json"))
        if text is None:
            return None
        read = json.loads(text, object_pairs_hook=_undocumented)
        *_, service, _version, kind = Path(file_path).parts
        if kind != "service-2" or service not in OPERATIONS:
            return read
        # What is kept lies scattered among what is not, and would hold on to all of its memory: so it is made anew. The
        # interpreter's lists of free objects would as well, and a collection empties them.
        kept = json.dumps(_only(read, OPERATIONS[service]))
        del read, text
        gc.collect()
        return json.loads(kept)


def _text(path: Path) -> bytes | None:
    if path.is_file():
        return path.read_bytes()
    packed = path.with_name(f"{path.name}.gz")
    return gzip.decompress(packed.read_bytes()) if packed.is_file() else None


def _undocumented(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Documentation is a text; what else has that name is a part of a shape."""
    return {name: value for name, value in pairs if name != "documentation" or not isinstance(value, str)}


def _only(model: dict[str, Any], called: frozenset[str]) -> dict[str, Any]:
    """Those operations, and the shapes that they lead to."""
    operations = {name: one for name, one in model["operations"].items() if name in called}
    shapes: dict[str, Any] = {}
    left: list[Any] = [operations]
    while left:
        match left.pop():
            case list() as several:
                left.extend(several)
            case dict() as one:
                left.extend(one.values())
                name = one.get("shape")
                if isinstance(name, str) and name not in shapes:
                    shapes[name] = model["shapes"][name]
                    left.append(shapes[name])
    return {**model, "operations": operations, "shapes": shapes}
