"""Rules by which Compute Engine rejects requests that are well-formed."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping
from typing import Any

from perdure.controller.clouds.gcp.machines.launch_request import CPU_IMAGE, GPU_IMAGE
from support.fakes.gce.discovery import Invalid
from support.fakes.gce.fleet import PROJECT
from support.fakes.gce.machine_catalog import MACHINES, accelerator_types, machine_types

IMAGES = (CPU_IMAGE, GPU_IMAGE, "projects/perdure-test/global/images/mine")
NETWORKS = ("global/networks/default", "global/networks/training")

_NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_LABEL = re.compile(r"[a-z0-9_-]{0,63}")
_LABEL_KEY = re.compile(r"[a-z][a-z0-9_-]{0,62}")
# Property of a new instance → the permission for it, in addition to `compute.instances.create`:
# docs.cloud.google.com/compute/docs/reference/rest/v1/instances/insert, "IAM permissions"
_NEEDS = {
    "labels": "compute.instances.setLabels",
    "metadata": "compute.instances.setMetadata",
    "serviceAccounts": "compute.instances.setServiceAccount",
    "tags": "compute.instances.setTags",
}
_MAX_METADATA_BYTES = 256 * 1024


def admit(zone: str, body: Mapping[str, Any]) -> None:
    """Check a bulk insert. Raises Invalid."""
    for problem in _problems(zone, body):
        raise Invalid(400, "invalid", f"Invalid value for field 'resource.instanceProperties.{problem}")
    properties = body["instanceProperties"]
    for interface in properties["networkInterfaces"]:
        if interface["network"] not in NETWORKS:
            raise Invalid(404, "notFound", f"The resource '{interface['network']}' was not found")
    for disk in properties["disks"]:
        if "source" in disk:
            continue
        image = disk["initializeParams"]["sourceImage"]
        if image not in IMAGES:
            raise Invalid(404, "notFound", f"The resource '{image}' was not found")


def require_allowed(properties: Mapping[str, Any], forbid: Container[str]) -> None:
    """Raises Invalid for properties that the caller may not set. `forbid`: the permissions that it lacks."""
    for name, permission in _NEEDS.items():
        if properties.get(name) and permission in forbid:
            raise Invalid(403, "forbidden", f"Required '{permission}' permission for 'projects/{PROJECT}'")


def of_instance(zone: str, body: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The name and the properties of a complete instance resource, which has links where a bulk insert has names.

    Raises Invalid."""
    links = [("machineType", body)]
    links += [("diskType", disk["initializeParams"]) for disk in body["disks"] if "initializeParams" in disk]
    for field, holder in links:
        if not holder[field].startswith(f"zones/{zone}/{field}s/"):
            raise Invalid(400, "invalid", f"Invalid value for field 'resource.{field}': '{holder[field]}'")
    properties = {**body, "machineType": body["machineType"].rpartition("/")[2]}
    return properties.pop("name"), properties


def newest_image(project: str, family: str) -> dict[str, Any]:
    """The response of images.getFromFamily. Raises Invalid."""
    if f"projects/{project}/global/images/family/{family}" not in IMAGES:
        raise Invalid(404, "notFound", f"The resource 'projects/{project}/global/images/family/{family}' was not found")
    return {"kind": "compute#image", "id": "1", "name": f"{family}-v20261101", "family": family, "status": "READY"}


def _problems(zone: str, body: Mapping[str, Any]) -> Iterator[str]:
    properties = body["instanceProperties"]
    names = list(body["perInstanceProperties"])
    if int(body["count"]) != len(names) or int(body.get("minCount", body["count"])) > len(names):
        yield "count': it is not the number of names"
    if invalid := [name for name in names if not _NAME.fullmatch(name)]:
        yield f"name': '{invalid[0]}'"
    if properties["machineType"] not in machine_types(zone):
        name = properties["machineType"]
        yield f"machineType': '{name}'. Machine type with name '{name}' does not exist in zone '{zone}'."
        return
    yield from _gpu_problems(zone, properties)
    for key, value in properties.get("labels", {}).items():
        if not _LABEL_KEY.fullmatch(key) or not _LABEL.fullmatch(value):
            yield f"labels': '{key}': '{value}'"
    if "networkPerformanceConfig" in properties and (
        MACHINES[properties["machineType"]].vcpus < 30 or properties["networkInterfaces"][0].get("nicType") != "GVNIC"
    ):
        yield "networkPerformanceConfig': it needs a machine of 30 vCPUs or more, and gVNIC"
    if sum(len(item["value"]) for item in properties["metadata"]["items"]) > _MAX_METADATA_BYTES:
        yield "metadata': it is too large"
    yield from _device_problems(properties)
    yield from _scheduling_problems(properties)


def _gpu_problems(zone: str, properties: Mapping[str, Any]) -> Iterator[str]:
    for gpus in properties.get("guestAccelerators", ()):
        if gpus["acceleratorType"] not in accelerator_types(zone):
            named = f"projects/{PROJECT}/zones/{zone}/acceleratorTypes/{gpus['acceleratorType']}"
            raise Invalid(404, "notFound", f"The resource '{named}' was not found")
        if not properties["machineType"].startswith("n1-"):
            yield "guestAccelerators': only N1 machines take them"


def _device_problems(properties: Mapping[str, Any]) -> Iterator[str]:
    """The disks and interfaces that a series accepts: cloud.google.com/compute/docs/machine-resource."""
    series = properties["machineType"].partition("-")[0]
    only_hyperdisk = series in ("a4", "c4", "c4d", "n4") or properties["machineType"].startswith("a3-ultragpu")
    no_standard = series in ("a3", "c3", "c3d", "g2")
    for disk in properties["disks"]:
        if "initializeParams" not in disk:
            continue
        kind = disk["initializeParams"]["diskType"].rpartition("/")[2]
        if only_hyperdisk != kind.startswith("hyperdisk-") or (no_standard and kind == "pd-standard"):
            yield f"disks': [{kind}] features are not compatible for creating instance on {series}"
    if series in ("a3", "a4", "c3", "c3d", "c4", "c4d", "n4"):
        for interface in properties["networkInterfaces"]:
            if interface.get("nicType") != "GVNIC":
                yield f"networkInterfaces': {series} takes gVNIC alone"


def _scheduling_problems(properties: Mapping[str, Any]) -> Iterator[str]:
    scheduling = properties["scheduling"]
    is_spot = scheduling["provisioningModel"] == "SPOT"
    has_gpus = properties.get("guestAccelerators") or MACHINES[properties["machineType"]].gpus
    if (is_spot or has_gpus) and scheduling.get("onHostMaintenance") != "TERMINATE":
        yield "scheduling.onHostMaintenance': spot machines and those with GPUs cannot be moved"
    if is_spot and scheduling.get("automaticRestart", True):
        yield "scheduling.automaticRestart': spot machines are not restarted"
    for name in ("instanceTerminationAction", "preemptionNoticeDuration"):
        if name in scheduling and not is_spot:
            yield f"scheduling.{name}': it is for spot machines"
