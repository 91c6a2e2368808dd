"""What is used of deploy/iam/azure-controller.json, for what, and whether a role allows it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from holdfast.controller.clouds.azure.settings import AzureSettings
from holdfast.controller.clouds.checks import Permission

_GROUPS = "Microsoft.Resources/subscriptions/resourceGroups"
_MACHINES = "Microsoft.Compute/virtualMachines"
_INTERFACES = "Microsoft.Network/networkInterfaces"
_ADDRESSES = "Microsoft.Network/publicIPAddresses"
_NETWORKS = "Microsoft.Network/virtualNetworks"


def wanted(settings: AzureSettings) -> Iterator[Permission]:
    """With these settings."""
    for verb in ("read", "write"):
        yield Permission(f"{_GROUPS}/{verb}", "machines stand in groups of their own")
    for verb, lets in (("read", "watched"), ("write", "bought"), ("delete", "ended")):
        yield Permission(f"{_MACHINES}/{verb}", f"machines are {lets} with it")
    for verb in ("write", "delete"):
        yield Permission(f"Microsoft.Compute/disks/{verb}", "disks come and go with their machines")
    for verb in ("read", "write", "delete", "join/action"):
        yield Permission(f"{_INTERFACES}/{verb}", "network interfaces come and go with their machines")
    if settings.public_ips is not False:
        for verb in ("read", "write", "delete", "join/action"):
            yield Permission(f"{_ADDRESSES}/{verb}", "public addresses come and go with their machines")
    yield Permission(f"{_NETWORKS}/subnets/join/action", "machines join a subnet")
    for verb in ("read", "write"):
        yield Permission(f"{_NETWORKS}/{verb}", "a region that azure.subnets does not name gets a network")
    if settings.identity is not None:
        action = "Microsoft.ManagedIdentity/userAssignedIdentities/assign/action"
        yield Permission(action, "azure.identity wants it")
    rehearse = "without it `holdfast jobs preempt` can not be rehearsed there"
    yield Permission(f"{_MACHINES}/simulateEviction/action", rehearse, is_needed=False)
    yield Permission("Microsoft.Compute/locations/usages/read", "it tells quotas to `holdfast check`", is_needed=False)
    yield Permission("Microsoft.Compute/skus/read", "it tells what the subscription may have", is_needed=False)
    yield Permission("Microsoft.Authorization/permissions/read", "it tells permissions", is_needed=False)


def missing(names: Iterable[str], granted: Sequence[Mapping[str, Any]]) -> set[str]:
    """Those that none of `granted` allows: each has `actions` and takes its own `notActions` away from them.

    learn.microsoft.com/azure/role-based-access-control/role-definitions
    """
    return {name for name in names if not any(_allows(one, name) for one in granted)}


def _allows(role: Mapping[str, Any], name: str) -> bool:
    return _fits(role.get("actions"), name) and not _fits(role.get("notActions"), name)


def _fits(patterns: Iterable[str] | None, name: str) -> bool:
    regexes = (re.escape(one).replace(r"\*", ".*") for one in patterns or ())
    return any(re.fullmatch(one, name, re.IGNORECASE) for one in regexes)
