"""What a controller's own machine needs in Azure beside the machine: a disk, an address, and one open port.

They stand in the region's resource group, each by the bring-up's name. Azure makes and deletes them over time: each is
asked for, and looked at again until it is as it should be (`NotYet`).
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from typing import Any

from perdure.controller.clouds.azure import faults
from perdure.controller.clouds.azure.connections import Connections
from perdure.controller.clouds.azure.launching import TAG
from perdure.controller.clouds.base import Disk, NotYet, Standing
from perdure.controller.hosting.cloud_config import cloud_config

COMPUTE, NETWORK = "providers/Microsoft.Compute", "providers/Microsoft.Network"
DISKS_API = "2024-03-02"
NETWORK_API = "2024-05-01"
STATE_TAG = f"{TAG}state"
DISK_KIND = "StandardSSD_LRS"
LUN = 0
DEVICE = f"/dev/disk/azure/scsi1/lun{LUN}"  # no size of the catalog has disks by NVMe
SUCCEEDED = "Succeeded"


class Kept:
    """What is kept for machines of one name, in one region. `group`: the path of its resource group."""

    def __init__(self, connections: Connections, group: str, region: str, name: str) -> None:
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
        found = self._connections.find(self.disk, DISKS_API)
        if found is None:
            return None
        zones, properties = found.get("zones"), found["properties"]
        zone = f"{self._region}-{zones[0]}" if zones else self._region
        is_ready = properties.get("provisioningState") == SUCCEEDED
        return Disk(_name(self.disk), zone, int(properties["diskSizeGB"]), is_ready)

    def make_disk(self, zone: str, gib: int) -> Disk:
        """As offers name zones: the region's own name for none. Azure encrypts it."""
        properties = {"creationData": {"createOption": "Empty"}, "diskSizeGB": gib}
        body = {"location": self._region, "tags": self._tags, "sku": {"name": DISK_KIND}, "properties": properties}
        if zone != self._region:
            body["zones"] = [zone.removeprefix(f"{self._region}-")]
        self._connections.call("PUT", self.disk, DISKS_API, body)
        return Disk(_name(self.disk), zone, gib, is_ready=False)

    def require_disk(self, machine: str) -> None:
        """Raises NotYet until it can be the machine's (its name): ready, and no other's."""
        found = self._connections.find(self.disk, DISKS_API)
        if found is None or found["properties"].get("provisioningState") != SUCCEEDED:
            raise NotYet(f"the disk {_name(self.disk)} is not ready yet")
        if (holder := _name(found.get("managedBy") or "")) not in ("", machine):
            raise NotYet(f"the disk {_name(self.disk)} is that of {holder} still")

    def remove_disk(self) -> None:
        """Raises NotYet while it goes, or a machine has it."""
        found = self._connections.find(self.disk, DISKS_API)
        if found is None:
            return
        if holder := _name(found.get("managedBy") or ""):
            raise NotYet(f"the disk {_name(self.disk)} is that of {holder}")
        self._delete(self.disk, DISKS_API)

    # ---- the network ----

    def require_interface(self, needs: Standing, subnet: str, *, is_public: bool) -> None:
        """One by which `needs.callers` reach the port, and nobody anything else. Raises NotYet."""
        rule = _rule(needs)
        properties = {"securityRules": [{"name": "users-and-nodes", "properties": rule}]}
        pending = [self._need(self.firewall, properties, fits=lambda told: _is_rule(told, rule))]
        address: dict[str, Any] = {"subnet": {"id": subnet}, "privateIPAllocationMethod": "Dynamic"}
        if is_public:
            given = {"publicIPAllocationMethod": "Static"}
            pending += [self._need(self.public_ip, given, more={"sku": {"name": "Standard", "tier": "Regional"}})]
            address["publicIPAddress"] = {"id": self.public_ip}
        configuration = {"name": "controller", "properties": address}
        group = {"networkSecurityGroup": {"id": self.firewall}}
        if not any(pending):
            pending = [self._need(self.interface, {**group, "ipConfigurations": [configuration]})]
        if waiting := [one for one in pending if one]:
            raise NotYet("; ".join(waiting))

    def address(self) -> str | None:
        """At which the interface is reached: its public one, if it has one. It is the next machine's, too."""
        found = self._connections.find(self.interface, NETWORK_API)
        if found is None:
            return None
        (configuration,) = found["properties"]["ipConfigurations"]
        if "publicIPAddress" not in configuration["properties"]:
            private: str | None = configuration["properties"].get("privateIPAddress")
            return private
        public = self._connections.find(self.public_ip, NETWORK_API)
        told: str | None = public["properties"].get("ipAddress") if public else None
        return told

    def leave(self) -> None:
        """Nothing of the network is left. Raises NotYet while it goes."""
        for path in (self.interface, self.public_ip, self.firewall):
            if self._connections.find(path, NETWORK_API) is not None:
                self._delete(path, NETWORK_API)

    def _need(
        self,
        path: str,
        properties: Mapping[str, Any],
        *,
        more: Mapping[str, Any] | None = None,
        fits: Callable[[Mapping[str, Any]], bool] = lambda _: True,
    ) -> str | None:
        """Asked for, unless it is there as it should be; why it can not be used yet, None if it can."""
        found = self._connections.find(path, NETWORK_API)
        state = found["properties"].get("provisioningState") if found else None
        if found is None or state == "Failed" or not fits(found["properties"]):
            body = {"location": self._region, "tags": self._tags, "properties": properties, **(more or {})}
            state = self._connections.call("PUT", path, NETWORK_API, body)["properties"].get("provisioningState")
        return None if state == SUCCEEDED else f"{path.rpartition('/providers/')[2]} is not ready yet ({state})"

    def _delete(self, path: str, api_version: str) -> None:
        """Always raises NotYet, or worse: only what is not found any more is gone."""
        try:
            self._connections.call("DELETE", path, api_version)
        except Exception as error:
            if faults.code_of(error) not in faults.IN_USE:
                raise
            raise NotYet(str(error)) from error
        raise NotYet(f"{path.rpartition('/providers/')[2]} is being deleted")


def virtual_machine(of_node: Mapping[str, Any], needs: Standing, kept: Kept, *, identity: str) -> dict[str, Any]:
    """The body of VirtualMachines.CreateOrUpdate for a controller's machine, from that of a node's."""
    properties = of_node["properties"]
    user_data = cloud_config(needs.program, home=needs.home, device=DEVICE)
    disk = {
        "lun": LUN,
        "createOption": "Attach",
        "deleteOption": "Detach",
        "caching": "None",
        "managedDisk": {"id": kept.disk},
    }
    interface = {"id": kept.interface, "properties": {"primary": True, "deleteOption": "Detach"}}
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


def _rule(needs: Standing) -> dict[str, Any]:
    return {
        "priority": 100,
        "direction": "Inbound",
        "access": "Allow",
        "protocol": "Tcp",
        "sourcePortRange": "*",
        "sourceAddressPrefix": needs.callers,
        "destinationPortRange": str(needs.port),
        "destinationAddressPrefix": "*",
    }


def _is_rule(told: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    rules = [one["properties"] for one in told.get("securityRules", ())]
    return len(rules) == 1 and all(rules[0].get(field) == value for field, value in wanted.items())


def _name(id: str) -> str:
    return id.rpartition("/")[2]
