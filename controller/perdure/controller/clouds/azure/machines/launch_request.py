"""Translates a launch request into the bodies of virtual machines, which include their disks and interfaces."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from perdure.controller.clouds.azure.pricing.catalog import zone_number
from perdure.controller.clouds.azure.settings import AzureSettings
from perdure.controller.clouds.base import tags
from perdure.controller.clouds.base.faults import CloudRejected
from perdure.controller.clouds.base.launch_warnings import gang_on_ethernet
from perdure.controller.clouds.base.protocol import LaunchRequest
from perdure.controller.clouds.bootstrap.render import RankSource, render_boot_program
from perdure.recovery.market.view import Market

TAG = "perdure:"
RANK = f"{TAG}rank"
STARTED = f"{TAG}started"  # when it was started again, epoch seconds: Azure does not say
# Custom data never changes, and cloud-init runs it at the first boot. Of later boots, the program is in the user data.
USER_DATA_SOURCE = RankSource(
    "http://169.254.169.254",
    "/metadata/instance/compute/userData?api-version=2021-01-01&format=text",
    {"Metadata": "true"},
)
DEFAULT_DISK_GIB = 100
MAX_NAME_LENGTH = 64  # characters of a Linux machine's name
USER = "perdure"

# The version of the network API with which Azure creates the interface and the address of a machine.
NETWORK_API_VERSION = "2022-11-01"

# SkyPilot's disk tiers as managed disks. Faster kinds cannot be boot disks.
DISK_TIERS: dict[str | None, str] = {
    None: "StandardSSD_LRS",
    "none": "StandardSSD_LRS",
    "low": "Standard_LRS",
    "medium": "StandardSSD_LRS",
    "high": "Premium_LRS",
    "ultra": "Premium_LRS",
    "best": "Premium_LRS",
}

# azure.microsoft.com/pricing/details/managed-disks, eastus, locally redundant, 2026: GiB → USD per month.
PRICES_PER_MONTH = {
    "Standard_LRS": {32: 1.54, 64: 3.01, 128: 5.89, 256: 11.33, 512: 21.76, 1024: 40.96, 2048: 77.83, 4096: 143.36},
    "StandardSSD_LRS": {32: 2.40, 64: 4.80, 128: 9.60, 256: 19.20, 512: 38.40, 1024: 76.80, 2048: 153.60, 4096: 307.20},
    "Premium_LRS": {32: 5.28, 64: 10.21, 128: 19.71, 256: 38.02, 512: 73.22, 1024: 135.17, 2048: 259.05, 4096: 495.57},
}

CPU_IMAGE = "Canonical:ubuntu-24_04-lts:server:latest"
GPU_IMAGE = "microsoft-dsvm:ubuntu-hpc:2204:latest"  # with NVIDIA's driver

# Characters that tag names must not contain: learn.microsoft.com/azure/azure-resource-manager/management/tag-resources
_NOT_IN_TAGS = re.compile(r"[<>%&\\?/]")
_IS_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,62}[A-Za-z0-9_])?")


def is_name(text: str) -> bool:
    """Whether a virtual machine can have this name. No machine has another."""
    return _IS_NAME.fullmatch(text) is not None


def name_of(token: str, rank: int) -> str:
    """The name of the machine of this rank. It follows from the token, which makes launches idempotent."""
    name = f"{token}-{rank}"
    if is_name(name):
        return name
    digest = hashlib.sha256(token.encode()).hexdigest()
    return f"pd-{digest[:48]}-{rank}"


def tags_of(request: LaunchRequest, rank: int) -> dict[str, str]:
    """The user's labels and the owner's tags, which take precedence."""
    labels = {_NOT_IN_TAGS.sub("_", name)[:512]: value[:256] for name, value in request.labels.items()}
    return {**labels, "Name": request.name[:256], **tags.to_tags(request.owner, TAG), RANK: str(rank)}


def program(request: LaunchRequest, rank: int) -> str:
    """The first program of a machine, in base64."""
    source = USER_DATA_SOURCE if request.keeps_disks else None
    return base64.b64encode(render_boot_program(request.bootstrap, rank, user_data=source).encode()).decode()


def update_of_start(request: LaunchRequest, rank: int, now: float) -> dict[str, Any]:
    """The body of VirtualMachines.Update that makes a stopped machine one of this request."""
    tags_of_start = {**tags_of(request, rank), STARTED: f"{now:.0f}"}
    return {"tags": tags_of_start, "properties": {"userData": program(request, rank)}}


def disk_price_per_hour(disk_gib: int | None, disk_tier: str | None) -> float:
    """USD per hour for the disk of one machine that is stopped, by the retail price of eastus. Disks come in sizes."""
    kind, gib = DISK_TIERS.get(disk_tier, DISK_TIERS[None]), disk_gib or DEFAULT_DISK_GIB
    size = next((size for size in sorted(PRICES_PER_MONTH[kind]) if size >= gib), max(PRICES_PER_MONTH[kind]))
    return PRICES_PER_MONTH[kind][size] * max(1.0, gib / size) / 730


def virtual_machine(
    request: LaunchRequest,
    rank: int,
    settings: AzureSettings,
    *,
    subnet: str,
    name: str,
    firewall: str | None = None,
) -> dict[str, Any]:
    """The body of VirtualMachines.CreateOrUpdate. Raises CloudRejected.

    `firewall`: the id of the network security group of its interface; None: nothing from outside gets in.

    Azure creates and deletes the disk, the interface and the address with the machine. It requires a way to sign in:
    the machine gets a public key whose private key is discarded.
    """
    offer = request.offer
    body: dict[str, Any] = {
        "location": offer.region,
        "tags": tags_of(request, rank),
        "properties": {
            "hardwareProfile": {"vmSize": offer.instance_type},
            "storageProfile": {"imageReference": _image(request, settings), "osDisk": _disk(request)},
            "osProfile": {
                "computerName": name,
                "adminUsername": USER,
                "customData": program(request, rank),
                "linuxConfiguration": {
                    "disablePasswordAuthentication": True,
                    "ssh": {
                        "publicKeys": [{"path": f"/home/{USER}/.ssh/authorized_keys", "keyData": _discarded_key()}]
                    },
                },
            },
            # In a storage account of Azure's own: it shows why a machine never called.
            "diagnosticsProfile": {"bootDiagnostics": {"enabled": True}},
            "networkProfile": {
                "networkApiVersion": NETWORK_API_VERSION,
                "networkInterfaceConfigurations": [_interface(request, rank, settings, subnet, name, firewall)],
            },
        },
    }
    if offer.market is Market.SPOT:
        # Up to the on-demand price, so that only lack of capacity preempts. A preempted machine leaves nothing billed.
        spot = {"priority": "Spot", "evictionPolicy": "Delete", "billingProfile": {"maxPrice": -1}}
        body["properties"] |= spot
    if (zone := zone_number(offer)) is not None:
        body["zones"] = [zone]
    if settings.identity is not None:
        body["identity"] = {"type": "UserAssigned", "userAssignedIdentities": {settings.identity: {}}}
    return body


def warnings(options: Mapping[str, Any], accelerators: tuple[str, float] | None, num_nodes: int) -> list[str]:
    """`WarnsOfLaunches.launch_warnings`. Azure connects the machines of one scale set by InfiniBand, and no others."""
    if options.get("network_tier") == "best":
        best = ["resources.network_tier: best has no effect on azure: all machines have accelerated networking"]
    else:
        best = []
    return [*best, *gang_on_ethernet(accelerators, num_nodes, "azure", "not InfiniBand: they are in no scale set")]


def _image(request: LaunchRequest, settings: AzureSettings) -> dict[str, str]:
    """The image of the task or the configuration, or a public one: `publisher:offer:sku:version`, or a resource id."""
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
        text = f"image_id {named!r} is not an Azure image: write publisher:offer:sku:version or an id, or remove it"
        raise CloudRejected("InvalidImageReference", text)
    return dict(zip(("publisher", "offer", "sku", "version"), parts, strict=True))


def _disk(request: LaunchRequest) -> dict[str, Any]:
    tier = DISK_TIERS.get(request.disk_tier, DISK_TIERS[None])
    return {
        "createOption": "FromImage",
        "deleteOption": "Delete",
        "diskSizeGB": request.disk_gib or DEFAULT_DISK_GIB,
        "managedDisk": {"storageAccountType": tier},
    }


def _interface(
    request: LaunchRequest, rank: int, settings: AzureSettings, subnet: str, name: str, firewall: str | None
) -> dict[str, Any]:
    resource_tags = tags_of(request, rank)
    address: dict[str, Any] = {"primary": True, "subnet": {"id": subnet}}
    if settings.wants_public_ip(request.offer.region):
        # Standard addresses block inbound traffic unless a security group allows it, and there is none.
        address["publicIPAddressConfiguration"] = {
            "name": f"{name}-ip",
            "tags": resource_tags,
            "sku": {"name": "Standard", "tier": "Regional"},
            "properties": {"deleteOption": "Delete", "publicIPAllocationMethod": "Static"},
        }
    return {
        "name": f"{name}-nic",
        "tags": resource_tags,
        "properties": {
            "primary": True,
            "deleteOption": "Delete",
            "enableAcceleratedNetworking": request.network_tier != "standard",
            **({} if firewall is None else {"networkSecurityGroup": {"id": firewall}}),
            "ipConfigurations": [{"name": "primary", "properties": address}],
        },
    }


@cache
def _discarded_key() -> str:
    from cryptography.hazmat.primitives.asymmetric import rsa
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048).public_key()
    return f"{key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()} nobody"
