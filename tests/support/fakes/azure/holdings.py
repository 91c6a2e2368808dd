"""Resources that outlive machines: disks, interfaces, addresses, security groups; identities and their roles.

Bodies are checked against the SDK's models; those of identities and roles, for which no SDK is installed, against the
parts of the REST reference that are repeated below.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from support.fakes.azure import validation
from support.fakes.azure.faults import Faults
from support.fakes.azure.responses import Answer, Invalid
from support.fakes.azure.vms import Vm

DISKS = "Microsoft.Compute/disks"
INTERFACES = "Microsoft.Network/networkInterfaces"
ADDRESSES = "Microsoft.Network/publicIPAddresses"
FIREWALLS = "Microsoft.Network/networkSecurityGroups"
IDENTITIES = "Microsoft.ManagedIdentity/userAssignedIdentities"
ROLES = "Microsoft.Authorization/roleDefinitions"
ASSIGNMENTS = "Microsoft.Authorization/roleAssignments"
KINDS = (DISKS, INTERFACES, ADDRESSES, FIREWALLS, IDENTITIES, ROLES, ASSIGNMENTS)
# The fields of a body: learn.microsoft.com/rest/api/authorization and …/rest/api/managedidentity
_FIELDS = {
    IDENTITIES: ({"location", "tags"}, set()),
    ROLES: ({"properties"}, {"roleName", "description", "type", "permissions", "assignableScopes"}),
    ASSIGNMENTS: ({"properties"}, {"roleDefinitionId", "principalId", "principalType"}),
}


class Holdings:
    """The resources of a subscription. `vms` returns the machines that exist, which determine what is in use."""

    def __init__(self, faults: Faults, vms: Callable[[], Iterable[Vm]]) -> None:
        self._faults = faults
        self._vms = vms
        self._all: dict[str, dict[str, Any]] = {}  # by id, in lower case
        self._ready_at: dict[str, float] = {}
        self._gone_at: dict[str, float] = {}
        self._addresses = 0

    def of(self, kind: str) -> list[dict[str, Any]]:
        """All resources of a kind."""
        return [one for id, one in self._all.items() if f"/providers/{kind.lower()}/" in id]

    def grants(self, identity: str) -> list[dict[str, Any]]:
        """The permissions of the identity of that name, by its roles."""
        (resource,) = [one for one in self.of(IDENTITIES) if one["name"] == identity]
        roles = [
            one["properties"]["roleDefinitionId"]
            for one in self.of(ASSIGNMENTS)
            if one["properties"]["principalId"] == resource["properties"]["principalId"]
        ]
        return [one for id in roles for one in self._all[id.lower()]["properties"]["permissions"]]

    def answer(self, kind: str, path: str, method: str, body: Any, now: float) -> Answer:
        """Answer a request for one resource. Raises Invalid."""
        id = path.lower()
        if self._gone_at.get(id, now + 1) <= now:
            del self._all[id], self._gone_at[id]
        if method == "PUT":
            return self._put(kind, path, body, now)
        if id not in self._all:
            if method == "GET" and (made := self._made_with_a_machine(kind, path)) is not None:
                return Answer(200, made)
            if method == "DELETE":
                return Answer(204)
            raise Invalid("ResourceNotFound", f"The Resource '{path}' was not found.", 404)
        if method == "DELETE":
            self._require_unused(kind, path)
            self._gone_at.setdefault(id, now + self._faults.delay_s)
            return Answer(202)
        return Answer(200, self._shown(kind, id, now))

    def check(self, body: Mapping[str, Any], name: str, now: float) -> None:
        """Check that a new machine may use the resources that its body names. Raises Invalid."""
        properties = body["properties"]
        self._check_firewalls(properties["networkProfile"], now)
        for reference in properties["networkProfile"].get("networkInterfaces", ()):
            self._require_existing(reference["id"])
            if others := self._holders(reference["id"], "networkInterfaces", name):
                raise Invalid(
                    "NicInUse", f"Network Interface {reference['id']} is used by existing resource {others[0]}"
                )
        for disk in properties["storageProfile"].get("dataDisks", ()):
            id = disk["managedDisk"]["id"]
            self._require_existing(id)
            attached = self._shown(DISKS, id.lower(), now)
            if attached.get("zones") != body.get("zones"):
                raise Invalid("BadRequest", f"Disk {id} cannot be attached to the VM because it is not in zone {name}.")
            if self._holders(id, "dataDisks", name):
                raise Invalid("OperationNotAllowed", f"Disk {id} is attached to another VM.", 409)
            if attached["properties"]["provisioningState"] != "Succeeded":
                raise Invalid("OperationNotAllowed", f"Disk {id} is not ready.", 409)
        for id in body.get("identity", {}).get("userAssignedIdentities", {}):
            if id.lower() not in self._all and "/resourcegroups/own/" not in id.lower():
                raise Invalid("FailedIdentityOperation", f"Resource '{id}' was not found.")

    def _check_firewalls(self, profile: Mapping[str, Any], now: float) -> None:
        """Check the security groups of the interfaces that are to be created. Raises Invalid."""
        for configuration in profile.get("networkInterfaceConfigurations", ()):
            if (group := configuration["properties"].get("networkSecurityGroup")) is not None:
                self._require_existing(group["id"])
                state = self._shown(FIREWALLS, group["id"].lower(), now)["properties"]["provisioningState"]
                if state != "Succeeded":
                    raise Invalid("ReferencedResourceNotProvisioned", f"{group['id']} is {state}.", 409)

    def _put(self, kind: str, path: str, body: Any, now: float) -> Answer:
        self._validate(kind, body)
        id, name = path.lower(), path.rpartition("/")[2]
        before = self._all.get(id)
        made = {"id": path, "name": name, "type": kind, **body, "properties": dict(body.get("properties", {}))}
        if kind == IDENTITIES:
            made["properties"] = before["properties"] if before else {"principalId": str(uuid.uuid4())}
        if kind == ASSIGNMENTS:
            self._assign(made["properties"], before is not None)
        if kind == INTERFACES:
            self._connect(made["properties"])
        if kind == ADDRESSES:
            self._addresses += 1
            address = before["properties"].get("ipAddress") if before else None
            made["properties"]["ipAddress"] = address or f"127.78.0.{self._addresses}"
        self._all[id] = made
        self._gone_at.pop(id, None)
        self._ready_at[id] = now + (self._faults.delay_s if kind in (DISKS, INTERFACES, ADDRESSES, FIREWALLS) else 0)
        return Answer(200 if before else 201, self._shown(kind, id, now))

    def _validate(self, kind: str, body: Any) -> None:
        if kind not in _FIELDS:
            validation.holding(kind, body)
            return
        outer, inner = _FIELDS[kind]
        for names, value in ((outer, body), (inner, body.get("properties", {}))):
            if unknown := set(value) - names:
                raise Invalid(
                    "InvalidRequestContent", f"Could not find member '{unknown.pop()}' on object of type '{kind}'."
                )
            if missing := (names - {"tags"}) - set(value):
                raise Invalid("InvalidRequestContent", f"'{missing.pop()}' of '{kind}' is missing.")

    def _assign(self, properties: Mapping[str, Any], already_exists: bool) -> None:
        if already_exists:
            raise Invalid("RoleAssignmentExists", "The role assignment already exists.", 409)
        if self._faults.identities_listed_slowly > 0:
            self._faults.identities_listed_slowly -= 1
            raise Invalid(
                "PrincipalNotFound", f"Principal {properties['principalId']} does not exist in the directory."
            )
        if properties["roleDefinitionId"].lower() not in self._all:
            raise Invalid("RoleDefinitionDoesNotExist", "The specified role definition does not exist.")
        known = [one["properties"]["principalId"] for one in self.of(IDENTITIES)]
        if properties["principalId"] not in known:
            raise Invalid(
                "PrincipalNotFound", f"Principal {properties['principalId']} does not exist in the directory."
            )

    def _connect(self, properties: Mapping[str, Any]) -> None:
        self._require_existing(properties["networkSecurityGroup"]["id"])
        for one in properties["ipConfigurations"]:
            configuration = one["properties"]
            configuration["privateIPAddress"] = "127.79.0.1"
            if "publicIPAddress" in configuration:
                self._require_existing(configuration["publicIPAddress"]["id"])

    def _require_existing(self, id: str) -> None:
        if id.lower() not in self._all:
            raise Invalid("InvalidResourceReference", f"Resource {id} referenced by resource was not found.")

    def _require_unused(self, kind: str, path: str) -> None:
        within = [one for one in self.of(INTERFACES) if path.lower() in str(one).lower() and one["id"] != path]
        if kind == FIREWALLS:
            bodies = ((vm.id, str(vm.body["properties"]["networkProfile"])) for vm in self._vms())
            within += [{"id": id} for id, profile in bodies if path.lower() in profile.lower()]
        if kind == FIREWALLS and within:
            raise Invalid("InUseNetworkSecurityGroupCannotBeDeleted", f"{path} is in use by {within[0]['id']}.")
        if kind == ADDRESSES and within:
            raise Invalid("PublicIPAddressCannotBeDeleted", f"{path} is still allocated to {within[0]['id']}.")
        if kind == INTERFACES and self._holders(path, "networkInterfaces"):
            raise Invalid("NicInUse", f"Network Interface {path} is used by an existing machine.")
        if kind == DISKS and self._holders(path, "dataDisks"):
            raise Invalid("OperationNotAllowed", f"Disk {path} is attached to a VM.", 409)

    def _made_with_a_machine(self, kind: str, path: str) -> dict[str, Any] | None:
        """The interface or the public address that Azure has created with a machine, whose name it has here."""
        name = path.rpartition("/")[2]
        vm = next((one for one in self._vms() if one.purchase.id.lower() == name.lower()), None)
        profile = vm.body["properties"]["networkProfile"] if vm else {}
        if vm is None or "networkInterfaceConfigurations" not in profile:
            return None
        about = {"id": path, "name": name, "type": kind}
        if kind == ADDRESSES:
            return {**about, "properties": {"ipAddress": f"127.78.1.{1 + vm.purchase.index}"}}
        properties = profile["networkInterfaceConfigurations"][0]["properties"]
        configuration: dict[str, Any] = {"privateIPAddress": vm.ip}
        if "publicIPAddressConfiguration" in properties["ipConfigurations"][0]["properties"]:
            configuration["publicIPAddress"] = {"id": path.replace(INTERFACES, ADDRESSES)}
        group = {k: v for k, v in properties.items() if k == "networkSecurityGroup"}
        return {**about, "properties": {**group, "ipConfigurations": [{"properties": configuration}]}}

    def _holders(self, id: str, part: str, but: str = "") -> list[str]:
        """The ids of machines, other than `but`, that use a resource."""
        held = [(vm, vm.body["properties"]["networkProfile" if part == "networkInterfaces" else "storageProfile"])
                for vm in self._vms()]  # fmt: skip
        return [vm.id for vm, profile in held if vm.purchase.id != but and id.lower() in str(profile.get(part)).lower()]

    def _shown(self, kind: str, id: str, now: float) -> dict[str, Any]:
        one = self._all[id]
        if kind not in (DISKS, INTERFACES, ADDRESSES, FIREWALLS):
            return one
        state = "Deleting" if id in self._gone_at else "Succeeded" if self._ready_at[id] <= now else "Updating"
        shown = {**one, "properties": {**one["properties"], "provisioningState": state}}
        if kind == DISKS and (holders := self._holders(one["id"], "dataDisks")):
            shown["managedBy"] = holders[0]
        return shown
