"""The Azure resources of a controller's own machine: a disk, an address and one open port.

They belong to the region's resource group and are named after the hosted controller. Azure creates and deletes them
asynchronously: methods raise `EventuallyConsistent` until a resource has the desired state.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from typing import Any

from perdure.controller.clouds.azure import faults
from perdure.controller.clouds.azure.machines.launch_request import TAG
from perdure.controller.clouds.azure.sdk.connections import AzureConnections
from perdure.controller.clouds.base.protocol import Disk, EventuallyConsistent, HostRequirements
from perdure.controller.clouds.bootstrap.cloud_config import render_cloud_config

COMPUTE, NETWORK = "providers/Microsoft.Compute", "providers/Microsoft.Network"
DISKS_API = "2024-03-02"
NETWORK_API = "2024-05-01"
STATE_TAG = f"{TAG}state"
DISK_KIND = "StandardSSD_LRS"
LUN = 0
# As SCSI and, on sizes of version 6 and newer, as NVMe: learn.microsoft.com/azure/virtual-machines/azure-vm-utilities
DEVICE = f"/dev/disk/azure/scsi1/lun{LUN},/dev/disk/azure/data/by-lun/{LUN}"
SUCCEEDED = "Succeeded"


class ControllerResources:
    """The resources of the hosted controller `name` in one region. `group`: the path of the resource group."""

    def __init__(self, connections: AzureConnections, group: str, region: str, name: str) -> None:
        self._connections = connections
        self._region = region
        self._tags = {STATE_TAG: name, "Name": "perdure-controller"}
        network = f"{group}/{NETWORK}"
        self.disk = f"{group}/{COMPUTE}/disks/{disk_name(name)}"
        self.interface = f"{network}/networkInterfaces/perdure-{name}"
        self.public_ip = f"{network}/publicIPAddresses/perdure-{name}"
        self.firewall = f"{network}/networkSecurityGroups/perdure-{name}"

    # ---- the disk ----

    def find_disk(self) -> Disk | None:
        """None if there is none."""
        resource = self._connections.find(self.disk, DISKS_API)
        if resource is None:
            return None
        zones, properties = resource.get("zones"), resource["properties"]
        zone = f"{self._region}-{zones[0]}" if zones else self._region
        is_ready = properties.get("provisioningState") == SUCCEEDED
        return Disk(_name(self.disk), zone, int(properties["diskSizeGB"]), is_ready)

    def create_disk(self, zone: str, gib: int) -> Disk:
        """`zone`: as in offers; the region's own name stands for no zone. Azure encrypts all disks."""
        properties = {"creationData": {"createOption": "Empty"}, "diskSizeGB": gib}
        body = {"location": self._region, "tags": self._tags, "sku": {"name": DISK_KIND}, "properties": properties}
        if zone != self._region:
            body["zones"] = [zone.removeprefix(f"{self._region}-")]
        self._connections.call("PUT", self.disk, DISKS_API, body)
        return Disk(_name(self.disk), zone, gib, is_ready=False)

    def require_disk(self, machine: str) -> None:
        """Raises EventuallyConsistent until the disk is ready and not attached to another machine than `machine`."""
        resource = self._connections.find(self.disk, DISKS_API)
        if resource is None or resource["properties"].get("provisioningState") != SUCCEEDED:
            raise EventuallyConsistent(f"the disk {_name(self.disk)} is not ready yet")
        if (holder := _name(resource.get("managedBy") or "")) not in ("", machine):
            raise EventuallyConsistent(f"the disk {_name(self.disk)} is still attached to {holder}")

    def remove_disk(self) -> None:
        """Raises EventuallyConsistent until the disk is gone."""
        resource = self._connections.find(self.disk, DISKS_API)
        if resource is None:
            return
        if holder := _name(resource.get("managedBy") or ""):
            raise EventuallyConsistent(f"the disk {_name(self.disk)} is attached to {holder}")
        self._delete(self.disk, DISKS_API)

    # ---- the network ----

    def require_interface(self, needs: HostRequirements, subnet: str, *, is_public: bool) -> None:
        """Ensure an interface that admits `needs.allowed_cidr` to the port, and nothing else. Raises
        EventuallyConsistent."""
        rule = _rule(needs)
        properties = {"securityRules": [{"name": "users-and-nodes", "properties": rule}]}
        pending = [self._ensure(self.firewall, properties, is_current=lambda now: _has_rule(now, rule))]
        address: dict[str, Any] = {"subnet": {"id": subnet}, "privateIPAllocationMethod": "Dynamic"}
        if is_public:
            allocation = {"publicIPAllocationMethod": "Static"}
            sku = {"sku": {"name": "Standard", "tier": "Regional"}}
            pending += [self._ensure(self.public_ip, allocation, more=sku)]
            address["publicIPAddress"] = {"id": self.public_ip}
        configuration = {"name": "controller", "properties": address}
        group = {"networkSecurityGroup": {"id": self.firewall}}
        if not any(pending):
            pending = [self._ensure(self.interface, {**group, "ipConfigurations": [configuration]})]
        if reasons := [reason for reason in pending if reason]:
            raise EventuallyConsistent("; ".join(reasons))

    def address(self) -> str | None:
        """The interface's public IP address, or its private one. The next machine gets the same."""
        resource = self._connections.find(self.interface, NETWORK_API)
        if resource is None:
            return None
        (configuration,) = resource["properties"]["ipConfigurations"]
        if "publicIPAddress" not in configuration["properties"]:
            private: str | None = configuration["properties"].get("privateIPAddress")
            return private
        public = self._connections.find(self.public_ip, NETWORK_API)
        ip: str | None = public["properties"].get("ipAddress") if public else None
        return ip

    def release(self) -> None:
        """Delete all network resources. Raises EventuallyConsistent until they are gone."""
        for path in (self.interface, self.public_ip, self.firewall):
            if self._connections.find(path, NETWORK_API) is not None:
                self._delete(path, NETWORK_API)

    def _ensure(
        self,
        path: str,
        properties: Mapping[str, Any],
        *,
        more: Mapping[str, Any] | None = None,
        is_current: Callable[[Mapping[str, Any]], bool] = lambda _: True,
    ) -> str | None:
        """Create or update the resource unless it is current. Why it is not ready yet; None if it is."""
        resource = self._connections.find(path, NETWORK_API)
        state = resource["properties"].get("provisioningState") if resource else None
        if resource is None or state == "Failed" or not is_current(resource["properties"]):
            body = {"location": self._region, "tags": self._tags, "properties": properties, **(more or {})}
            state = self._connections.call("PUT", path, NETWORK_API, body)["properties"].get("provisioningState")
        return None if state == SUCCEEDED else f"{path.rpartition('/providers/')[2]} is not ready yet ({state})"

    def _delete(self, path: str, api_version: str) -> None:
        """Always raises: EventuallyConsistent, since a resource is gone only when it is not found, or another error."""
        try:
            self._connections.call("DELETE", path, api_version)
        except Exception as error:
            if faults.code_of(error) not in faults.IN_USE:
                raise
            raise EventuallyConsistent(str(error)) from error
        raise EventuallyConsistent(f"{path.rpartition('/providers/')[2]} is being deleted")


def virtual_machine(
    of_node: Mapping[str, Any], needs: HostRequirements, resources: ControllerResources, *, identity: str
) -> dict[str, Any]:
    """The body of VirtualMachines.CreateOrUpdate for a controller's machine, based on that of a node's."""
    properties = of_node["properties"]
    user_data = render_cloud_config(needs.program, home=needs.home, device=DEVICE)
    disk = {
        "lun": LUN,
        "createOption": "Attach",
        "deleteOption": "Detach",
        "caching": "None",
        "managedDisk": {"id": resources.disk},
    }
    interface = {"id": resources.interface, "properties": {"primary": True, "deleteOption": "Detach"}}
    changed = {
        "osProfile": {**properties["osProfile"], "customData": base64.b64encode(user_data.encode()).decode()},
        "storageProfile": {**properties["storageProfile"], "dataDisks": [disk]},
        "networkProfile": {"networkInterfaces": [interface]},
    }
    return {
        **of_node,
        "properties": {**properties, **changed},
        "identity": {"type": "UserAssigned", "userAssignedIdentities": {identity: {}}},
    }


def disk_name(name: str) -> str:
    return f"perdure-{name}-state"


def _rule(needs: HostRequirements) -> dict[str, Any]:
    return {
        "priority": 100,
        "direction": "Inbound",
        "access": "Allow",
        "protocol": "Tcp",
        "sourcePortRange": "*",
        "sourceAddressPrefix": needs.allowed_cidr,
        "destinationPortRange": str(needs.port),
        "destinationAddressPrefix": "*",
    }


def _has_rule(properties: Mapping[str, Any], expected: Mapping[str, Any]) -> bool:
    rules = [rule["properties"] for rule in properties.get("securityRules", ())]
    return len(rules) == 1 and all(rules[0].get(field) == value for field, value in expected.items())


def _name(id: str) -> str:
    return id.rpartition("/")[2]
