"""Translates Azure's virtual machines.

Azure may accept a machine and find no capacity for it later. The machine never runs, but stays as a resource whose
creation failed. It counts as ENDING with NO_CAPACITY: it must still be deleted.
learn.microsoft.com/azure/virtual-machines/states-billing
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure.controller.clouds.azure.machines.launch_request import RANK, STARTED, TAG
from perdure.controller.clouds.base import tags
from perdure.controller.clouds.base.protocol import Instance, InstanceState
from perdure.recovery.reasons import Reason

if TYPE_CHECKING:
    from azure.mgmt.compute.models import VirtualMachine, VirtualMachineProperties

# By `provisioningState`.
PROVISIONING = {
    "creating": InstanceState.PENDING,
    "updating": InstanceState.RUNNING,
    "migrating": InstanceState.RUNNING,
    "succeeded": InstanceState.RUNNING,
    "deleting": InstanceState.ENDING,
    "failed": InstanceState.ENDING,
    "canceled": InstanceState.ENDING,
}
# By `PowerState/…` of the instance view. A stopped machine is still billed until it is deallocated.
POWER = {
    "starting": InstanceState.PENDING,
    "running": InstanceState.RUNNING,
    "stopping": InstanceState.ENDING,
    "stopped": InstanceState.ENDING,
    "deallocating": InstanceState.ENDING,
    "deallocated": InstanceState.STOPPED,
}


def instance(machine: VirtualMachine, cloud: str) -> Instance | None:
    """None if it does not have the owner's tags. Billing begins with its creation, or its last start.

    Without an instance view (in a list), a created machine counts as RUNNING.
    """
    values = machine.tags or {}
    owner, properties = tags.from_tags(values, TAG), machine.properties
    if owner is None or properties is None or not values.get(RANK, "").isdecimal():
        return None
    region = machine.location.replace(" ", "").lower()
    size = properties.hardware_profile.vm_size if properties.hardware_profile else None
    state, reason = _state(properties)
    created_at = properties.time_created.timestamp() if properties.time_created else None
    started_at = float(values[STARTED]) if values.get(STARTED, "").isdecimal() else created_at
    return Instance(
        id=machine.name or "",
        rank=int(values[RANK]),
        owner=owner,
        state=state,
        cloud=cloud,
        region=region,
        zone=f"{region}-{machine.zones[0]}" if machine.zones else region,
        instance_type=str(getattr(size, "value", size)),  # an enum's member where the SDK knows it
        launched_at=started_at,
        gone_reason=reason,
    )


def is_spot(machine: VirtualMachine) -> bool:
    return machine.properties is not None and machine.properties.priority == "Spot"


def creation_error(machine: VirtualMachine) -> str:
    """Azure's messages about a failed creation."""
    view = machine.properties.instance_view if machine.properties else None
    return "; ".join(f"{one.code}: {one.message}" for one in (view.statuses if view else None) or () if one.message)


def _state(properties: VirtualMachineProperties) -> tuple[InstanceState, Reason | None]:
    provisioning = (properties.provisioning_state or "").lower()
    power = _power(properties)
    if provisioning == "deleting":
        return InstanceState.ENDING, None
    if power in POWER:  # a running machine may count as failed if its system reported too late
        state = POWER[power]
        return state, Reason.MACHINE_STOPPED if state in (InstanceState.ENDING, InstanceState.STOPPED) else None
    state = PROVISIONING.get(provisioning, InstanceState.PENDING)
    has_failed = state is InstanceState.ENDING and properties.instance_view is not None
    return state, Reason.NO_CAPACITY if has_failed else None


def _power(properties: VirtualMachineProperties) -> str:
    statuses = properties.instance_view.statuses if properties.instance_view else None
    codes = [status.code or "" for status in statuses or ()]
    return next((code.partition("/")[2].lower() for code in codes if code.startswith("PowerState/")), "")
