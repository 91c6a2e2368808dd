"""Resources that outlive machines: disks, addresses, firewall rules. Operations create and delete them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from support.fakes.gce import filters, rules
from support.fakes.gce.discovery import Call, Invalid
from support.fakes.gce.faults import Faults
from support.fakes.gce.fleet import PROJECT, Fleet
from support.fakes.gce.operations import LINKS, Operations, link_of

_NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_KINDS = {"disks": "compute#disk", "addresses": "compute#address", "firewalls": "compute#firewall"}
_DISK_KINDS = ("pd-standard", "pd-balanced", "pd-ssd")
_IN_USE = "resourceInUseByAnotherResource"


class Holdings:
    """The resources of all `zones`. The machines of `fleet` determine which of them are in use."""

    def __init__(self, fleet: Fleet, operations: Operations, faults: Faults, zones: list[str]) -> None:
        self._fleet = fleet
        self._operations = operations
        self._faults = faults
        self._zones = zones
        self._all: dict[tuple[str, str, str], dict[str, Any]] = {}  # (kind, scope, name)
        self._numbers = itertools.count(1)

    def methods(self, now: float) -> dict[str, Callable[[Call], dict[str, Any]]]:
        """The API's methods for these resources, by name."""
        methods: dict[str, Callable[[Call], dict[str, Any]]] = {
            "disks.aggregatedList": self._list_disks,
            "firewalls.patch": lambda call: self._patch(call, now),
        }
        for kind in _KINDS:
            methods[f"{kind}.insert"] = lambda call, kind=kind: self._insert(kind, call, now)  # type: ignore[misc]
            methods[f"{kind}.get"] = lambda call, kind=kind: self._shown(kind, self._find(kind, call))  # type: ignore[misc]
            methods[f"{kind}.delete"] = lambda call, kind=kind: self._delete(kind, call, now)  # type: ignore[misc]
        return methods

    def of(self, kind: str) -> list[dict[str, Any]]:
        """All resources of a kind."""
        return [self._shown(of, one) for (of, _, _), one in self._all.items() if of == kind]

    def admit(self, zone: str, properties: Mapping[str, Any]) -> None:
        """Check that a new machine may use the resources that it names. Raises Invalid."""
        for disk in properties["disks"]:
            if "source" in disk:
                name = disk["source"].rpartition("/")[2]
                if disk["source"] != f"projects/{PROJECT}/zones/{zone}/disks/{name}":
                    raise Invalid(
                        400, "invalid", f"Invalid value for field 'resource.disks.source': '{disk['source']}'"
                    )
                attached = self._get("disks", f"zones/{zone}", name)
                if attached["status"] != "READY":
                    raise Invalid(400, "resourceNotReady", f"The resource '{name}' is not ready")
                if users := self._shown("disks", attached)["users"]:
                    raise Invalid(400, _IN_USE, f"The disk resource '{name}' is already being used by '{users[0]}'")
        for address in _addresses(properties):
            reserved = [one for one in self.of("addresses") if one.get("address") == address]
            if not reserved or not reserved[0]["region"].endswith(f"/{zone.rpartition('-')[0]}"):
                raise Invalid(400, "invalid", f"Invalid value for field 'natIP': '{address}' is not reserved here")
            if reserved[0]["users"]:
                raise Invalid(400, _IN_USE, f"External IP address '{address}' is in use")

    def _insert(self, kind: str, call: Call, now: float) -> dict[str, Any]:
        scope, body = _scope(call), call.body
        name = body["name"]
        for what in self._problems(kind, call):
            raise Invalid(400, "invalid", f"Invalid value for field 'resource.{what}")
        if (kind, scope, name) in self._all:
            raise Invalid(409, "alreadyExists", f"The resource '{scope}/{kind}/{name}' already exists")
        number = next(self._numbers)
        made = {"kind": _KINDS[kind], "id": str(number), **body, **_place(scope)}
        status_before, status_after = {"disks": ("CREATING", "READY"), "addresses": ("RESERVING", "RESERVED")}.get(
            kind, ("", "")
        )
        if status_before:
            made["status"] = status_before
        self._all[kind, scope, name] = made

        def finish(_: float) -> None:
            if status_after:
                made["status"] = status_after
            if kind == "addresses":  # of this computer's loopback network
                made["address"] = f"127.77.{number // 250}.{number % 250 + 1}"

        return self._begin("insert", scope, kind, name, now, finish)

    def _problems(self, kind: str, call: Call) -> Iterable[str]:
        body, scope = call.body, _scope(call)
        if not _NAME.fullmatch(body["name"]):
            yield f"name': '{body['name']}'"
        if kind == "disks":
            if body.get("type") not in [f"{scope}/diskTypes/{one}" for one in _DISK_KINDS]:
                yield f"type': '{body.get('type')}'"
            if int(body["sizeGb"]) < 10:
                yield "sizeGb': it must be 10 GB or larger"
        if kind == "firewalls":
            if body.get("network") not in rules.NETWORKS:
                yield f"network': '{body.get('network')}'"
            if not body.get("allowed") and not body.get("denied"):
                yield "allowed': it must name a protocol"
        if kind == "addresses" and ("subnetwork" in body) != (body.get("addressType") == "INTERNAL"):
            yield "subnetwork': it is for internal addresses, and they need one"

    def _patch(self, call: Call, now: float) -> dict[str, Any]:
        self._find("firewalls", call).update(call.body)
        return self._begin("patch", "global", "firewalls", call.parameters["firewall"], now, lambda _: None)

    def _delete(self, kind: str, call: Call, now: float) -> dict[str, Any]:
        resource = self._find(kind, call)
        scope, name = _scope(call), resource["name"]
        if users := self._shown(kind, resource).get("users"):
            raise Invalid(400, _IN_USE, f"The {kind} resource '{name}' is already being used by '{users[0]}'")
        return self._begin("delete", scope, kind, name, now, lambda _: self._all.pop((kind, scope, name), None))

    def _list_disks(self, call: Call) -> dict[str, Any]:
        fits = filters.parse(call.parameters.get("filter"))
        items: dict[str, Any] = {}
        for zone in self._zones:
            here = [self._shown("disks", one) for (kind, scope, _), one in self._all.items()
                    if (kind, scope) == ("disks", f"zones/{zone}")]  # fmt: skip
            empty = {"code": "NO_RESULTS_ON_PAGE", "message": f"There are no results for scope 'zones/{zone}'."}
            fitting = [one for one in here if fits(one)]
            items[f"zones/{zone}"] = {"disks": fitting} if fitting else {"warning": empty}
            if zone in self._faults.unreachable:
                items[f"zones/{zone}"] = {"warning": {"code": "UNREACHABLE", "message": f"{zone} does not answer"}}
        # One zone per page, as Google may return.
        at = int(call.parameters.get("pageToken") or 0)
        names = sorted(items)
        page = {"kind": "compute#diskAggregatedList", "id": call.method, "items": {names[at]: items[names[at]]}}
        return page if at + 1 == len(names) else {**page, "nextPageToken": str(at + 1)}

    def _find(self, kind: str, call: Call) -> dict[str, Any]:
        word = {"disks": "disk", "addresses": "address", "firewalls": "firewall"}[kind]
        return self._get(kind, _scope(call), call.parameters[word])

    def _get(self, kind: str, scope: str, name: str) -> dict[str, Any]:
        """Raises Invalid."""
        if (kind, scope, name) not in self._all:
            raise Invalid(404, "notFound", f"The resource 'projects/{PROJECT}/{scope}/{kind}/{name}' was not found")
        return self._all[kind, scope, name]

    def _shown(self, kind: str, one: dict[str, Any]) -> dict[str, Any]:
        """The resource with its users."""
        if kind == "disks":
            holders = [m.link for m in self._fleet.all() if any(
                d.get("source", "").endswith(f"/disks/{one['name']}") and m.zone == one["zone"].rpartition("/")[2]
                for d in m.properties["disks"])]  # fmt: skip
            return {**one, "users": holders}
        if kind == "addresses":
            users = [m.link for m in self._fleet.all() if one.get("address") in _addresses(m.properties)]
            return {**one, "users": users, **({"status": "IN_USE"} if users else {})}
        return dict(one)

    def _begin(
        self, verb: str, scope: str, kind: str, name: str, now: float, finish: Callable[[float], Any]
    ) -> dict[str, Any]:
        target, due_at = f"{LINKS}/projects/{PROJECT}/{scope}/{kind}/{name}", now + self._faults.operation_s
        one = self._operations.begin(PROJECT, scope, verb, target, now, due_at=due_at, finish=finish)
        self._operations.settle(now)
        return one.to_json()


def _addresses(properties: Mapping[str, Any]) -> list[str]:
    """Those that it asks for by themselves."""
    interfaces = properties["networkInterfaces"]
    public = [access["natIP"] for one in interfaces for access in one.get("accessConfigs", ()) if "natIP" in access]
    return public + [one["networkIP"] for one in interfaces if "networkIP" in one]


def _scope(call: Call) -> str:
    for word in ("zone", "region"):
        if word in call.parameters:
            return f"{word}s/{call.parameters[word]}"
    return "global"


def _place(scope: str) -> dict[str, str]:
    kind, _, name = scope.partition("/")
    return {kind.removesuffix("s"): link_of(PROJECT, scope)} if name else {}
