"""A resource group for each region and, unless the user names a subnet, a network in it.

Azure stores a group's metadata in one region: with a group per region, an outage of a region does not affect others.
Both are created with the first machine and stay after the last one: they cost nothing.

Machines need no inbound traffic, but must reach the controller, and new networks of Azure have no outbound access by
default. A NAT gateway would be billed by the hour in every region. So each machine has a public address of its own that
blocks inbound traffic and is billed only while the machine exists.
learn.microsoft.com/azure/virtual-network/ip-services/default-outbound-access
"""

from __future__ import annotations

import threading
from typing import Any

from perdure.controller.clouds.azure.sdk.connections import AzureConnections
from perdure.controller.clouds.azure.settings import AzureSettings

GROUPS_API = "2021-04-01"
NETWORKS_API = "2024-05-01"
NETWORK, SUBNET = "perdure", "machines"
ADDRESSES = "10.77.0.0/16"


class Networks:
    """Thread-safe. Groups and networks that were found once count as existing until `forget`."""

    def __init__(self, settings: AzureSettings, connections: AzureConnections) -> None:
        self._settings = settings
        self._connections = connections
        self._lock = threading.Lock()
        self._ready: set[str] = set()

    def group(self, region: str) -> str:
        """The name of the region's resource group."""
        return f"{self._settings.resource_group}-{region}"

    def path(self, region: str) -> str:
        """The id of that group."""
        return f"/subscriptions/{self._connections.subscription}/resourceGroups/{self.group(region)}"

    def subnet(self, region: str) -> str:
        """The id of the subnet for machines. Creates it and the group if they are missing.

        A new network takes a moment to become ready; until then Azure rejects machines.
        """
        own = self._settings.subnets.get(region)
        group = self.path(region)
        network = f"{group}/providers/Microsoft.Network/virtualNetworks/{NETWORK}"
        with self._lock:
            is_ready = region in self._ready
        if not is_ready:
            self._ensure(group, GROUPS_API, {"location": region})
            if own is None:
                self._ensure(network, NETWORKS_API, _network(region))
            with self._lock:
                self._ready.add(region)
        return own or f"{network}/subnets/{SUBNET}"

    def forget(self, region: str) -> None:
        """The group or the network may be missing: the next `subnet` checks again."""
        with self._lock:
            self._ready.discard(region)

    def _ensure(self, path: str, api_version: str, body: dict[str, Any]) -> None:
        """Create the resource if it does not exist. The user's settings on an existing one stay."""
        if self._connections.find(path, api_version) is None:
            self._connections.call("PUT", path, api_version, body)


def _network(region: str) -> dict[str, Any]:
    subnet = {"addressPrefix": ADDRESSES, "defaultOutboundAccess": False}
    properties = {"addressSpace": {"addressPrefixes": [ADDRESSES]}, "subnets": [{"name": SUBNET, "properties": subnet}]}
    return {"location": region, "properties": properties}
