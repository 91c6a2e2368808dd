"""Compute Engine's description of an instance, read as ours. An instance's id is `zone/name`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from perdure.controller.clouds import owners
from perdure.controller.clouds.base import Instance, InstanceState, Owner
from perdure.controller.clouds.gcp.launching import LABEL, OWNER_KEY

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
    # These run nothing, but their disks are there and billed: they are to be ended still.
    "SUSPENDED": InstanceState.ENDING,
    "STOPPED": InstanceState.ENDING,
    "TERMINATED": InstanceState.ENDING,
}

_ID = re.compile(r"([a-z]+-[a-z]+\d+)-[a-z]/[a-z]([-a-z0-9]{0,61}[a-z0-9])?")


def id_of(zone: str, name: str) -> str:
    return f"{zone}/{name}"


def place_of(id: str, region: str) -> tuple[str, str] | None:
    """(zone, name) of a machine that may be in this region; None if it can not be."""
    found = _ID.fullmatch(id)
    if found is None or found[1] != region:
        return None
    zone, _, name = id.partition("/")
    return zone, name


def rank_of(name: str) -> int:
    """The last word of the name."""
    last = name.rpartition("-")[2]
    return int(last) if last.isdecimal() else 0


def read(told: Any) -> Instance | None:
    """None if it does not say whose it is. Billing is per second, from its start to the end that `history` tells."""
    owner = owner_of(told)
    if owner is None:
        return None
    zone = last_word(told.zone)
    ips = [interface.network_i_p for interface in told.network_interfaces]
    return Instance(
        id=id_of(zone, told.name),
        rank=rank_of(told.name),
        owner=owner,
        state=STATES.get(told.status, InstanceState.ENDING),
        cloud="gcp",
        region=zone.rpartition("-")[0],
        zone=zone,
        instance_type=type_of(told),
        ip=next((ip for ip in ips if ip), None),
        launched_at=epoch_s(told.creation_timestamp),
    )


def owner_of(told: Any) -> Owner | None:
    """From the metadata, which holds it as it is; from the labels where that is lost."""
    for item in told.metadata.items:
        if item.key == OWNER_KEY:
            return _owner_in(item.value)
    return owners.read(dict(told.labels), LABEL)


def type_of(told: Any) -> str:
    """By our name: with what is attached to it."""
    name = last_word(told.machine_type)
    for gpus in told.guest_accelerators:
        if name.startswith("n1-"):
            return f"{name}+{last_word(gpus.accelerator_type).rpartition('-')[2]}x{gpus.accelerator_count}"
    return name


def last_word(link: str) -> str:
    """Of a resource's URL: its name."""
    return link.rpartition("/")[2]


def epoch_s(rfc3339: str) -> float | None:
    """`2026-01-02T03:04:05.678-08:00` as epoch seconds; None if there is none."""
    return datetime.fromisoformat(rfc3339).timestamp() if rfc3339 else None


def _owner_in(text: str) -> Owner | None:
    try:
        tags = json.loads(text)
    except ValueError:
        return None
    return owners.read(tags, LABEL) if isinstance(tags, Mapping) else None
