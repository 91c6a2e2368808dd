"""Azure's description of a virtual machine, read as ours.

A machine may be accepted and yet never be given room: then it stays, as a resource whose creation failed. Nothing ever
ran on it. It counts as ENDING with NO_CAPACITY: lost, and to be deleted still.
learn.microsoft.com/azure/virtual-machines/states-billing
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure.controller.clouds import owners
from perdure.controller.clouds.azure.launching import RANK, TAG
from perdure.controller.clouds.base import Instance, InstanceState
from perdure.recovery.reasons import Reason

if TYPE_CHECKING:
    from azure.mgmt.compute.models import VirtualMachine, VirtualMachineProperties

# `provisioningState`: what Azure does with the resource.
PROVISIONING = {
    "creating": InstanceState.PENDING,
    "updating": InstanceState.RUNNING,
    "migrating": InstanceState.RUNNING,
    "succeeded": InstanceState.RUNNING,
    "deleting": InstanceState.ENDING,
    "failed": InstanceState.ENDING,
    "canceled": InstanceState.ENDING,
}
# `PowerState/…` of the instance view. A stopped machine is billed still, and the disk of a deallocated one.
POWER = {
    "starting": InstanceState.PENDING,
    "running": InstanceState.RUNNING,
    "stopping": InstanceState.ENDING,
    "stopped": InstanceState.ENDING,
    "deallocating": InstanceState.ENDING,
    "deallocated": InstanceState.ENDING,
}


def read(told: VirtualMachine, cloud: str) -> Instance | None:
    """None if it does not carry our tags. Its owner, rank and place are told by tags; billing begins with its creation.

    Without an instance view (in a list), a machine that was created counts as running.
    """
    tags = told.tags or {}
    owner, properties = owners.read(tags, TAG), told.properties
    if owner is None or properties is None or not tags.get(RANK, "").isdecimal():
        return None
    region = told.location.replace(" ", "").lower()
    size = properties.hardware_profile.vm_size if properties.hardware_profile else None
    state, reason = _state(properties)
    return Instance(
        id=told.name or "",
        rank=int(tags[RANK]),
        owner=owner,
        state=state,
        cloud=cloud,
        region=region,
        zone=f"{region}-{told.zones[0]}" if told.zones else region,
        instance_type=str(getattr(size, "value", size)),  # an enum's member where the SDK knows it
        launched_at=properties.time_created.timestamp() if properties.time_created else None,
        gone_reason=reason,
    )


def is_spot(told: VirtualMachine) -> bool:
    return told.properties is not None and told.properties.priority == "Spot"


def trouble(told: VirtualMachine) -> str:
    """What Azure says of a creation that failed."""
    view = told.properties.instance_view if told.properties else None
    return "; ".join(f"{one.code}: {one.message}" for one in (view.statuses if view else None) or () if one.message)


def _state(properties: VirtualMachineProperties) -> tuple[InstanceState, Reason | None]:
    provisioning = (properties.provisioning_state or "").lower()
    power = _power(properties)
    if provisioning == "deleting":
        return InstanceState.ENDING, None
    if power in POWER:  # its creation may count as failed although it runs: the system was slow to say so
        state = POWER[power]
        return state, Reason.MACHINE_STOPPED if state is InstanceState.ENDING else None
    state = PROVISIONING.get(provisioning, InstanceState.PENDING)
    has_failed = state is InstanceState.ENDING and properties.instance_view is not None
    return state, Reason.NO_CAPACITY if has_failed else None


def _power(properties: VirtualMachineProperties) -> str:
    statuses = properties.instance_view.statuses if properties.instance_view else None
    codes = [status.code or "" for status in statuses or ()]
    return next((code.partition("/")[2].lower() for code in codes if code.startswith("PowerState/")), "")
