"""The state of the fake Compute Engine, and the effects of its calls."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from perdure.recovery.market.view import Market
from support.fakes.gce import filters, machine_catalog, project, rules
from support.fakes.gce.discovery import MAY, Call, Invalid
from support.fakes.gce.faults import EXHAUSTED, TEXTS, Faults
from support.fakes.gce.fleet import PROJECT, Fleet, Machine
from support.fakes.gce.holdings import Holdings
from support.fakes.gce.iam import Iam
from support.fakes.gce.operations import LINKS, Operation, Operations
from support.fakes.instance_processes import Machines
from support.fakes.purchases import Purchase

SUMMARY = "VM_MIN_COUNT_NOT_REACHED"


class Gce:
    """Compute Engine. It handles one call at a time, but a call that waits for an operation lets others proceed."""

    def __init__(self, faults: Faults, machines: Machines | None, regions: Sequence[str]) -> None:
        self._faults = faults
        self._regions = regions
        self._lock = threading.RLock()
        self._waiting = threading.Condition(self._lock)
        self._operations = Operations()
        self._fleet = Fleet(machines, self._operations, faults)
        self.holdings = Holdings(self._fleet, self._operations, faults, self._zones())
        self.iam = Iam(faults)

    def answer(self, call: Call) -> dict[str, Any]:
        """Answer a call. Raises Invalid."""
        if call.method == MAY:
            return project.tested_permissions(call, self._faults)
        if call.method.startswith("projects."):
            with self._lock:
                return self.iam.answer(call)
        if call.method == "images.getFromFamily":  # public images are in other projects
            return rules.newest_image(call.parameters["project"], call.parameters["family"])
        if call.parameters["project"] != PROJECT:
            raise Invalid(404, "notFound", f"The resource 'projects/{call.parameters['project']}' was not found")
        with self._lock:
            self._settle()
            answers: dict[str, Callable[[Call], dict[str, Any]]] = {
                **self.holdings.methods(now()),
                "instances.bulkInsert": self._bulk_insert,
                "instances.insert": self._insert,
                "instances.delete": self._delete,
                "instances.stop": self._stop,
                "instances.start": self._start,
                "instances.setMetadata": self._set_metadata,
                "instances.setLabels": self._set_labels,
                "instances.getSerialPortOutput": self._console,
                "instances.list": self._list,
                "instances.aggregatedList": self._aggregated_list,
                "instances.simulateMaintenanceEvent": self._simulate,
                "zoneOperations.list": self._list_operations,
                "zoneOperations.wait": self._wait,
                "regionOperations.wait": self._wait,
                "globalOperations.wait": self._wait,
                "regions.list": self._list_regions,
                "zones.list": self._list_zones,
                "machineTypes.aggregatedList": self._list_machine_types,
                "acceleratorTypes.aggregatedList": self._list_accelerator_types,
            }
            if call.method not in answers:
                raise Invalid(501, "notImplemented", f"the fake has no {call.method}")
            if (zone := call.parameters.get("zone")) is not None and zone not in self._zones():
                raise Invalid(404, "notFound", f"The resource 'projects/{PROJECT}/zones/{zone}' was not found")
            return answers[call.method](call)

    def purchases(self) -> list[Purchase]:
        with self._lock:
            self._settle()
            return list(self._fleet.books.values())

    def interrupt(self, id: str, *, is_announced: bool) -> None:
        with self._lock:
            self._settle()
            (self._fleet.preempt if is_announced else self._fleet.preempt_silently)(self._fleet.get(id), now())

    def forget_requests(self) -> None:
        with self._lock:
            self._operations.forget_client_ids()

    def close(self) -> None:
        with self._lock:
            self._fleet.close()

    def _settle(self) -> None:
        self._fleet.settle(now())
        self._operations.settle(now())

    # ---- instances ----

    def _bulk_insert(self, call: Call) -> dict[str, Any]:
        zone, body = call.parameters["zone"], call.body
        client_id = call.parameters.get("requestId", "")
        if (before := self._operations.by_client_id(zone, client_id)) is not None:
            return before.to_json()
        rules.require_allowed(body["instanceProperties"], self._faults.forbid)
        rules.admit(zone, body)
        properties, names = body["instanceProperties"], list(body["perInstanceProperties"])
        if any(self._fleet.has(f"{zone}/{name}") for name in names):
            raise Invalid(409, "alreadyExists", f"The resource '{names[0]}' already exists")
        is_spot = properties["scheduling"]["provisioningModel"] == "SPOT"
        market = Market.SPOT if is_spot else Market.ON_DEMAND
        code = self._faults.refusal(zone, market)
        living = self._fleet.count(zone)
        room = max(0, self._faults.capacity.get(zone, living + len(names)) - living)
        if code is None and room < len(names):
            code = EXHAUSTED
        made = names if code is None else names[: min(room, len(names) - 1)] if self._faults.leaves_some else []
        return self._begin_launch(zone, properties, names, made, market, code, client_id).to_json()

    def _insert(self, call: Call) -> dict[str, Any]:
        zone, at = call.parameters["zone"], now()
        name, properties = rules.of_instance(zone, call.body)
        rules.admit(zone, {"count": "1", "perInstanceProperties": {name: {}}, "instanceProperties": properties})
        if self._fleet.has(f"{zone}/{name}"):
            raise Invalid(409, "alreadyExists", f"The resource '{name}' already exists")
        self.holdings.admit(zone, properties)
        code, living = self._faults.refusal(zone, Market.ON_DEMAND), self._fleet.count(zone)
        if code is None and living >= self._faults.capacity.get(zone, living + 1):
            code = EXHAUSTED
        text = {"zone": zone, "region": zone.rpartition("-")[0], "count": 1}
        errors = [{"code": code, "message": TEXTS.get(code, code).format(**text)}] if code else []
        for account in properties.get("serviceAccounts", ()):
            if not self.iam.has_listed(account["email"]):
                missing = f"The resource '{account['email']}' of type 'serviceAccount' was not found."
                errors = [{"code": "EXTERNAL_RESOURCE_NOT_FOUND", "message": missing}]
        made = [] if errors else self._fleet.make(zone, properties, [name], Market.ON_DEMAND, at)
        link = f"{LINKS}/projects/{PROJECT}/zones/{zone}/instances/{name}"
        finish = made[0].run if made else lambda _: None
        due_at = at + self._faults.operation_s
        begun = self._operations.begin(PROJECT, zone, "insert", link, at, due_at=due_at, errors=errors, finish=finish)
        return begun.to_json()

    def _begin_launch(
        self,
        zone: str,
        properties: Mapping[str, Any],
        names: Sequence[str],
        made: Sequence[str],
        market: Market,
        code: str | None,
        client_id: str,
    ) -> Operation:
        at, due_at = now(), now() + self._faults.operation_s
        link = f"{LINKS}/projects/{PROJECT}/zones/{zone}/instances"
        text = {"zone": zone, "region": zone.rpartition("-")[0], "count": len(names)}
        errors = [
            {"code": one, "message": TEXTS.get(one, one).format(**text)} for one in (SUMMARY, code) if code and one
        ]
        whole = self._operations.begin(
            PROJECT,
            zone,
            "bulkInsert",
            link,
            at,
            due_at=due_at,
            client_id=client_id,
            group=f"group-{client_id}",
            errors=errors[:1] if self._faults.hides_cause else errors,
        )
        machines = self._fleet.make(zone, properties, made, market, at)
        for name in names:
            one = next((m for m in machines if m.name == name), None)
            self._operations.begin(
                PROJECT,
                zone,
                "insert",
                f"{link}/{name}",
                at,
                due_at=due_at,
                group=whole.group,
                errors=errors[1:] if one is None else (),
                finish=one.run if one else lambda _: None,
            )
        return whole

    def _delete(self, call: Call) -> dict[str, Any]:
        machine = self._fleet.get(f"{call.parameters['zone']}/{call.parameters['instance']}")
        return self._fleet.delete(machine, now()).to_json()

    def _named(self, call: Call) -> Machine:
        return self._fleet.get(f"{call.parameters['zone']}/{call.parameters['instance']}")

    def _stop(self, call: Call) -> dict[str, Any]:
        machine = self._named(call)
        if (
            machine_catalog.MACHINES[machine.properties["machineType"]].ssds
            and "discardLocalSsd" not in call.parameters
        ):
            raise Invalid(400, "badRequest", "VM has a Local SSD attached; set discardLocalSsd to stop it")
        return self._fleet.stop(machine, now()).to_json()

    def _start(self, call: Call) -> dict[str, Any]:
        machine = self._named(call)
        code, living = self._faults.refusal(machine.zone, Market.ON_DEMAND), self._fleet.count(machine.zone)
        if code is None and living >= self._faults.capacity.get(machine.zone, living + 1):
            code = EXHAUSTED
        text = {"zone": machine.zone, "region": machine.zone.rpartition("-")[0], "count": 1}
        errors = [{"code": code, "message": TEXTS.get(code, code).format(**text)}] if code else []
        return self._fleet.start(machine, errors, now()).to_json()

    def _console(self, call: Call) -> dict[str, Any]:
        output = self._fleet.console(self._named(call))
        return {"kind": "compute#serialPortOutput", "contents": output, "start": "0", "next": str(len(output))}

    def _set_metadata(self, call: Call) -> dict[str, Any]:
        machine = self._named(call)
        if call.body.get("fingerprint") != machine.fingerprint:
            raise Invalid(412, "conditionNotMet", "Supplied fingerprint does not match current metadata fingerprint.")
        return self._fleet.change(machine, "setMetadata", {"metadata": {"items": call.body["items"]}}, now()).to_json()

    def _set_labels(self, call: Call) -> dict[str, Any]:
        machine = self._named(call)
        if call.body.get("labelFingerprint") != machine.fingerprint:
            raise Invalid(412, "conditionNotMet", "Labels fingerprint either invalid or resource labels have changed.")
        return self._fleet.change(machine, "setLabels", {"labels": call.body["labels"]}, now()).to_json()

    def _list(self, call: Call) -> dict[str, Any]:
        zone = call.parameters["zone"]
        shown = [one.to_json() for one in self._shown() if one.zone == zone]
        return self._page(call, "compute#instanceList", shown)

    def _aggregated_list(self, call: Call) -> dict[str, Any]:
        return self._by_zone(call, "instance", [one.to_json() for one in self._shown()])

    def _by_zone(self, call: Call, kind: str, resources: Iterable[dict[str, Any]]) -> dict[str, Any]:
        page = self._page(call, f"compute#{kind}AggregatedList", resources)
        items = {}
        for zone in self._zones():
            in_zone = [one for one in page["items"] if one["zone"].rpartition("/")[2] == zone]
            empty = {"code": "NO_RESULTS_ON_PAGE", "message": f"There are no results for scope 'zones/{zone}'."}
            items[f"zones/{zone}"] = {f"{kind}s": in_zone} if in_zone else {"warning": empty}
            if zone in self._faults.unreachable:
                items[f"zones/{zone}"] = {"warning": {"code": "UNREACHABLE", "message": f"{zone} does not answer"}}
        return {**page, "items": items}

    def _shown(self) -> Iterable[Machine]:
        oldest = now() - self._faults.listing_delay_s
        return (one for one in self._fleet.all() if one.created_at <= oldest)

    def _simulate(self, call: Call) -> dict[str, Any]:
        machine = self._fleet.get(f"{call.parameters['zone']}/{call.parameters['instance']}")
        kind = "compute.instances.simulateMaintenanceEvent"
        begun = self._operations.begin(PROJECT, machine.zone, kind, machine.link, now())
        if machine.purchase.market is Market.SPOT:
            self._fleet.preempt(machine, now())
        return begun.to_json()

    # ---- operations ----

    def _list_operations(self, call: Call) -> dict[str, Any]:
        operations = [one.to_json() for one in self._operations.of(call.parameters["zone"])]
        return self._page(call, "compute#operationList", operations)

    def _wait(self, call: Call) -> dict[str, Any]:
        region = call.parameters.get("region")
        scope = call.parameters.get("zone") or (f"regions/{region}" if region else "global")
        one = self._operations.get(scope, call.parameters["operation"])
        if one is None:
            raise Invalid(404, "notFound", f"The resource '{call.parameters['operation']}' was not found")
        until = now() + self._faults.wait_s
        while one.ended_at is None and now() < until:
            self._waiting.wait(min(0.05, max(0.0, until - now())))
            self._settle()
        return one.to_json()

    # ---- the catalog ----

    def _list_regions(self, call: Call) -> dict[str, Any]:
        return self._page(call, "compute#regionList", project.regions(self._regions, self._faults))

    def _list_zones(self, call: Call) -> dict[str, Any]:
        zones = [
            {
                "kind": "compute#zone",
                "name": zone,
                "status": "UP",
                "region": f"{LINKS}/projects/{PROJECT}/regions/{zone.rpartition('-')[0]}",
                "selfLink": f"{LINKS}/projects/{PROJECT}/zones/{zone}",
            }
            for zone in self._zones()
        ]
        return self._page(call, "compute#zoneList", zones)

    def _list_machine_types(self, call: Call) -> dict[str, Any]:
        machine_types = [
            machine_catalog.MACHINES[name].to_json(zone, PROJECT)
            for zone in self._zones()
            for name in machine_catalog.machine_types(zone)
        ]
        return self._by_zone(call, "machineType", machine_types)

    def _list_accelerator_types(self, call: Call) -> dict[str, Any]:
        accelerator_types = [
            machine_catalog.accelerator_type(name, zone, PROJECT)
            for zone in self._zones()
            for name in machine_catalog.accelerator_types(zone)
        ]
        return self._by_zone(call, "acceleratorType", accelerator_types)

    def _zones(self) -> list[str]:
        return [zone for region in self._regions for zone in machine_catalog.ZONES[region]]

    def _page(self, call: Call, kind: str, resources: Iterable[dict[str, Any]]) -> dict[str, Any]:
        is_selected = filters.parse(call.parameters.get("filter"))
        selected = [one for one in resources if is_selected(one)]
        start = int(call.parameters.get("pageToken", 0))
        size = min(self._faults.page_size, int(call.parameters.get("maxResults", 500)))
        page: dict[str, Any] = {"kind": kind, "id": call.method, "items": selected[start : start + size]}
        if start + size < len(selected):
            page["nextPageToken"] = str(start + size)
        return page


def now() -> float:
    return time.time()  # noqa: TID251 - a cloud has its own clock
