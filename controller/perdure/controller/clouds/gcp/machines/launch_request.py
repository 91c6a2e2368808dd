"""Translates a launch request into a bulk insert, which creates all of its machines or none.

A machine's name follows from the token, and its labels name the owner. Labels allow only lower-case letters, digits,
`-` and `_`: other values are replaced by their digest. The metadata contains the original values.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import uuid
from collections.abc import Mapping
from typing import Any

from perdure.controller.clouds.base import tags
from perdure.controller.clouds.base.faults import CloudRejected
from perdure.controller.clouds.base.launch_warnings import gang_on_ethernet
from perdure.controller.clouds.base.protocol import LaunchRequest
from perdure.controller.clouds.bootstrap.render import RankSource, render_boot_program
from perdure.controller.clouds.gcp.pricing.catalog import attached, machine_type
from perdure.controller.clouds.gcp.pricing.machine_families import Family, family_of
from perdure.controller.clouds.gcp.settings import GcpSettings
from perdure.recovery.market.view import Market

# A machine's name ends in its rank.
RANK_SOURCE = RankSource(
    "http://metadata.google.internal", "/computeMetadata/v1/instance/name", {"Metadata-Flavor": "Google"}
)
LABEL = "perdure-"
OWNER_KEY = "perdure-owner"
LABELS_KEY = "perdure-labels"
DEFAULT_DISK_GIB = 100
NOTICE_S = 120
CPU_IMAGE = "projects/ubuntu-os-cloud/global/images/family/ubuntu-2404-lts-amd64"
GPU_IMAGE = "projects/ubuntu-os-accelerator-images/global/images/family/ubuntu-accelerator-2404-amd64-with-nvidia-580"
SCOPES = ("https://www.googleapis.com/auth/cloud-platform",)  # the account's roles restrict its permissions
# SkyPilot's disk tiers as persistent disks.
DISK_TIERS: dict[str | None, str] = {
    None: "pd-balanced",
    "none": "pd-balanced",
    "low": "pd-standard",
    "medium": "pd-balanced",
    "high": "pd-ssd",
    "ultra": "pd-ssd",
    "best": "pd-ssd",
}
# cloud.google.com/compute/disks-image-pricing, us-central1, 2026: USD for a GiB and a month.
PRICE_PER_GIB_MONTH = {"pd-standard": 0.04, "pd-balanced": 0.10, "pd-ssd": 0.17, "hyperdisk-balanced": 0.08}
# Family → the smallest number of vCPUs that supports more bandwidth, at an extra charge, with `network_tier: best`:
# cloud.google.com/compute/docs/networking/configure-vm-with-high-bandwidth-configuration
TIER_1_FROM_VCPUS = {"n2": 32, "n2d": 48, "c2": 30}

_IMAGE = re.compile(
    r"(https://(www\.)?(compute\.)?googleapis\.com/compute/v1/)?projects/[^/]+/global/images/(family/)?[^/]+"
)
_FITS_NAME = re.compile(r"[a-z0-9](-?[a-z0-9])*")
_FITS_LABEL = re.compile(r"[a-z0-9_-]{0,63}")
_FITS_KEY = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_MAX_TOKEN_LENGTH = 40
_IDS = uuid.UUID("6d2d6f0e-5a2b-5c39-9a5e-9d3f7a3f2b51")


def names(request: LaunchRequest, attempt: int) -> list[str]:
    """The names of the machines, by rank. `attempt`: how many earlier launches with this token have failed."""
    token = request.owner.token
    if not (_FITS_NAME.fullmatch(token) and len(token) <= _MAX_TOKEN_LENGTH):
        token = _digest(token)
    stem = f"perdure-{token}-{attempt}" if attempt else f"perdure-{token}"
    return [f"{stem}-{rank}" for rank in range(request.num_nodes)]


def request_id(request: LaunchRequest, attempt: int) -> str:
    """The id by which Compute Engine recognizes a repeated request."""
    return str(uuid.uuid5(_IDS, f"{request.owner.token}/{attempt}"))


def bulk_insert(request: LaunchRequest, settings: GcpSettings, attempt: int) -> dict[str, Any]:
    """The body of the bulk insert. Raises CloudRejected."""
    return {
        "count": request.num_nodes,
        "min_count": request.num_nodes,
        "per_instance_properties": {name: {} for name in names(request, attempt)},
        "instance_properties": properties(request, settings),
    }


def properties(request: LaunchRequest, settings: GcpSettings) -> dict[str, Any]:
    """The instance properties of a node. Raises CloudRejected."""
    offer = request.offer
    result: dict[str, Any] = {
        "machine_type": machine_type(offer.instance_type),
        "disks": [_disk(request, settings)],
        "network_interfaces": [_interface(request, settings)],
        "scheduling": _scheduling(request, settings),
        "labels": labels_of(request),
        "metadata": {"items": metadata_items(request)},
    }
    if request.open_ports is not None:
        result["tags"] = {"items": [request.open_ports.name]}
    if request.network_tier == "best" and _supports_tier_1(request):
        result["network_performance_config"] = {"total_egress_bandwidth_tier": "TIER_1"}
    if (extra := attached(offer.instance_type)) is not None:
        gpus = {"accelerator_type": extra.accelerator, "accelerator_count": extra.count}
        result["guest_accelerators"] = [gpus]
    if settings.service_account is not None:
        result["service_accounts"] = [{"email": settings.service_account, "scopes": list(SCOPES)}]
    return result


def metadata_items(request: LaunchRequest) -> list[dict[str, str]]:
    """The metadata of a node. Its image runs the startup script at every boot."""
    items = {
        "startup-script": render_boot_program(request.bootstrap, RANK_SOURCE),
        OWNER_KEY: json.dumps(tags.to_tags(request.owner, LABEL)),
        LABELS_KEY: json.dumps(request.labels),
        "enable-oslogin": "TRUE",  # SSH keys in the project's metadata give no access
    }
    return [{"key": key, "value": value} for key, value in items.items()]


def disk_price_per_hour(instance_type: str, disk_gib: int | None, disk_tier: str | None) -> float:
    """USD per hour for the boot disk of one machine that is stopped, by the list price of us-central1."""
    kind = _disk_type(instance_type, disk_tier)
    return PRICE_PER_GIB_MONTH.get(kind, PRICE_PER_GIB_MONTH["pd-balanced"]) * (disk_gib or DEFAULT_DISK_GIB) / 730


def labels_of(request: LaunchRequest) -> dict[str, str]:
    """The user's labels that are valid here and the owner's labels, which take precedence."""
    users = {key: value for key, value in request.labels.items() if _FITS_KEY.fullmatch(key)}
    return {key: label(value) for key, value in {**users, **tags.to_tags(request.owner, LABEL)}.items()}


def warnings(options: Mapping[str, Any], accelerators: tuple[str, float] | None, num_nodes: int) -> list[str]:
    """`WarnsOfLaunches.launch_warnings`. GPUDirect needs one interface per GPU and an image of Google's."""
    left_out = sorted(key for key in options.get("labels") or {} if not _FITS_KEY.fullmatch(key))
    texts = [
        f"resources.labels: {key} is left out on gcp, where keys are lower-case letters, digits, - and _"
        for key in left_out
    ]
    return [*texts, *gang_on_ethernet(accelerators, num_nodes, "gcp", "by one interface without GPUDirect")]


def label(value: str) -> str:
    """The value if it is a valid label, otherwise its digest."""
    return value if _FITS_LABEL.fullmatch(value) else _digest(value)


def image(request: LaunchRequest, settings: GcpSettings) -> str:
    """The image to boot. Raises CloudRejected for an invalid name."""
    named = request.image_id or settings.image
    if named is None:
        return GPU_IMAGE if request.offer.accelerators else CPU_IMAGE
    if not _IMAGE.fullmatch(named):
        message = f"{named!r} is not an image of Google Cloud: write projects/…/global/images/…, or remove it"
        raise CloudRejected("invalid", message)
    return named


def _disk_type(instance_type: str, disk_tier: str | None) -> str:
    kind = DISK_TIERS.get(disk_tier, DISK_TIERS[None])
    family = family_of(instance_type)
    return kind if family is None or kind in family.boot_disks else family.boot_disks[0]


def _disk(request: LaunchRequest, settings: GcpSettings) -> dict[str, Any]:
    parameters = {
        "source_image": image(request, settings),
        "disk_size_gb": request.disk_gib or DEFAULT_DISK_GIB,
        "disk_type": _disk_type(request.offer.instance_type, request.disk_tier),
        "labels": labels_of(request),
    }
    return {"boot": True, "auto_delete": True, "initialize_params": parameters}


def _interface(request: LaunchRequest, settings: GcpSettings) -> dict[str, Any]:
    region = request.offer.region
    result: dict[str, Any] = {"network": f"global/networks/{settings.network}"}
    if subnet := settings.subnets.get(region):
        result["subnetwork"] = f"regions/{region}/subnetworks/{subnet}"
    if settings.external_ip:
        result["access_configs"] = [{"name": "External NAT", "type_": "ONE_TO_ONE_NAT"}]
    family = _family(request)
    if (family is not None and family.needs_gvnic) or request.network_tier == "best":
        result["nic_type"] = "GVNIC"
    return result


def _scheduling(request: LaunchRequest, settings: GcpSettings) -> dict[str, Any]:
    """Google must not restart machines, and a preempted spot machine must not leave a disk that is billed."""
    is_spot = request.offer.market is Market.SPOT
    can_migrate = not is_spot and not request.offer.accelerators
    result: dict[str, Any] = {
        "automatic_restart": False,
        "on_host_maintenance": "MIGRATE" if can_migrate else "TERMINATE",
        "provisioning_model": "SPOT" if is_spot else "STANDARD",
    }
    if is_spot:
        result["instance_termination_action"] = "DELETE"
        if settings.preemption_notice:
            result["preemption_notice_duration"] = {"seconds": NOTICE_S}
    return result


def _family(request: LaunchRequest) -> Family | None:
    return family_of(request.offer.instance_type)


def _supports_tier_1(request: LaunchRequest) -> bool:
    series = request.offer.instance_type.partition("-")[0]
    return request.offer.vcpus >= TIER_1_FROM_VCPUS.get(series, math.inf)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:20]
