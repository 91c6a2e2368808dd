"""Opens ports of machines to the internet: a network security group with exactly these, on their interfaces.

Without a group, a standard public address lets nothing in: learn.microsoft.com/azure/virtual-network/ip-services/
public-ip-addresses. With one, what its rules and Azure's own (within the virtual network) allow. A group of the user's
on the subnet has to allow the ports as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import structlog

from perdure.controller.clouds.azure import faults
from perdure.controller.clouds.azure.machines.launch_request import TAG
from perdure.controller.clouds.azure.sdk.connections import AzureConnections
from perdure.controller.clouds.base.faults import CloudRejected
from perdure.controller.clouds.base.protocol import EventuallyConsistent, LaunchRequest, OpenPorts

log = structlog.get_logger(__name__)

NETWORK_API = "2024-05-01"
RULE = "ports-of-the-cluster"
PRIORITY = 1000
NOT_ALLOWED = (
    "ports of clusters stay closed, because the controller's role does not allow Microsoft.Network/"
    "networkSecurityGroups: update it from deploy/iam/azure-controller.json"
)


def path(group: str, name: str) -> str:
    """The id of the security group of that name. `group`: the path of the resource group."""
    return f"{group}/providers/Microsoft.Network/networkSecurityGroups/{name}"


def ensure_if_allowed(connections: AzureConnections, group: str, request: LaunchRequest) -> str | None:
    """As `ensure`, for a request that opens ports. None without the permission: the ports stay closed.

    Roles made for earlier versions lack it.
    """
    assert request.open_ports is not None
    region = request.offer.region
    try:
        return ensure(connections, group, region, request.open_ports, controller=request.owner.controller)
    except Exception as error:
        if faults.code_of(error) != faults.MISSING_PERMISSION:
            raise
        log.warning("ports.not_opened", region=region, error=faults.classify(error).message)
        return None


def ensure(connections: AzureConnections, group: str, region: str, ports: OpenPorts, *, controller: str) -> str:
    """The id of the security group, with these ports open and no others. Repeatable.

    Raises CloudRejected until Azure has created or changed it: a machine cannot refer to it before.
    """
    id, rule = path(group, ports.name), _rule(ports)
    known = connections.find(id, NETWORK_API)
    if known is None or known["properties"].get("provisioningState") == "Failed" or not _has_rule(known, rule):
        properties = {"securityRules": [{"name": RULE, "properties": rule}]}
        tags = {f"{TAG}controller": controller, "Name": ports.name}
        known = connections.call("PUT", id, NETWORK_API, {"location": region, "tags": tags, "properties": properties})
    if (state := known["properties"].get("provisioningState")) != "Succeeded":
        message = f"the network security group {ports.name} is not ready yet ({state})"
        raise CloudRejected("ReferencedResourceNotProvisioned", message)
    return id


def close(connections: AzureConnections, group: str, name: str) -> None:
    """Delete the group. Raises EventuallyConsistent while a machine that is ending still uses it.

    Does nothing without the permission: then none was created, and a group that is left opens nothing and is free.
    """
    try:
        connections.call("DELETE", path(group, name), NETWORK_API)
    except Exception as error:
        if faults.is_not_found(error) or faults.code_of(error) == faults.MISSING_PERMISSION:
            return
        if faults.code_of(error) not in faults.IN_USE:
            raise
        raise EventuallyConsistent(str(error)) from error


def public_address(connections: AzureConnections, machine: Any) -> str | None:
    """The public address of a machine's first interface; None if it has none, or does not exist yet."""
    profile = machine.properties.network_profile if machine.properties else None
    for reference in (profile.network_interfaces if profile else None) or ():
        interface = connections.find(str(reference.id), NETWORK_API)
        for configuration in interface["properties"].get("ipConfigurations", ()) if interface else ():
            public = configuration["properties"].get("publicIPAddress")
            resource = connections.find(public["id"], NETWORK_API) if public else None
            if resource is not None and (address := resource["properties"].get("ipAddress")):
                return str(address)
    return None


def _rule(ports: OpenPorts) -> dict[str, Any]:
    return {
        "priority": PRIORITY,
        "direction": "Inbound",
        "access": "Allow",
        "protocol": "Tcp",
        "sourcePortRange": "*",
        "sourceAddressPrefix": "Internet",
        "destinationPortRanges": [f"{first}-{last}" if first != last else str(first) for first, last in ports.ranges],
        "destinationAddressPrefix": "*",
    }


def _has_rule(resource: Mapping[str, Any], expected: Mapping[str, Any]) -> bool:
    rules = [one["properties"] for one in resource["properties"].get("securityRules", ())]
    return len(rules) == 1 and all(rules[0].get(field) == value for field, value in expected.items())
