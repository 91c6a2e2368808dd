"""Instances: their life cycle, their processes if there are any, and the ledger of their cost."""

from __future__ import annotations

import base64
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from perdure.controller.clouds.local import layout
from perdure.recovery.market.view import Market
from support.fakes.gce import billing
from support.fakes.gce.discovery import Invalid
from support.fakes.gce.faults import Faults
from support.fakes.gce.operations import LINKS, Operation, Operations, end, rfc3339
from support.fakes.gce_metadata import GceMetadata
from support.fakes.instance_processes import InstanceProcess, Machines
from support.fakes.purchases import Purchase

PROJECT = "perdure-test"
PREEMPTED = "instance/preempted"
# How a machine ended on its own → the operation that reports it.
PREEMPTION = "compute.instances.preempted"
ENDS = {layout.STOPPED: "compute.instances.guestTerminate", layout.CRASHED: "compute.instances.hostError"}


@dataclass
class Machine:
    """An instance."""

    purchase: Purchase  # its entry in the ledger
    project: str
    properties: Mapping[str, Any]
    number: int
    created_at: float
    status: str = "PROVISIONING"
    ip: str = ""
    metadata: GceMetadata | None = None
    endings: list[Operation] = field(default_factory=list)  # the operations that are about to end it
    version: int = 0  # of its metadata and labels
    started_at: float | None = None  # the last time
    stopped_at: float | None = None  # the last time
    hardware: InstanceProcess | None = None

    @property
    def zone(self) -> str:
        return self.purchase.zone

    @property
    def name(self) -> str:
        return self.purchase.id.partition("/")[2]

    @property
    def link(self) -> str:
        return f"{LINKS}/projects/{self.project}/zones/{self.zone}/instances/{self.name}"

    @property
    def fingerprint(self) -> str:
        """Of its metadata and of its labels, in base64 as Google has it."""
        return base64.b64encode(f"{self.number}-{self.version}".encode()).decode()

    def run(self, _: float) -> None:
        """The insert has completed. An instance with processes runs once they have booted."""
        if self.metadata is None and self.status == "PROVISIONING":
            self.status = "RUNNING"

    def to_json(self) -> dict[str, Any]:
        zone = f"{LINKS}/projects/{self.project}/zones/{self.zone}"
        gpus = [
            {**one, "acceleratorType": f"{zone}/acceleratorTypes/{one['acceleratorType']}"}
            for one in self.properties.get("guestAccelerators", ())
        ]
        interfaces = [{**one, "networkIP": self.ip} for one in self.properties["networkInterfaces"]]
        return {
            "kind": "compute#instance",
            "id": str(self.number),
            "name": self.name,
            "zone": zone,
            "selfLink": self.link,
            "machineType": f"{zone}/machineTypes/{self.properties['machineType']}",
            "status": self.status,
            "creationTimestamp": rfc3339(self.created_at),
            "labels": dict(self.properties.get("labels", {})),
            "labelFingerprint": self.fingerprint,
            "metadata": {"kind": "compute#metadata", "fingerprint": self.fingerprint, **self.properties["metadata"]},
            **({} if self.started_at is None else {"lastStartTimestamp": rfc3339(self.started_at)}),
            **({} if self.stopped_at is None else {"lastStopTimestamp": rfc3339(self.stopped_at)}),
            "networkInterfaces": interfaces,
            "scheduling": dict(self.properties["scheduling"]),
            "disks": [
                {"boot": True, "autoDelete": True, "diskSizeGb": "100"},
                *({**one, "boot": False} for one in self.properties["disks"] if "source" in one),
            ],
            "serviceAccounts": list(self.properties.get("serviceAccounts", [])),
            **({"guestAccelerators": gpus} if gpus else {}),
            **{key: self.properties[key] for key in ("networkPerformanceConfig", "tags") if key in self.properties},
        }


class Fleet:
    """All instances. `machines` runs their processes; None: they have none."""

    def __init__(self, machines: Machines | None, operations: Operations, faults: Faults) -> None:
        self._machines = machines
        self._operations = operations
        self._faults = faults
        self._all: dict[str, Machine] = {}
        self._numbers = itertools.count(1)
        self.books: dict[str, Purchase] = {}

    def all(self) -> Iterable[Machine]:
        return list(self._all.values())

    def has(self, id: str) -> bool:
        return id in self._all

    def get(self, id: str) -> Machine:
        """Raises Invalid."""
        if id not in self._all:
            raise Invalid(404, "notFound", f"The resource 'projects/{PROJECT}/zones/{id}' was not found")
        return self._all[id]

    def count(self, zone: str) -> int:
        return sum(one.zone == zone and one.purchase.stopped_at is None for one in self._all.values())

    def make(
        self, zone: str, properties: Mapping[str, Any], names: Sequence[str], market: Market, at: float
    ) -> list[Machine]:
        made = [self._create(zone, properties, name, market, round(at, 3)) for name in names]
        if self._machines and made:
            items = {one["key"]: one["value"] for one in properties["metadata"]["items"]}
            program = items.get("user-data") or items["startup-script"]
            self._machines.start([self._add_hardware(self._machines, machine, program) for machine in made])
        return made

    def _create(self, zone: str, properties: Mapping[str, Any], name: str, market: Market, at: float) -> Machine:
        kind, region, number = _type(properties), zone.rpartition("-")[0], next(self._numbers)
        purchase = Purchase(
            id=f"{zone}/{name}",
            index=int(name.rpartition("-")[2]),
            region=region,
            zone=zone,
            instance_type=kind,
            market=market,
            token=properties["labels"]["perdure-token"],
            price_per_hour=billing.price(kind, region, market),
            launched_at=at,
            tags=dict(properties["labels"]),
        )
        machine = Machine(purchase, PROJECT, properties, number, at, ip=f"10.128.{number // 250}.{number % 250 + 2}")
        self._all[purchase.id], self.books[purchase.id] = machine, purchase
        return machine

    @staticmethod
    def _add_hardware(machines: Machines, machine: Machine, program: str) -> InstanceProcess:
        values = {"instance/name": machine.name, PREEMPTED: "FALSE", "instance/maintenance-event": "NONE"}
        accounts = properties_of_account(machine.properties)
        machine.metadata = GceMetadata({**values, **accounts}).start()
        machine.ip = machines.new_address()
        one = machine.purchase
        machine.hardware = InstanceProcess(
            id=machine.name,
            region=one.region,
            zone=one.zone,
            instance_type=one.instance_type,
            market=one.market,
            user_data=program,
            ip=machine.ip,
            metadata_endpoint=machine.metadata.endpoint,
            role=_metadata_variables(machine.metadata) if accounts else {},
            keeps_disk=one.market is Market.ON_DEMAND,
        )
        return machine.hardware

    def change(self, machine: Machine, kind: str, properties: Mapping[str, Any], at: float) -> Operation:
        """Change the metadata or the labels."""

        def finish(_: float) -> None:
            machine.properties, machine.version = {**machine.properties, **properties}, machine.version + 1
            machine.purchase.tags.update(properties.get("labels", {}))

        due_at = at + self._faults.operation_s
        return self._operations.begin(
            machine.project, machine.zone, kind, machine.link, at, due_at=due_at, finish=finish
        )

    def console(self, machine: Machine) -> str:
        return self._machines.agent_log(machine.name) if self._machines else f"{machine.name} login:"

    def stop(self, machine: Machine, at: float) -> Operation:
        """Begin to stop: its disk is kept."""
        begin = self._operations.begin
        if machine.status == "TERMINATED":
            return begin(machine.project, machine.zone, "stop", machine.link, at)
        machine.status = "STOPPING"
        if self._machines:
            self._machines.stop(machine.name)
            return begin(machine.project, machine.zone, "stop", machine.link, at, due_at=at + self._faults.operation_s)

        def finish(at: float) -> None:
            self._record_stop(machine, at)

        return begin(machine.project, machine.zone, "stop", machine.link, at, finish=finish)

    def start(self, machine: Machine, errors: Sequence[Mapping[str, str]], at: float) -> Operation:
        """Begin to start a machine that was stopped. Raises Invalid."""
        begin = self._operations.begin
        if machine.status == "STOPPING":
            raise Invalid(400, "resourceNotReady", f"The resource '{machine.name}' is not ready")
        due_at = at + self._faults.operation_s
        if errors or machine.status != "TERMINATED":
            return begin(machine.project, machine.zone, "start", machine.link, at, due_at=due_at, errors=errors)
        machine.status, machine.started_at = "PROVISIONING", at
        machine.purchase.resume(at)
        if self._machines and machine.hardware is not None:
            items = {item["key"]: item["value"] for item in machine.properties["metadata"]["items"]}
            # Google's image runs the script at every boot, as an image of EC2 does with user data at the first one.
            machine.hardware = replace(machine.hardware, user_data=items["startup-script"])
            self._machines.start_again([machine.hardware], runs_user_data=True)
        return begin(machine.project, machine.zone, "start", machine.link, at, due_at=due_at, finish=machine.run)

    def _record_stop(self, machine: Machine, at: float) -> None:
        machine.status, machine.stopped_at, machine.purchase.stopped_at = "TERMINATED", round(at, 3), round(at, 3)

    def delete(self, machine: Machine, at: float) -> Operation:
        """Begin to delete. A second call returns the operation of the first."""
        before = [one for one in machine.endings if one.kind == "delete"]
        if before:
            return before[0]
        machine.status = "STOPPING"
        if self._machines:
            self._machines.terminate(machine.name)
        return self._begin_end(machine, "delete", at, None if self._lives(machine) else at)

    def preempt(self, machine: Machine, at: float) -> None:
        """Preempt a spot machine: its metadata announces it, and the machine ends `soft_off_s` later."""
        assert machine.purchase.market is Market.SPOT, (
            f"{machine.purchase.id} is no spot machine: Google does not preempt it"
        )
        if machine.endings:
            return
        notice = machine.properties["scheduling"].get("preemptionNoticeDuration", {})
        left_s = self._faults.soft_off_s + float(notice.get("seconds", 0))
        machine.status = machine.status if notice else "STOPPING"
        self._begin_end(machine, PREEMPTION, at, None if self._lives(machine) else at + left_s)
        if machine.metadata:
            machine.metadata.change(PREEMPTED, "TRUE")
        if self._machines:
            self._machines.interrupt(machine.name, left_s)

    def preempt_silently(self, machine: Machine, at: float) -> None:
        """Preempt a spot machine without a notice in its metadata, since Google does not guarantee one."""
        assert machine.purchase.market is Market.SPOT, (
            f"{machine.purchase.id} is no spot machine: Google does not preempt it"
        )
        if machine.endings:
            return
        machine.status = "STOPPING"
        if self._machines:
            self._machines.interrupt(machine.name, None)
        self._begin_end(machine, PREEMPTION, at, None if self._lives(machine) else at)

    def settle(self, at: float) -> None:
        """Update the instances from their processes."""
        if self._machines is None:
            return
        for machine in self.all():
            record = self._machines.find(machine.name)
            if record is None:
                continue
            if record.is_halted and not record.is_alive:
                if machine.status not in ("TERMINATED", "PROVISIONING"):
                    self._record_stop(machine, record.state.get("ended_at") or at)
            elif record.is_gone:
                how, ended_at = record.state.get("reason", layout.CRASHED), record.state.get("ended_at", at)
                self._on_hardware_end(machine, how, ended_at)
            elif machine.status == "PROVISIONING" and not self._machines.is_booting(machine.name):
                machine.status = "RUNNING"

    def close(self) -> None:
        for machine in self._all.values():
            if machine.metadata:
                machine.metadata.close()
        if self._machines:
            self._machines.close()

    def _on_hardware_end(self, machine: Machine, how: str, at: float) -> None:
        if machine.endings:
            for one in machine.endings:
                end(one, at)
        elif machine.status != "TERMINATED":
            # Its disk exists and is billed until the owner deletes the machine.
            self._operations.begin(machine.project, machine.zone, ENDS[how], machine.link, at)
            machine.status = "TERMINATED"
            self._record_end(machine, how, at)

    def _begin_end(self, machine: Machine, kind: str, at: float, due_at: float | None) -> Operation:
        def finish(at: float) -> None:
            self._record_end(machine, layout.PREEMPTED if kind != "delete" else layout.TERMINATED, at)
            self._remove(machine)

        begin = self._operations.begin
        operation = begin(machine.project, machine.zone, kind, machine.link, at, finish=finish, due_at=due_at)
        machine.endings.append(operation)
        self._operations.settle(at)
        return operation

    def _record_end(self, machine: Machine, how: str, at: float) -> None:
        machine.purchase.resume(at)
        if machine.purchase.ended_at is None:
            machine.purchase.ended_at, machine.purchase.why = max(round(at, 3), machine.purchase.launched_at), how

    def _remove(self, machine: Machine) -> None:
        if self._all.pop(machine.purchase.id, None) and machine.metadata:
            machine.metadata.close()

    def _lives(self, machine: Machine) -> bool:
        record = self._machines.find(machine.name) if self._machines else None
        return record is not None and not record.is_gone


def properties_of_account(properties: Mapping[str, Any]) -> dict[str, str]:
    """The metadata of the machine's service account, with its tokens."""
    for account in properties.get("serviceAccounts", ()):
        account_info = {"aliases": ["default"], "email": account["email"], "scopes": list(account["scopes"])}
        token = {"access_token": "token-of-the-fake", "expires_in": 3600, "token_type": "Bearer"}
        root = "instance/service-accounts"
        return {
            "project/project-id": PROJECT,
            f"{root}/default/": json.dumps(account_info),
            f"{root}/default/token": json.dumps(token),
            f"{root}/{account['email']}/token": json.dumps(token),
        }
    return {}


def _metadata_variables(metadata: GceMetadata) -> dict[str, str]:
    """Environment variables that point Google's library to this metadata server."""
    address = metadata.endpoint.removeprefix("http://")
    return {"GCE_METADATA_HOST": address, "GCE_METADATA_IP": address}


def _type(properties: Mapping[str, Any]) -> str:
    for one in properties.get("guestAccelerators", ()):
        return f"{properties['machineType']}+{one['acceleratorType'].rpartition('-')[2]}x{one['acceleratorCount']}"
    return str(properties["machineType"])
