"""Where machines stand: a resource group for each region and, unless the user names a subnet, a network in it.

A group of its own for each region keeps a region's trouble from the others: a group's own data live in one region.
Both are made when the first machine is, and left when the last one goes: they cost nothing.

Nothing listens, but machines must reach the controller: Azure no longer lets machines of new networks out by itself.
A NAT gateway would be billed by the hour in every region, whether machines run or not. So each machine has a public
address of its own, of the kind that lets nobody in, which is billed only while the machine is.
learn.microsoft.com/azure/virtual-network/ip-services/default-outbound-access
"""

from __future__ import annotations

import threading
from typing import Any

from perdure.controller.clouds.azure.connections import Connections
from perdure.controller.clouds.azure.settings import AzureSettings

GROUPS_API = "2021-04-01"
NETWORKS_API = "2024-05-01"
NETWORK, SUBNET = "perdure", "machines"
ADDRESSES = "10.77.0.0/16"


class Places:
    """Shared by threads. What was found once is taken to be there until somebody says that it is not."""

    def __init__(self, settings: AzureSettings, connections: Connections) -> None:
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
        """The id of the subnet for machines; it, and the group, are made if they are missing.

        A network that was just asked for may not be ready for a moment: machines are refused meanwhile.
        """
        own = self._settings.subnets.get(region)
        group = self.path(region)
        network = f"{group}/providers/Microsoft.Network/virtualNetworks/{NETWORK}"
        with self._lock:
            is_ready = region in self._ready
        if not is_ready:
            self._need(group, GROUPS_API, {"location": region})
            if own is None:
                self._need(network, NETWORKS_API, _network(region))
            with self._lock:
                self._ready.add(region)
        return own or f"{network}/subnets/{SUBNET}"

    def forget(self, region: str) -> None:
        """Somebody says that something there is missing: look again the next time."""
        with self._lock:
            self._ready.discard(region)

    def _need(self, path: str, api_version: str, body: dict[str, Any]) -> None:
        """Made only if it is not there: what the user has set on it stays."""
        if self._connections.find(path, api_version) is None:
            self._connections.call("PUT", path, api_version, body)


def _network(region: str) -> dict[str, Any]:
    subnet = {"addressPrefix": ADDRESSES, "defaultOutboundAccess": False}
    properties = {"addressSpace": {"addressPrefixes": [ADDRESSES]}, "subnets": [{"name": SUBNET, "properties": subnet}]}
    return {"location": region, "properties": properties}
