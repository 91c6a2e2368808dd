"""A launch in Azure's words: names, tags, and the virtual machine's body, which brings disk and network along."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from typing import Any

from perdure.controller.clouds import booting, owners
from perdure.controller.clouds.azure.catalog import zone_number
from perdure.controller.clouds.azure.settings import AzureSettings
from perdure.controller.clouds.base import LaunchRequest
from perdure.controller.clouds.faulting import Refused
from perdure.recovery.market import Market

TAG = "perdure:"
RANK = f"{TAG}rank"
DEFAULT_DISK_GIB = 100
MOST_NAME = 64  # characters of a Linux machine's name
USER = "perdure"

# The version of the network API by which Azure makes the machine's interface and address along with it.
NETWORK_API_VERSION = "2022-11-01"

# What managed disks give for SkyPilot's disk tiers. No faster one may hold the system.
DISK_TIERS: dict[str | None, str] = {
    None: "StandardSSD_LRS",
    "none": "StandardSSD_LRS",
    "low": "Standard_LRS",
    "medium": "StandardSSD_LRS",
    "high": "Premium_LRS",
    "ultra": "Premium_LRS",
    "best": "Premium_LRS",
}

CPU_IMAGE = "Canonical:ubuntu-24_04-lts:server:latest"
GPU_IMAGE = "microsoft-dsvm:ubuntu-hpc:2204:latest"  # with NVIDIA's driver

# What a tag's name may not hold, nor be longer than: learn.microsoft.com/azure/azure-resource-manager/management/
# tag-resources
_NOT_IN_TAGS = re.compile(r"[<>%&\\?/]")
_IS_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,62}[A-Za-z0-9_])?")


def is_name(text: str) -> bool:
    """Whether a virtual machine can have this name; whoever asks for another knows that it does not exist."""
    return _IS_NAME.fullmatch(text) is not None


def name_of(token: str, rank: int) -> str:
    """Of the launch's machine of this rank: always the same, so that asking twice buys once."""
    name = f"{token}-{rank}"
    if is_name(name):
        return name
    digest = hashlib.sha256(token.encode()).hexdigest()
    return f"hf-{digest[:48]}-{rank}"


def tags_of(request: LaunchRequest, rank: int) -> dict[str, str]:
    """The user's labels and, over them, whose the machine is."""
    labels = {_NOT_IN_TAGS.sub("_", name)[:512]: value[:256] for name, value in request.labels.items()}
    return {**labels, "Name": request.name[:256], **owners.written(request.owner, TAG), RANK: str(rank)}


def virtual_machine(
    request: LaunchRequest, rank: int, settings: AzureSettings, *, subnet: str, name: str
) -> dict[str, Any]:
    """The body of VirtualMachines.CreateOrUpdate. Raises Refused.

    Disk, interface and address are made with the machine, and go with it. Azure wants a way to sign in: it gets a key
    of which nobody has the other half.
    """
    offer = request.offer
    program = booting.first_program(request.bootstrap, PERDURE_RANK=str(rank))
    body: dict[str, Any] = {
        "location": offer.region,
        "tags": tags_of(request, rank),
        "properties": {
            "hardwareProfile": {"vmSize": offer.instance_type},
            "storageProfile": {"imageReference": _image(request, settings), "osDisk": _disk(request)},
            "osProfile": {
                "computerName": name,
                "adminUsername": USER,
                "customData": base64.b64encode(program.encode()).decode(),
                "linuxConfiguration": {
                    "disablePasswordAuthentication": True,
                    "ssh": {
                        "publicKeys": [{"path": f"/home/{USER}/.ssh/authorized_keys", "keyData": _key_of_nobody()}]
                    },
                },
            },
            "networkProfile": {
                "networkApiVersion": NETWORK_API_VERSION,
                "networkInterfaceConfigurations": [_interface(request, rank, settings, subnet, name)],
            },
        },
    }
    if offer.market is Market.SPOT:
        # Up to the on-demand price: a machine is lost to capacity alone. One that is taken leaves nothing to be paid.
        spot = {"priority": "Spot", "evictionPolicy": "Delete", "billingProfile": {"maxPrice": -1}}
        body["properties"] |= spot
    if (zone := zone_number(offer)) is not None:
        body["zones"] = [zone]
    if settings.identity is not None:
        body["identity"] = {"type": "UserAssigned", "userAssignedIdentities": {settings.identity: {}}}
    return body


def _image(request: LaunchRequest, settings: AzureSettings) -> dict[str, str]:
    """By the task, or the configuration, or a public one: `publisher:offer:sku:version`, or a resource's id."""
    public = GPU_IMAGE if request.offer.accelerators else CPU_IMAGE
    named = request.image_id or settings.images.get(request.offer.region) or public
    for begin, field in (
        ("/subscriptions/", "id"),
        ("/CommunityGalleries/", "communityGalleryImageId"),
        ("/SharedGalleries/", "sharedGalleryImageId"),
    ):
        if named.lower().startswith(begin.lower()):
            return {field: named}
    parts = named.split(":")
    if len(parts) != 4 or not all(parts):
        text = f"image_id {named!r} is no Azure image: write publisher:offer:sku:version or an id, or leave it out"
        raise Refused("InvalidImageReference", text)
    return dict(zip(("publisher", "offer", "sku", "version"), parts, strict=True))


def _disk(request: LaunchRequest) -> dict[str, Any]:
    tier = DISK_TIERS.get(request.disk_tier, DISK_TIERS[None])
    return {
        "createOption": "FromImage",
        "deleteOption": "Delete",
        "diskSizeGB": request.disk_gib or DEFAULT_DISK_GIB,
        "managedDisk": {"storageAccountType": tier},
    }


def _interface(request: LaunchRequest, rank: int, settings: AzureSettings, subnet: str, name: str) -> dict[str, Any]:
    tags = tags_of(request, rank)
    address: dict[str, Any] = {"primary": True, "subnet": {"id": subnet}}
    if settings.wants_public_ip(request.offer.region):
        # The standard kind lets nobody in unless a security group says so, and there is none.
        address["publicIPAddressConfiguration"] = {
            "name": f"{name}-ip",
            "tags": tags,
            "sku": {"name": "Standard", "tier": "Regional"},
            "properties": {"deleteOption": "Delete", "publicIPAllocationMethod": "Static"},
        }
    return {
        "name": f"{name}-nic",
        "tags": tags,
        "properties": {
            "primary": True,
            "deleteOption": "Delete",
            "enableAcceleratedNetworking": request.network_tier != "standard",
            "ipConfigurations": [{"name": "primary", "properties": address}],
        },
    }


@cache
def _key_of_nobody() -> str:
    from cryptography.hazmat.primitives.asymmetric import rsa
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048).public_key()
    return f"{key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()} nobody"
