"""What is used of deploy/iam/azure-controller.json, for what, and whether a role allows it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from perdure.controller.clouds.azure.settings import AzureSettings
from perdure.controller.clouds.checks import Permission

_GROUPS = "Microsoft.Resources/subscriptions/resourceGroups"
_MACHINES = "Microsoft.Compute/virtualMachines"
_INTERFACES = "Microsoft.Network/networkInterfaces"
_ADDRESSES = "Microsoft.Network/publicIPAddresses"
_NETWORKS = "Microsoft.Network/virtualNetworks"
_BLOBS = "Microsoft.Storage/storageAccounts/blobServices"
_QUEUES = "Microsoft.Storage/storageAccounts/queueServices"


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
    rehearse = "without it `perdure jobs preempt` can not be rehearsed there"
    yield Permission(f"{_MACHINES}/simulateEviction/action", rehearse, is_needed=False)
    yield Permission("Microsoft.Compute/locations/usages/read", "it tells quotas to `perdure check`", is_needed=False)
    yield Permission("Microsoft.Compute/skus/read", "it tells what the subscription may have", is_needed=False)
    yield Permission("Microsoft.Authorization/permissions/read", "it tells permissions", is_needed=False)


def wanted_of_containers() -> Iterator[Permission]:
    """By whoever has no key of the storage account."""
    for verb, lets in (("read", "looked at"), ("write", "made"), ("delete", "removed")):
        yield Permission(f"{_BLOBS}/containers/{verb}", f"containers are {lets} with it", is_needed=False)
    lets = "what nodes show for their container is signed with it"
    yield Permission(f"{_BLOBS}/generateUserDelegationKey/action", lets, is_needed=False)


def wanted_of_blobs() -> Iterator[Permission]:
    """As `wanted_of_containers`; data actions."""
    for verb in ("read", "write", "delete", "add/action"):
        yield Permission(f"{_BLOBS}/containers/blobs/{verb}", "what is in containers is used with it", is_needed=False)


def wanted_of_messages(settings: AzureSettings) -> Iterator[Permission]:
    """Data actions."""
    if settings.notice_queues:
        action = f"{_QUEUES}/queues/messages/process/action"
        yield Permission(action, "azure.notice_queues are read with it", is_needed=False)


def missing(names: Iterable[str], granted: Sequence[Mapping[str, Any]], *, of_data: bool = False) -> set[str]:
    """Those that none of `granted` allows: each has `actions` and takes its own `notActions` away from them.

    `of_data`: the names are those of data actions, which no action allows.
    learn.microsoft.com/azure/role-based-access-control/role-definitions
    """
    allows, takes_away = ("dataActions", "notDataActions") if of_data else ("actions", "notActions")
    return {
        name
        for name in names
        if not any(_fits(one.get(allows), name) and not _fits(one.get(takes_away), name) for one in granted)
    }


def _fits(patterns: Iterable[str] | None, name: str) -> bool:
    regexes = (re.escape(one).replace(r"\*", ".*") for one in patterns or ())
    return any(re.fullmatch(one, name, re.IGNORECASE) for one in regexes)
