"""What Compute Engine refuses although its form is right."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from fake_gce.discovery import Invalid
from holdfast.controller.clouds.gcp.catalog import ATTACHABLE, TYPES, machine_type
from holdfast.controller.clouds.gcp.launching import CPU_IMAGE, GPU_IMAGE

ZONES = {
    "us-central1": ("us-central1-a", "us-central1-b", "us-central1-c", "us-central1-f"),
    "us-east4": ("us-east4-a", "us-east4-b", "us-east4-c"),
    "europe-west4": ("europe-west4-a", "europe-west4-b"),
}
SMALL_ZONE = "europe-west4-b"  # without GPUs
IMAGES = (CPU_IMAGE, GPU_IMAGE, "projects/holdfast-test/global/images/mine")
NETWORKS = ("global/networks/default", "global/networks/training")

_NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_LABEL = re.compile(r"[a-z0-9_-]{0,63}")
_LABEL_KEY = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_MOST_METADATA = 256 * 1024


def machine_types(zone: str) -> list[str]:
    """Google's names of what is sold in the zone."""
    sold = {machine_type(name) for name in TYPES if zone != SMALL_ZONE or TYPES[name].accelerators is None}
    return sorted(sold | {"n4-standard-2"})


def accelerator_types(zone: str) -> list[str]:
    return [] if zone == SMALL_ZONE else sorted(name for name, _, _ in ATTACHABLE.values())


def admit(zone: str, body: Mapping[str, Any]) -> None:
    """A bulk insert. Raises Invalid."""
    for what in _wrongs(zone, body):
        raise Invalid(400, "invalid", f"Invalid value for field 'resource.instanceProperties.{what}")
    properties = body["instanceProperties"]
    for interface in properties["networkInterfaces"]:
        if interface["network"] not in NETWORKS:
            raise Invalid(404, "notFound", f"The resource '{interface['network']}' was not found")
    for disk in properties["disks"]:
        image = disk["initializeParams"]["sourceImage"]
        if image not in IMAGES:
            raise Invalid(404, "notFound", f"The resource '{image}' was not found")


def _wrongs(zone: str, body: Mapping[str, Any]) -> Iterator[str]:
    properties = body["instanceProperties"]
    names = list(body["perInstanceProperties"])
    if int(body["count"]) != len(names) or int(body.get("minCount", body["count"])) > len(names):
        yield "count': it is not the number of names"
    if odd := [name for name in names if not _NAME.fullmatch(name)]:
        yield f"name': '{odd[0]}'"
    if properties["machineType"] not in machine_types(zone):
        yield f"machineType': '{properties['machineType']}'. Machine type does not exist in zone {zone}"
    for gpus in properties.get("guestAccelerators", ()):
        if gpus["acceleratorType"] not in accelerator_types(zone):
            yield f"guestAccelerators': '{gpus['acceleratorType']}' is not in zone {zone}"
        if not properties["machineType"].startswith("n1-"):
            yield "guestAccelerators': only N1 machines take them"
    for key, value in properties.get("labels", {}).items():
        if not _LABEL_KEY.fullmatch(key) or not _LABEL.fullmatch(value):
            yield f"labels': '{key}': '{value}'"
    if "networkPerformanceConfig" in properties and (
        TYPES[properties["machineType"]].vcpus < 30 or properties["networkInterfaces"][0].get("nicType") != "GVNIC"
    ):
        yield "networkPerformanceConfig': it takes a machine of 30 vCPUs or more, and gVNIC"
    if sum(len(item["value"]) for item in properties["metadata"]["items"]) > _MOST_METADATA:
        yield "metadata': it is too much"
    yield from _wrong_scheduling(properties)


def _wrong_scheduling(properties: Mapping[str, Any]) -> Iterator[str]:
    told = properties["scheduling"]
    is_spot = told["provisioningModel"] == "SPOT"
    has_gpus = properties.get("guestAccelerators") or properties["machineType"].startswith(("a2-", "a3-", "g2-"))
    if (is_spot or has_gpus) and told.get("onHostMaintenance") != "TERMINATE":
        yield "scheduling.onHostMaintenance': spot machines and those with GPUs can not be moved"
    if is_spot and told.get("automaticRestart", True):
        yield "scheduling.automaticRestart': spot machines are not restarted"
    for name in ("instanceTerminationAction", "preemptionNoticeDuration"):
        if name in told and not is_spot:
            yield f"scheduling.{name}': it is for spot machines"
