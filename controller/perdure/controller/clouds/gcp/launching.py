"""A launch in Compute Engine's words: one bulk insert, which makes all of its machines or none.

What a machine is called follows from its token, and what it is labelled with says whose it is. A label takes lower
case letters, digits, `-` and `_` alone: what does not fit is labelled with its digest. Metadata holds it as it is.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import uuid
from typing import Any

from perdure.controller.clouds import booting, owners
from perdure.controller.clouds.base import LaunchRequest
from perdure.controller.clouds.faulting import Refused
from perdure.controller.clouds.gcp.catalog import attached, machine_type
from perdure.controller.clouds.gcp.families import Family, family_of
from perdure.controller.clouds.gcp.settings import GcpSettings
from perdure.recovery.market import Market

LABEL = "perdure-"
OWNER_KEY = "perdure-owner"
LABELS_KEY = "perdure-labels"
DEFAULT_DISK_GIB = 100
NOTICE_S = 120
CPU_IMAGE = "projects/ubuntu-os-cloud/global/images/family/ubuntu-2404-lts-amd64"
GPU_IMAGE = "projects/ubuntu-os-accelerator-images/global/images/family/ubuntu-accelerator-2404-amd64-with-nvidia-580"
SCOPES = ("https://www.googleapis.com/auth/cloud-platform",)  # what an account may do, its roles say
# What persistent disks give for SkyPilot's disk tiers.
DISK_TIERS: dict[str | None, str] = {
    None: "pd-balanced",
    "none": "pd-balanced",
    "low": "pd-standard",
    "medium": "pd-balanced",
    "high": "pd-ssd",
    "ultra": "pd-ssd",
    "best": "pd-ssd",
}
# Family → from how many vCPUs on it takes more bandwidth (for more money) with `network_tier: best`:
# cloud.google.com/compute/docs/networking/configure-vm-with-high-bandwidth-configuration
TIER_1_FROM_VCPUS = {"n2": 32, "n2d": 48, "c2": 30}

_IMAGE = re.compile(
    r"(https://(www\.)?(compute\.)?googleapis\.com/compute/v1/)?projects/[^/]+/global/images/(family/)?[^/]+"
)
_FITS_NAME = re.compile(r"[a-z0-9](-?[a-z0-9])*")
_FITS_LABEL = re.compile(r"[a-z0-9_-]{0,63}")
_FITS_KEY = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_MOST_OF_TOKEN = 40
_IDS = uuid.UUID("6d2d6f0e-5a2b-5c39-9a5e-9d3f7a3f2b51")


def names(request: LaunchRequest, go: int) -> list[str]:
    """What the machines are called, by rank. `go`: how often this token was refused before."""
    token = request.owner.token
    if not (_FITS_NAME.fullmatch(token) and len(token) <= _MOST_OF_TOKEN):
        token = _digest(token)
    stem = f"perdure-{token}-{go}" if go else f"perdure-{token}"
    return [f"{stem}-{rank}" for rank in range(request.num_nodes)]


def request_id(request: LaunchRequest, go: int) -> str:
    """What has Compute Engine do it once, however often it is asked."""
    return str(uuid.uuid5(_IDS, f"{request.owner.token}/{go}"))


def bulk_insert(request: LaunchRequest, settings: GcpSettings, go: int) -> dict[str, Any]:
    """The body of the call. Raises Refused."""
    return {
        "count": request.num_nodes,
        "min_count": request.num_nodes,
        "per_instance_properties": {name: {} for name in names(request, go)},
        "instance_properties": properties(request, settings),
    }


def properties(request: LaunchRequest, settings: GcpSettings) -> dict[str, Any]:
    """What a node's machine is to be. Raises Refused."""
    offer = request.offer
    tags = owners.written(request.owner, LABEL)
    program = booting.first_program(request.bootstrap, PERDURE_RANK_FROM="gce")
    items = {
        "startup-script": program,
        OWNER_KEY: json.dumps(tags),
        LABELS_KEY: json.dumps(request.labels),
        "enable-oslogin": "TRUE",  # nobody gets in by a key that lies in the project's metadata
    }
    wanted: dict[str, Any] = {
        "machine_type": machine_type(offer.instance_type),
        "disks": [_disk(request, settings)],
        "network_interfaces": [_interface(request, settings)],
        "scheduling": _scheduling(request, settings),
        "labels": labels_of(request),
        "metadata": {"items": [{"key": key, "value": value} for key, value in items.items()]},
    }
    if request.network_tier == "best" and _takes_tier_1(request):
        wanted["network_performance_config"] = {"total_egress_bandwidth_tier": "TIER_1"}
    if (extra := attached(offer.instance_type)) is not None:
        gpus = {"accelerator_type": extra.accelerator, "accelerator_count": extra.count}
        wanted["guest_accelerators"] = [gpus]
    if settings.service_account is not None:
        wanted["service_accounts"] = [{"email": settings.service_account, "scopes": list(SCOPES)}]
    return wanted


def labels_of(request: LaunchRequest) -> dict[str, str]:
    """The user's labels that can be labels here and, over them, whose the machine is."""
    users = {key: value for key, value in request.labels.items() if _FITS_KEY.fullmatch(key)}
    return {key: label(value) for key, value in {**users, **owners.written(request.owner, LABEL)}.items()}


def label(value: str) -> str:
    """The value as it is where it may be a label, else its digest."""
    return value if _FITS_LABEL.fullmatch(value) else _digest(value)


def image(request: LaunchRequest, settings: GcpSettings) -> str:
    """The image to boot. Raises Refused if it is none."""
    named = request.image_id or settings.image
    if named is None:
        return GPU_IMAGE if request.offer.accelerators else CPU_IMAGE
    if not _IMAGE.fullmatch(named):
        wrong = f"image {named!r} is none of Google's: write projects/…/global/images/…, or leave it out"
        raise Refused("invalid", wrong)
    return named


def _disk(request: LaunchRequest, settings: GcpSettings) -> dict[str, Any]:
    kind = DISK_TIERS.get(request.disk_tier, DISK_TIERS[None])
    if (family := _family(request)) is not None and kind not in family.takes:
        kind = family.takes[0]
    parameters = {
        "source_image": image(request, settings),
        "disk_size_gb": request.disk_gib or DEFAULT_DISK_GIB,
        "disk_type": kind,
        "labels": labels_of(request),
    }
    return {"boot": True, "auto_delete": True, "initialize_params": parameters}


def _interface(request: LaunchRequest, settings: GcpSettings) -> dict[str, Any]:
    region = request.offer.region
    wanted: dict[str, Any] = {"network": f"global/networks/{settings.network}"}
    if subnet := settings.subnets.get(region):
        wanted["subnetwork"] = f"regions/{region}/subnetworks/{subnet}"
    if settings.external_ip:
        wanted["access_configs"] = [{"name": "External NAT", "type_": "ONE_TO_ONE_NAT"}]
    family = _family(request)
    if (family is not None and family.needs_gvnic) or request.network_tier == "best":
        wanted["nic_type"] = "GVNIC"
    return wanted


def _scheduling(request: LaunchRequest, settings: GcpSettings) -> dict[str, Any]:
    """A machine that has gone is gone: Google restarts none, and a spot machine leaves no disk to pay for."""
    is_spot = request.offer.market is Market.SPOT
    stays = not is_spot and not request.offer.accelerators  # neither spot machines nor those with GPUs can be moved
    wanted: dict[str, Any] = {
        "automatic_restart": False,
        "on_host_maintenance": "MIGRATE" if stays else "TERMINATE",
        "provisioning_model": "SPOT" if is_spot else "STANDARD",
    }
    if is_spot:
        wanted["instance_termination_action"] = "DELETE"
        if settings.preemption_notice:
            wanted["preemption_notice_duration"] = {"seconds": NOTICE_S}
    return wanted


def _family(request: LaunchRequest) -> Family | None:
    return family_of(request.offer.instance_type)


def _takes_tier_1(request: LaunchRequest) -> bool:
    series = request.offer.instance_type.partition("-")[0]
    return request.offer.vcpus >= TIER_1_FROM_VCPUS.get(series, math.inf)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:20]
