"""Where to run: `cloud[/region[/zone]]`, with `*` for any."""

from __future__ import annotations

import re

from perdure.sdk.connection.installation import installed_clouds
from perdure.sdk.spec.problems import InvalidValue, describe, nearest

# SkyPilot's 25 clouds, and this machine.
CLOUDS = (
    *("local", "aws", "azure", "gcp", "ibm", "lambda", "scp", "oci", "kubernetes", "runpod", "vast", "vsphere", "cudo"),
    *(
        "fluidstack",
        "paperspace",
        "primeintellect",
        "do",
        "nebius",
        "ssh",
        "slurm",
        "hyperbolic",
        "seeweb",
        "shadeform",
    ),
    *("yotta", "mithril", "verda"),
)
_ALIASES = {"k8s": "kubernetes"}
_PLACE = r"[A-Za-z0-9][A-Za-z0-9._:@-]*"
_CONTEXT = r"[^\s*]+"  # a Kubernetes context may be an ARN, which contains slashes
_ONE_PLACE = ("kubernetes", "ssh")  # clouds whose text continues with a single name

Parts = tuple[str | None, str | None, str | None]


def parse(value: object) -> str | None:
    """The canonical text: lower-case cloud, no trailing `*`; None for any place."""
    return join(*parts(str(value)))


def parts(text: str | None) -> Parts:
    """(cloud, region, zone) of an infra text; None stands for any."""
    if text is None:
        return None, None, None
    head, _, rest = text.strip().strip("/").partition("/")
    cloud = cloud_name(head)
    if cloud in _ONE_PLACE:
        return cloud, place(rest, context=True) if rest else None, None
    names = rest.split("/") if rest else []
    if len(names) > 2:
        raise InvalidValue(f"{describe(text)} has {len(names) + 1} parts", "write cloud/region/zone")
    region, zone = ([*map(place, names), None, None])[:2]
    return cloud, region, zone


def join(cloud: str | None, region: str | None, zone: str | None) -> str | None:
    """The text of a place; None if all three are."""
    names = [cloud, region, zone]
    while names and names[-1] is None:
        names.pop()
    return "/".join(name or "*" for name in names) or None


def canonical_cloud(name: str) -> str:
    """The name in lower case, and without abbreviation: `k8s` is `kubernetes`. Whether there is one is not checked."""
    name = name.strip().lower()
    return _ALIASES.get(name, name)


def cloud_name(value: object) -> str | None:
    """The cloud's canonical name, None for `*`."""
    name = canonical_cloud(str(value))
    if name == "*":
        return None
    if name not in CLOUDS and name not in installed_clouds():
        near = nearest(name, (*installed_clouds(), *CLOUDS))
        usable = f"Perdure can use {', '.join(sorted(installed_clouds()))}"
        raise InvalidValue(f"unknown cloud {describe(value)}", f"did you mean {near!r}? {usable}" if near else usable)
    return name


def place(value: object, *, context: bool = False) -> str | None:
    """The name of a region or zone unchanged; None for `*`."""
    name = str(value).strip()
    if name == "*":
        return None
    if not re.fullmatch(_CONTEXT if context else _PLACE, name):
        raise InvalidValue(f"{describe(value)} is not the name of a region or zone", "write a name, or * for any")
    return name
