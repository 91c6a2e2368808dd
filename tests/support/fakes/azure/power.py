"""Machines that are deallocated and started again: their disks stay. Times are epoch seconds."""

from __future__ import annotations

from perdure.controller.clouds.local.instances import InstanceRecord
from support.fakes.azure import vms
from support.fakes.azure.responses import Invalid
from support.fakes.azure.vms import Vm
from support.fakes.instance_processes import Machines


def deallocate(vm: Vm, machines: Machines | None, now: float, *, delay_s: float) -> None:
    """Begin to deallocate. Raises Invalid."""
    if vm.state == vms.DELETING:
        raise Invalid("OperationNotAllowed", "The machine is being deleted.", 409)
    if vm.power in ("deallocating", "deallocated"):
        return
    vm.power, vm.settles_at = "deallocating", now + delay_s
    if machines:
        machines.stop(vm.purchase.id)


def needs_start(vm: Vm) -> bool:
    """Whether it is off. Raises Invalid while it is being deallocated."""
    if vm.power == "deallocating":
        raise Invalid("Conflict", "The machine is being deallocated.", 409)
    return vm.power == "deallocated"


def start(vm: Vm, machines: Machines | None, now: float, *, delay_s: float) -> None:
    """Begin to start a machine that is off."""
    vm.purchase.resume(now)
    vm.power, vm.settles_at = "starting", now + delay_s
    if machines and vm.hardware is not None:
        machines.start_again([vm.hardware])


def settle(vm: Vm, machines: Machines | None, record: InstanceRecord | None, now: float) -> None:
    """Update the power state from the process."""
    is_off = record is None or (record.is_halted and not record.is_alive)
    if vm.power == "deallocating" and vm.settles_at <= now and is_off:
        vm.power, vm.purchase.stopped_at = "deallocated", now
    elif vm.power == "starting" and vm.state == vms.SUCCEEDED and vm.settles_at <= now:
        if record is None or machines is None or not machines.is_booting(vm.purchase.id):
            vm.power = "running"
    elif vm.power == "running" and record is not None and is_off:
        vm.power = "stopped"  # it has powered itself off, and is billed until it is deallocated
