"""The permissions of deploy/iam/azure-controller.json that the controller uses, and whether a role grants them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from perdure.controller.clouds.azure.settings import AzureSettings
from perdure.controller.clouds.base.account_checks import Permission

_GROUPS = "Microsoft.Resources/subscriptions/resourceGroups"
_MACHINES = "Microsoft.Compute/virtualMachines"
_INTERFACES = "Microsoft.Network/networkInterfaces"
_ADDRESSES = "Microsoft.Network/publicIPAddresses"
_NETWORKS = "Microsoft.Network/virtualNetworks"
_BLOBS = "Microsoft.Storage/storageAccounts/blobServices"
_QUEUES = "Microsoft.Storage/storageAccounts/queueServices"


def required_permissions(settings: AzureSettings) -> Iterator[Permission]:
    """The permissions that the controller uses with these settings."""
    for verb in ("read", "write"):
        yield Permission(f"{_GROUPS}/{verb}", "machines get resource groups of their own")
    for verb, purpose in (("read", "lists"), ("write", "launches"), ("delete", "terminates")):
        yield Permission(f"{_MACHINES}/{verb}", f"it {purpose} machines")
    for verb in ("write", "delete"):
        yield Permission(f"Microsoft.Compute/disks/{verb}", "disks are created and deleted with their machines")
    for verb in ("read", "write", "delete", "join/action"):
        yield Permission(f"{_INTERFACES}/{verb}", "network interfaces are created and deleted with their machines")
    if settings.public_ips is not False:
        for verb in ("read", "write", "delete", "join/action"):
            yield Permission(f"{_ADDRESSES}/{verb}", "public addresses are created and deleted with their machines")
    yield Permission(f"{_NETWORKS}/subnets/join/action", "it connects machines to a subnet")
    for verb in ("read", "write"):
        yield Permission(f"{_NETWORKS}/{verb}", "it creates a network in regions that azure.subnets does not name")
    for verb in ("read", "write", "delete", "join/action"):
        purpose = "`resources.ports` of a cluster needs it"
        yield Permission(f"Microsoft.Network/networkSecurityGroups/{verb}", purpose, is_required=False)
    if settings.identity is not None:
        action = "Microsoft.ManagedIdentity/userAssignedIdentities/assign/action"
        yield Permission(action, "azure.identity needs it")
    purpose = "the log of a job shows the console of a machine that never called"
    yield Permission(f"{_MACHINES}/retrieveBootDiagnosticsData/action", purpose, is_required=False)
    for action in ("deallocate", "start"):
        purpose = "it keeps the disks of clusters that are stopped"
        yield Permission(f"{_MACHINES}/{action}/action", purpose, is_required=False)
    purpose = "`perdure jobs preempt` needs it"
    yield Permission(f"{_MACHINES}/simulateEviction/action", purpose, is_required=False)
    yield Permission(
        "Microsoft.Compute/locations/usages/read", "`perdure check` reads quotas with it", is_required=False
    )
    action = "Microsoft.Resources/subscriptions/providers/read"
    yield Permission(action, "`perdure check` reads registrations with it", is_required=False)
    action = "Microsoft.Compute/locations/publishers/artifacttypes/offers/skus/versions/read"
    yield Permission(action, "`perdure check --deep` looks up images with it", is_required=False)
    yield Permission("Microsoft.Compute/skus/read", "it lists the sizes available here", is_required=False)
    yield Permission("Microsoft.Authorization/permissions/read", "it lists permissions", is_required=False)


def container_permissions() -> Iterator[Permission]:
    """Actions on containers, for a caller without a key of the storage account."""
    for verb, purpose in (("read", "lists"), ("write", "creates"), ("delete", "deletes")):
        yield Permission(f"{_BLOBS}/containers/{verb}", f"it {purpose} containers", is_required=False)
    purpose = "it signs the access tokens of nodes for their containers"
    yield Permission(f"{_BLOBS}/generateUserDelegationKey/action", purpose, is_required=False)


def blob_permissions() -> Iterator[Permission]:
    """Data actions on blobs, for a caller without a key of the storage account."""
    for verb in ("read", "write", "delete", "add/action"):
        yield Permission(f"{_BLOBS}/containers/blobs/{verb}", "it accesses the blobs of containers", is_required=False)


def queue_permissions(settings: AzureSettings) -> Iterator[Permission]:
    """Data actions on the configured queues."""
    if settings.interruption_queues:
        action = f"{_QUEUES}/queues/messages/process/action"
        yield Permission(action, "it reads azure.interruption_queues", is_required=False)


def missing(names: Iterable[str], granted: Sequence[Mapping[str, Any]], *, of_data: bool = False) -> set[str]:
    """Those of `names` that no role grants. A role grants its `actions` without its own `notActions`.

    `of_data`: the names are data actions, which a role lists separately.
    learn.microsoft.com/azure/role-based-access-control/role-definitions
    """
    included, excluded = ("dataActions", "notDataActions") if of_data else ("actions", "notActions")
    return {
        name
        for name in names
        if not any(_matches(role.get(included), name) and not _matches(role.get(excluded), name) for role in granted)
    }


def _matches(patterns: Iterable[str] | None, name: str) -> bool:
    regexes = (re.escape(one).replace(r"\*", ".*") for one in patterns or ())
    return any(re.fullmatch(one, name, re.IGNORECASE) for one in regexes)
