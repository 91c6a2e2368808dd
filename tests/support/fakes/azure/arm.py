"""The state and operations of the fake Azure: resource groups, networks and virtual machines."""

from __future__ import annotations

import base64
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from perdure.controller.clouds.azure.pricing.catalog import REGIONS
from perdure.controller.clouds.local import layout
from perdure.recovery.market.view import Market
from support.fakes.azure import power, validation, vms
from support.fakes.azure.faults import STATUSES, TEXTS, Faults
from support.fakes.azure.holdings import Holdings
from support.fakes.azure.metadata import MetadataService
from support.fakes.azure.responses import Answer, Headers, Invalid
from support.fakes.azure.retail import price
from support.fakes.azure.sizes import LAUNCHED
from support.fakes.azure.vms import Vm
from support.fakes.instance_processes import InstanceProcess, Machines
from support.fakes.purchases import Purchase

PAGE = 3  # machines in one answer


class Arm:
    """Resource Manager. It handles one call at a time. `machines`: None if no processes run behind the machines."""

    def __init__(
        self, faults: Faults, machines: Machines | None, base_url: str, token: str, image_files: dict[str, str]
    ) -> None:
        self._faults = faults
        self._machines = machines
        self._base_url = base_url
        self._token = token  # for the identity of a machine
        self._image_files = image_files
        self._lock = threading.RLock()
        self._groups: dict[str, str] = {}
        self._networks: dict[str, dict[str, Any]] = {}
        self._vms: dict[str, Vm] = {}  # by resource id, in lower case; the newest of its name
        self.holdings = Holdings(faults, self._vms.values)
        self._past: list[Vm] = []  # machines that have ended
        self._operations: dict[str, tuple[Vm, str]] = {}  # id → (its machine, "create" or "delete")
        self._metadata: dict[str, MetadataService] = {}
        self._timers: list[threading.Timer] = []

    def close(self) -> None:
        for timer in self._timers:
            timer.cancel()
        for service in self._metadata.values():
            service.close()

    # ---- groups and networks ----

    def group(self, path: str, method: str, body: Any) -> Answer:
        with self._lock:
            if method == "PUT":
                is_new = path.lower() not in self._groups
                self._groups[path.lower()] = body["location"]
                return Answer(201 if is_new else 200, {"id": path, "location": body["location"]})
            if path.lower() not in self._groups:
                raise _no_group(path)
            return Answer(200, {"id": path, "location": self._groups[path.lower()]})

    def network(self, group: str, path: str, method: str, body: Any) -> Answer:
        with self._lock:
            self._require_group(group)
            if method == "PUT":
                validation.virtual_network(body)
                self._networks[path.lower()] = body
                return Answer(201, {"id": path, **body})
            if path.lower() not in self._networks:
                raise Invalid("ResourceNotFound", f"The Resource '{path}' was not found.", 404)
            return Answer(200, {"id": path, **self._networks[path.lower()]})

    def holding(self, kind: str, group: str, path: str, method: str, body: Any) -> Answer:
        with self._lock:
            self._settle()
            if group:
                self._require_group(group)
            return self.holdings.answer(kind, path, method, body, _now())

    # ---- virtual machines ----

    def create(self, group: str, path: str, body: Any, headers: Headers) -> Answer:
        with self._lock:
            self._settle()
            self._require_group(group)
            validation.virtual_machine(body)
            before = self._vms.get(path.lower())
            if before is not None and headers.get("If-None-Match") == "*":
                raise Invalid("PreconditionFailed", "The condition '*' in the If-None-Match header is not met.", 412)
            if before is not None:
                text = "Changing property 'osProfile.customData' is not allowed."
                raise Invalid("PropertyChangeNotAllowed", text, 409)
            self._check(body)
            self.holdings.check(body, path.rpartition("/")[2], _now())
            self._admit(body)
            vm = self._record_launch(path, body)
            return self._accepted(vm, 201, vm.resource(with_view=False))

    def get(self, group: str, path: str, query: Mapping[str, str]) -> Answer:
        with self._lock:
            self._settle()
            self._require_group(group)
            vm = self._vms.get(path.lower())
            if vm is None or self._is_hidden(vm):
                raise Invalid("ResourceNotFound", f"The Resource '{path}' was not found.", 404)
            return Answer(200, vm.resource(with_view=query.get("$expand") == "instanceView"))

    def list(self, group: str, path: str, query: Mapping[str, str]) -> Answer:
        with self._lock:
            self._settle()
            self._require_group(group)
            listed = [vm for id, vm in self._vms.items() if id.startswith(path.lower()) and not self._is_hidden(vm)]
            start = int(query.get("$skiptoken", "0"))
            page: dict[str, Any] = {"value": [vm.resource(with_view=False) for vm in listed[start : start + PAGE]]}
            if start + PAGE < len(listed):
                version = query["api-version"]
                page["nextLink"] = f"{self._base_url}{path}?api-version={version}&$skiptoken={start + PAGE}"
            return Answer(200, page)

    def delete(self, group: str, path: str) -> Answer:
        with self._lock:
            self._settle()
            self._require_group(group)
            vm = self._vms.get(path.lower())
            if vm is None:
                return Answer(204)
            if vm.state != vms.DELETING:
                vm.state, vm.settles_at = vms.DELETING, _now() + self._faults.delay_s
                if self._machines:
                    self._machines.terminate(vm.purchase.id)
            return self._accepted(vm, 202, None)

    def update(self, group: str, path: str, body: Any) -> Answer:
        with self._lock:
            self._settle()
            validation.virtual_machine_update(body)
            vm = self._require_vm(group, path)
            vm.body = {**vm.body, "tags": body["tags"]}
            vm.purchase.tags = dict(body["tags"])
            if service := self._metadata.get(vm.purchase.id):
                service.user_data = body["properties"]["userData"]
            return Answer(200, vm.resource(with_view=False))

    def act(self, group: str, path: str, action: str) -> Answer:
        """`action`: deallocate, start, retrieveBootDiagnosticsData or simulateEviction."""
        if action == "simulateEviction":
            return self.simulate_eviction(group, path)
        with self._lock:
            self._settle()
            vm = self._require_vm(group, path)
            if action == "retrieveBootDiagnosticsData":
                if not vm.body["properties"].get("diagnosticsProfile", {}).get("bootDiagnostics", {}).get("enabled"):
                    raise Invalid("OperationNotAllowed", "Boot diagnostics is not enabled for this machine.", 409)
                return Answer(200, {"serialConsoleLogBlobUri": f"{self._base_url}/console/{vm.purchase.id}"})
            if action == "deallocate":
                power.deallocate(vm, self._machines, _now(), delay_s=self._faults.delay_s)
            elif power.needs_start(vm):
                self._admit(vm.body)
                power.start(vm, self._machines, _now(), delay_s=self._faults.delay_s)
            return self._accepted(vm, 202, {})

    def console(self, name: str) -> str:
        return self._machines.agent_log(name) if self._machines else f"{name} login:"

    def _require_vm(self, group: str, path: str) -> Vm:
        self._require_group(group)
        vm = self._vms.get(path.lower())
        if vm is None:
            raise Invalid("ResourceNotFound", f"The Resource '{path}' was not found.", 404)
        return vm

    def simulate_eviction(self, group: str, path: str) -> Answer:
        with self._lock:
            self._settle()
            vm = self._require_vm(group, path)
            if vm.purchase.market is not Market.SPOT:
                raise Invalid("OperationNotAllowed", "The operation is supported for Azure Spot VMs only.", 409)
            self._evict(vm, self._faults.evicted_after_s)
            return Answer(204)

    def operation(self, id: str) -> Answer:
        """The state of the operation that the header Azure-AsyncOperation names."""
        with self._lock:
            self._settle()
            if id not in self._operations:
                raise Invalid("NotFound", f"The operation {id} was not found.", 404)
            vm, kind = self._operations[id]
            if kind == "delete":
                return Answer(200, {"status": "Succeeded" if vm.is_gone else "InProgress"})
            if vm.state == vms.CREATING:
                return Answer(200, {"status": "InProgress"})
            if vm.state == vms.FAILED and vm.failure:
                error = {"code": vm.failure[0], "message": vm.failure[1]}
                return Answer(200, {"status": "Failed", "error": error})
            return Answer(200, {"status": "Succeeded"})

    # ---- for tests ----

    def purchases(self) -> list[Purchase]:
        with self._lock:
            self._settle()
            return [vm.purchase for vm in (*self._past, *self._vms.values())]

    def evict(self, name: str, notice_s: float | None) -> None:
        with self._lock:
            self._evict(self._named(name), notice_s)

    def delete_by_hand(self, name: str) -> None:
        self.delete(self._named(name).id.partition("/providers/")[0], self._named(name).id)

    def body_of(self, name: str) -> dict[str, Any]:
        return self._named(name).body

    def forget_networks(self) -> None:
        self._networks.clear()

    def networks(self) -> dict[str, dict[str, Any]]:
        return dict(self._networks)

    def metadata_of(self, name: str) -> MetadataService:
        return self._metadata[name]

    # ---- creation ----

    def _check(self, body: dict[str, Any]) -> None:
        """Check what the models of the SDK do not cover. Raises Invalid."""
        properties = body["properties"]
        if properties["hardwareProfile"]["vmSize"] not in LAUNCHED:
            text = f"The value {properties['hardwareProfile']['vmSize']} provided for the VM size is not valid."
            raise Invalid("InvalidParameter", text)
        if properties.get("priority") != "Spot" and ("evictionPolicy" in properties or "billingProfile" in properties):
            text = "Eviction policy can be set only on Azure Spot Virtual Machines."
            raise Invalid("EvictionPolicyCanBeSetOnlyOnAzureSpotVirtualMachines", text, 409)
        for zone in body.get("zones", ()):
            if zone not in REGIONS[body["location"]].zones:
                raise Invalid("InvalidAvailabilityZone", f"The zone(s) '{zone}' is not supported.")
        for nic in properties["networkProfile"].get("networkInterfaceConfigurations", ()):
            subnet = nic["properties"]["ipConfigurations"][0]["properties"]["subnet"]["id"]
            network = subnet.rpartition("/subnets/")[0]
            if "/resourcegroups/own/" not in subnet.lower() and network.lower() not in self._networks:
                text = f"Resource {network} referenced by resource was not found."
                raise Invalid("InvalidResourceReference", text)
        linux = properties["osProfile"]["linuxConfiguration"]
        if linux["disablePasswordAuthentication"] and not linux.get("ssh", {}).get("publicKeys"):
            text = "Authentication using either SSH or by user name and password must be enabled in Linux profile."
            raise Invalid("InvalidParameter", text)

    def _admit(self, body: dict[str, Any]) -> None:
        zone = vms.zone_of(body)
        if code := self._faults.refusal(zone, vms.market_of(body)):
            raise Invalid(code, _text(code, body), STATUSES.get(code, 409))
        on = [vm for vm in self._vms.values() if vm.state != vms.FAILED and vm.purchase.stopped_at is None]
        living = sum(vm.purchase.zone == zone for vm in on)
        if living >= self._faults.capacity.get(zone, living + 1):
            raise Invalid("SkuNotAvailable", _text("SkuNotAvailable", body), 409)

    def _record_launch(self, path: str, body: dict[str, Any]) -> Vm:
        zone, market = vms.zone_of(body), vms.market_of(body)
        kind = LAUNCHED[body["properties"]["hardwareProfile"]["vmSize"]]
        tags = dict(body.get("tags") or {})
        purchase = Purchase(
            id=path.rpartition("/")[2],
            index=int(tags.get("perdure:rank", 0)),
            region=body["location"],
            zone=zone,
            instance_type=kind.name,
            market=market,
            token=tags.get("perdure:token", ""),
            price_per_hour=price(kind, body["location"], market),
            launched_at=_now(),
            tags=tags,
        )
        vm = Vm(path, body, purchase, vms.CREATING, _now() + self._faults.delay_s)
        if code := self._faults.late.get(zone):
            vm.failure = (code, _text(code, body))
        elif self._machines:
            self._start(vm)
        self._vms[path.lower()] = vm
        self._settle()
        return vm

    def _start(self, vm: Vm) -> None:
        assert self._machines is not None
        purchase, vm.ip = vm.purchase, self._machines.new_address()
        identities = vm.body.get("identity", {}).get("userAssignedIdentities", {})
        service = self._metadata[purchase.id] = MetadataService(
            purchase.id, host=vm.ip, token=self._token if len(identities) == 1 else None
        )
        script = base64.b64decode(vm.body["properties"]["osProfile"]["customData"]).decode()
        place = (purchase.region, purchase.zone, purchase.instance_type, purchase.market)
        role = {"AZURE_POD_IDENTITY_AUTHORITY_HOST": service.endpoint} if identities else {}
        about = {"metadata_endpoint": service.endpoint, "role": role, "image_files": self._image_files}
        keeps_disk = purchase.market is Market.ON_DEMAND
        vm.hardware = InstanceProcess(purchase.id, *place, script, vm.ip, **about, keeps_disk=keeps_disk)  # type: ignore[arg-type]
        self._machines.start([vm.hardware])

    # ---- changes over time ----

    def _settle(self) -> None:
        """Update the machines from their processes."""
        for id, vm in list(self._vms.items()):
            self._settle_one(vm)
            if vm.is_gone:
                self._past.append(self._vms.pop(id))

    def _settle_one(self, vm: Vm) -> None:
        record = self._machines.find(vm.purchase.id) if self._machines else None
        if vm.state == vms.CREATING and vm.settles_at <= _now():
            if vm.failure:
                vm.state = vms.FAILED
            elif self._machines is None or (record and not self._machines.is_booting(vm.purchase.id)):
                vm.state, vm.power = vms.SUCCEEDED, "running"
        power.settle(vm, self._machines, record, _now())
        if record is not None and record.is_gone:
            # A machine that powered off is stopped: Azure keeps and bills it until it is deleted.
            how = record.state.get("reason", layout.CRASHED)
            vm.power = "stopped"
            if vm.state == vms.DELETING or how == layout.PREEMPTED:
                self._end(vm, how, record.state.get("ended_at", _now()))
        elif record is None and vm.state == vms.DELETING and vm.settles_at <= _now():
            self._end(vm, layout.TERMINATED, _now())
        elif record is None and vm.evicted_at is not None and vm.evicted_at <= _now():
            self._end(vm, layout.PREEMPTED, vm.evicted_at)

    def _evict(self, vm: Vm, notice_s: float | None) -> None:
        assert vm.purchase.market is Market.SPOT, f"{vm.purchase.id} is no spot machine: Azure does not evict it"
        vm.evicted_at = _now() + (notice_s or 0.0)
        if self._machines is None:
            return
        if notice_s is not None:
            self._metadata[vm.purchase.id].schedule("Preempt", [vm.purchase.id], vm.evicted_at)
        timer = threading.Timer(notice_s or 0.0, self._machines.interrupt, (vm.purchase.id, None))
        timer.daemon = True
        timer.start()
        self._timers.append(timer)

    @staticmethod
    def _end(vm: Vm, how: str, at: float) -> None:
        vm.purchase.resume(at)
        vm.purchase.ended_at, vm.purchase.why = max(at, vm.purchase.launched_at), how

    # ---- helpers ----

    def _accepted(self, vm: Vm, status: int, body: Any) -> Answer:
        id = uuid.uuid4().hex
        self._operations[id] = (vm, "delete" if body is None else "create")
        subscription = vm.id.partition("/resourceGroups/")[0]
        where = f"{subscription}/providers/Microsoft.Compute/locations/{vm.purchase.region}/operations/{id}"
        return Answer(status, body, {"Azure-AsyncOperation": f"{self._base_url}{where}?api-version=2026-04-01"})

    def _is_hidden(self, vm: Vm) -> bool:
        return _now() < vm.purchase.launched_at + self._faults.listing_delay_s

    def _named(self, name: str) -> Vm:
        return next(vm for vm in self._vms.values() if vm.purchase.id == name)

    def _require_group(self, group: str) -> None:
        if group.lower() not in self._groups:
            raise _no_group(group)


def subnets_of(network: dict[str, Any]) -> Sequence[dict[str, Any]]:
    return [subnet["properties"] for subnet in network["properties"]["subnets"]]


def _text(code: str, body: dict[str, Any]) -> str:
    size, zone = body["properties"]["hardwareProfile"]["vmSize"], vms.zone_of(body)
    return TEXTS.get(code, code).format(zone=zone, region=body["location"], size=size)


def _no_group(path: str) -> Invalid:
    name = path.rpartition("/")[2]
    return Invalid("ResourceGroupNotFound", f"Resource group '{name}' could not be found.", 404)


def _now() -> float:
    return time.time()  # noqa: TID251 - a cloud has its own clock
