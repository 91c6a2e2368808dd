"""The virtual machines of the fake Azure: their life cycle and their descriptions."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from perdure.recovery.market.view import Market
from support.fakes.instance_processes import InstanceProcess
from support.fakes.purchases import Purchase

CREATING, SUCCEEDED, FAILED, DELETING = "Creating", "Succeeded", "Failed", "Deleting"


@dataclass
class Vm:
    """One virtual machine. Times are epoch seconds."""

    id: str
    body: dict[str, Any]
    purchase: Purchase  # its entry in the ledger
    state: str
    settles_at: float  # when the current operation completes
    failure: tuple[str, str] | None = None  # the code and text with which its creation fails
    evicted_at: float | None = None  # None if no eviction is announced
    ip: str = ""
    power: str = "starting"
    operation: str = ""
    hardware: InstanceProcess | None = None

    @property
    def is_gone(self) -> bool:
        return self.purchase.ended_at is not None

    def resource(self, *, with_view: bool) -> dict[str, Any]:
        """The response of GET, without the secrets of the body."""
        properties = {name: value for name, value in self.body["properties"].items() if name != "networkProfile"}
        properties["osProfile"] = {n: v for n, v in properties["osProfile"].items() if n != "customData"}
        nic = f"{self.id.rpartition('/providers/')[0]}/providers/Microsoft.Network/networkInterfaces/{self.purchase.id}"
        properties |= {
            "provisioningState": self.state,
            "timeCreated": iso(self.purchase.launched_at),
            "vmId": f"00000000-0000-0000-0000-{abs(hash(self.id)) % 10**12:012d}",
            "networkProfile": {"networkInterfaces": [{"id": nic, "properties": {"primary": True}}]},
        }
        if "networkInterfaces" in self.body["properties"]["networkProfile"]:
            properties["networkProfile"] = self.body["properties"]["networkProfile"]
        if with_view:
            properties["instanceView"] = self.view()
        about = {"id": self.id, "name": self.purchase.id, "type": "Microsoft.Compute/virtualMachines"}
        return {**self.body, **about, "properties": properties}

    def view(self) -> dict[str, Any]:
        """The instance view, which `$expand=instanceView` adds."""
        code = f"ProvisioningState/{self.state.lower()}"
        status = {"code": code, "level": "Info", "displayStatus": self.state, "time": iso(self.purchase.launched_at)}
        if self.state == FAILED and self.failure:
            status |= {"code": f"{code}/{self.failure[0]}", "level": "Error", "message": self.failure[1]}
            return {"statuses": [status]}
        power = {"code": f"PowerState/{self.power}", "level": "Info", "displayStatus": f"VM {self.power}"}
        return {"statuses": [status, power]}


def market_of(body: dict[str, Any]) -> Market:
    return Market.SPOT if body["properties"].get("priority") == "Spot" else Market.ON_DEMAND


def zone_of(body: dict[str, Any]) -> str:
    """The zone as Perdure names it: region and number, or the region alone if it has no zones."""
    zones = body.get("zones")
    return f"{body['location']}-{zones[0]}" if zones else str(body["location"])


def iso(epoch_s: float) -> str:
    return datetime.fromtimestamp(epoch_s, UTC).isoformat().replace("+00:00", "Z")
