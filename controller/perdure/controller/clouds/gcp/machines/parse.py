"""Translates Compute Engine's instance resources. An instance's id is `zone/name`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from perdure.controller.clouds.base import tags
from perdure.controller.clouds.base.protocol import Instance, InstanceState, Owner
from perdure.controller.clouds.gcp.machines.launch_request import LABEL, OWNER_KEY

# cloud.google.com/compute/docs/instances/instance-lifecycle
STATES = {
    "PROVISIONING": InstanceState.PENDING,
    "STAGING": InstanceState.PENDING,
    "RUNNING": InstanceState.RUNNING,
    "REPAIRING": InstanceState.ENDING,
    "PENDING_STOP": InstanceState.ENDING,
    "STOPPING": InstanceState.ENDING,
    "SUSPENDING": InstanceState.ENDING,
    "DEPROVISIONING": InstanceState.ENDING,
    "SUSPENDED": InstanceState.ENDING,  # its memory is kept as well
    "STOPPED": InstanceState.STOPPED,
    "TERMINATED": InstanceState.STOPPED,
}

_ID = re.compile(r"([a-z]+-[a-z]+\d+)-[a-z]/[a-z]([-a-z0-9]{0,61}[a-z0-9])?")


def id_of(zone: str, name: str) -> str:
    return f"{zone}/{name}"


def place_of(id: str, region: str) -> tuple[str, str] | None:
    """(zone, name) of an id in this region; None if the id is invalid or of another region."""
    match = _ID.fullmatch(id)
    if match is None or match[1] != region:
        return None
    zone, _, name = id.partition("/")
    return zone, name


def rank_of(name: str) -> int:
    """The number at the end of the name."""
    last = name.rpartition("-")[2]
    return int(last) if last.isdecimal() else 0


def instance(resource: Any) -> Instance | None:
    """None if it has no owner. Billing is per second, from its creation to the end that `tombstones` finds, without the
    time that it was stopped."""
    owner = owner_of(resource)
    if owner is None:
        return None
    zone = last_segment(resource.zone)
    ips = [interface.network_i_p for interface in resource.network_interfaces]
    state = STATES.get(resource.status, InstanceState.ENDING)
    stopped_at = epoch_s(resource.last_stop_timestamp)
    started = resource.last_start_timestamp if stopped_at is not None else ""
    return Instance(
        id=id_of(zone, resource.name),
        rank=rank_of(resource.name),
        owner=owner,
        state=state,
        cloud="gcp",
        region=zone.rpartition("-")[0],
        zone=zone,
        instance_type=type_of(resource),
        ip=next((ip for ip in ips if ip), None),
        launched_at=epoch_s(started or resource.creation_timestamp),
        ended_at=stopped_at if state is InstanceState.STOPPED else None,
    )


def owner_of(resource: Any) -> Owner | None:
    """The owner in the metadata, which has the original values; otherwise that of the labels."""
    for item in resource.metadata.items:
        if item.key == OWNER_KEY:
            return _owner_in(item.value)
    return tags.from_tags(dict(resource.labels), LABEL)


def type_of(resource: Any) -> str:
    """The name of the instance type, including attached GPUs."""
    name = last_segment(resource.machine_type)
    for gpus in resource.guest_accelerators:
        if name.startswith("n1-"):
            return f"{name}+{last_segment(gpus.accelerator_type).rpartition('-')[2]}x{gpus.accelerator_count}"
    return name


def public_address(resource: Any) -> str | None:
    """The address at which the internet reaches the machine; None if there is none."""
    accesses = (access for interface in resource.network_interfaces for access in interface.access_configs)
    return next((access.nat_i_p for access in accesses if access.nat_i_p), None)


def last_segment(link: str) -> str:
    """The name of the resource with this URL."""
    return link.rpartition("/")[2]


def epoch_s(rfc3339: str) -> float | None:
    """`2026-01-02T03:04:05.678-08:00` as epoch seconds; None if there is none."""
    return datetime.fromisoformat(rfc3339).timestamp() if rfc3339 else None


def _owner_in(text: str) -> Owner | None:
    try:
        values = json.loads(text)
    except ValueError:
        return None
    return tags.from_tags(values, LABEL) if isinstance(values, Mapping) else None
