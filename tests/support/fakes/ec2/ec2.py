"""The operations that the fake EC2 adds to moto: client tokens, capacity limits, processes behind instances."""

from __future__ import annotations

import base64
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from zlib import crc32

from moto.core import DEFAULT_ACCOUNT_ID
from moto.ec2.models import ec2_backends
from moto.ec2.models.amis import Ami
from moto.ec2.models.availability_zones_and_regions import RegionsAndZonesBackend
from moto.ec2.models.instance_types import INSTANCE_TYPE_OFFERINGS, INSTANCE_TYPES
from moto.ec2.models.instances import StateReason

from perdure.controller.clouds.aws.pricing.catalog import TYPES
from perdure.controller.clouds.local import layout
from perdure.recovery.market.view import Market
from support.fakes.ec2 import responses, validation
from support.fakes.ec2.faults import TEXTS, Faults
from support.fakes.ec2.pricing import on_demand
from support.fakes.ec2.responses import Answer
from support.fakes.instance_processes import InstanceProcess, Machines
from support.fakes.purchases import Purchase

Moto = Callable[[dict[str, Any], dict[str, str]], Answer]

IMAGE = "ami-0123456789abcdef0"
SPOT_SHARE = 0.3
ZONE_STEP = 0.05
PRICES_PER_PAGE = 300

# moto's answers to DescribeInstanceTypes, by parameters.
_TYPES_CACHE: dict[frozenset[tuple[str, str]], Answer] = {}

# How the machine ended → EC2's StateReason, and how the transition's reason begins.
ENDS = {
    layout.PREEMPTED: ("Server.SpotInstanceTermination", "Service initiated"),
    layout.TERMINATED: ("Client.UserInitiatedShutdown", "User initiated"),
    layout.STOPPED: ("Client.InstanceInitiatedShutdown", "User initiated"),
    layout.CRASHED: ("Server.InternalError", "Server.InternalError"),
}


class Ec2:
    """EC2. It handles one call at a time, so that the second call with a token comes after the first."""

    def __init__(self, faults: Faults, machines: Machines | None, moto: Moto, regions: Sequence[str]) -> None:
        self._faults = faults
        self._machines = machines
        self._moto = moto
        self._lock = threading.RLock()
        self.role: dict[str, str] = {}  # the environment of a machine with an instance profile: its credentials
        self._books: dict[str, Purchase] = {}  # by instance id
        self._hardware: dict[str, InstanceProcess] = {}  # with machines
        self._programs: dict[str, str] = {}  # with machines: instance id → its user data
        self._due: dict[str, float] = {}  # without machines: instance id → when it is to be interrupted
        #: (region, client token) → (parameters, instance ids)
        self._tokens: dict[tuple[str, str], tuple[dict[str, Any], list[str]]] = {}
        # moto's own images take a second for each region.
        os.environ["MOTO_EC2_LOAD_DEFAULT_AMIS"] = "false"
        for region in regions:
            self._backend(region).reset()
            self._backend(region).amis[IMAGE] = Ami(self._backend(region), IMAGE, name="ubuntu-noble-24.04")

    def answer(
        self, region: str, action: str, parameters: dict[str, Any], environ: dict[str, Any], form: dict[str, str]
    ) -> Answer:
        """Raises validation.Invalid."""
        with self._lock:
            self._settle()
            match action:
                case "RunInstances":
                    return self._run(region, parameters, environ, form)
                case "DescribeInstances":
                    return responses.without_instances(self._moto(environ, form), self._is_hidden)
                case "StopInstances" | "StartInstances" | "TerminateInstances":
                    changes = {"StopInstances": self._stop, "StartInstances": self._start}
                    return changes.get(action, self._terminate)(parameters["InstanceIds"], environ, form)
                case "ModifyInstanceAttribute":
                    return self._change(parameters, environ, form)
                case "DescribeSpotPriceHistory":
                    return _spot_prices(region, parameters)
                case "DescribeInstanceTypes":
                    key = frozenset(form.items())  # moto's answer is slow and never changes
                    if key not in _TYPES_CACHE:
                        _TYPES_CACHE[key] = self._moto(environ, form)
                    return _TYPES_CACHE[key]
                case "GetConsoleOutput" if self._machines:
                    return responses.console(
                        parameters["InstanceId"], self._machines.agent_log(parameters["InstanceId"])
                    )
                case "GetSpotPlacementScores":
                    return _placement_scores(parameters, self._faults)
                case _:
                    return self._moto(environ, form)

    def purchases(self) -> list[Purchase]:
        with self._lock:
            self._settle()
            return list(self._books.values())

    def interrupt(self, id: str, notice_s: float | None) -> None:
        with self._lock:
            assert self._books[id].market is Market.SPOT, f"{id} is no spot instance: EC2 does not interrupt it"
            if self._machines:
                self._machines.interrupt(id, notice_s)
            else:
                self._due[id] = _now() + (notice_s or 0.0)
                self._settle()

    def is_living_spot(self, id: str) -> bool:
        """Whether it is a spot instance that has not ended."""
        with self._lock:
            self._settle()
            one = self._books.get(id)
            return one is not None and one.market is Market.SPOT and one.ended_at is None

    # ---- RunInstances ----

    def _run(self, region: str, parameters: dict[str, Any], environ: dict[str, Any], form: dict[str, str]) -> Answer:
        token = parameters.get("ClientToken", "")
        before = self._tokens.get((region, token)) if token else None
        if before is not None and before[0] != parameters:
            text = "Arguments on this idempotent request are inconsistent with arguments used in previous request(s)."
            return responses.error("IdempotentParameterMismatch", text)
        if before is None:
            self._admit(region, parameters)
            made = self._moto(environ, form)
            if made.status != 200:
                return made
            before = (parameters, list(dict.fromkeys(responses.instance_ids(made))))
            self._tokens[region, token] = before
            self._record_launches(region, parameters, before[1])
        described = self._moto(environ, _by_ids(form, before[1]))
        return responses.reservation_as_run_instances(described)

    def _admit(self, region: str, parameters: dict[str, Any]) -> None:
        kind, zone, market = _kind(parameters), _zone(parameters), _market(parameters)
        if kind not in INSTANCE_TYPES:
            raise validation.Invalid("InvalidParameterValue", f"Invalid value '{kind}' for InstanceType.")
        if not any((offered["InstanceType"], offered["Location"]) == (kind, zone) for offered in _offerings(region)):
            text = (
                f"Your requested instance type ({kind}) is not supported in your requested Availability Zone ({zone})."
            )
            raise validation.Invalid("Unsupported", text)
        if code := self._faults.refusal(zone, market):
            raise validation.Invalid(code, TEXTS.get(code, code).format(zone=zone))
        self._require_capacity(zone, parameters["MinCount"])

    def _require_capacity(self, zone: str, count: int) -> None:
        on = (one for one in self._books.values() if one.ended_at is None and one.stopped_at is None)
        living = sum(one.zone == zone for one in on)
        if living + count > self._faults.capacity.get(zone, living + count):
            code = "InsufficientInstanceCapacity"
            raise validation.Invalid(code, TEXTS[code].format(zone=zone))

    def _record_launches(self, region: str, parameters: dict[str, Any], ids: list[str]) -> None:
        kind, zone, market = _kind(parameters), _zone(parameters), _market(parameters)
        script = base64.b64decode(parameters.get("UserData", "")).decode()
        hardware = []
        for id in ids:
            instance = self._backend(region).get_instance(id)
            instance.launch_time = instance.launch_time.replace(microsecond=0)
            if self._machines:
                (nic,) = instance.nics.values()
                nic.private_ip_address = self._machines.new_address()
                ip = nic.private_ip_address
                metadata = {
                    "ami-launch-index": str(instance.ami_launch_index),
                    "instance-life-cycle": "spot" if market is Market.SPOT else "on-demand",
                }
                role = self.role if "IamInstanceProfile" in parameters else {}
                keeps_disk = parameters.get("InstanceInitiatedShutdownBehavior") == "stop"
                machine = InstanceProcess(
                    id, region, zone, kind, market, script, ip, metadata, role=role, keeps_disk=keeps_disk
                )
                self._hardware[id] = machine
                hardware.append(machine)
                _set_state(instance, "pending", 0)
            self._books[id] = Purchase(
                id=id,
                index=instance.ami_launch_index,
                region=region,
                zone=zone,
                instance_type=kind,
                market=market,
                token=parameters.get("ClientToken", ""),
                price_per_hour=price(kind, zone, market),
                launched_at=int(instance.launch_time.replace(tzinfo=UTC).timestamp()),
                tags={tag["key"]: tag["value"] for tag in instance.get_tags()},
            )
        if self._machines:
            self._machines.start(hardware)

    # ---- StopInstances, StartInstances ----

    def _require_state(self, ids: Sequence[str], *allowed: str) -> None:
        for id in ids:
            if id in self._books and (state := self._instance(id)._state.name) not in allowed:
                text = f"The instance '{id}' is not in a state from which it can do this: {state}"
                raise validation.Invalid("IncorrectInstanceState", text)

    def _change(self, parameters: dict[str, Any], environ: dict[str, Any], form: dict[str, str]) -> Answer:
        self._require_state([parameters["InstanceId"]], "stopped")
        if self._machines:
            self._programs[parameters["InstanceId"]] = parameters["UserData"]["Value"].decode()
        encoded = base64.b64encode(form["UserData.Value"].encode()).decode()  # moto decodes it twice
        return self._moto(environ, {**form, "UserData.Value": encoded})

    def _stop(self, ids: list[str], environ: dict[str, Any], form: dict[str, str]) -> Answer:
        self._require_state(ids, "pending", "running", "stopping", "stopped")
        states = {id: self._instance(id)._state.name for id in ids if id in self._books}
        answer = self._moto(environ, form)
        for id in ids if answer.status == 200 else ():
            if states[id] in ("stopping", "stopped"):
                _set_state(self._instance(id), *{"stopping": ("stopping", 64), "stopped": ("stopped", 80)}[states[id]])
            elif self._machines:
                self._machines.stop(id)
                _set_state(self._instance(id), "stopping", 64)
            else:
                self._books[id].stopped_at = _now()
        return answer

    def _start(self, ids: list[str], environ: dict[str, Any], form: dict[str, str]) -> Answer:
        self._require_state(ids, "stopped")
        if code := self._faults.refusal(zone := self._books[ids[0]].zone, Market.ON_DEMAND):
            raise validation.Invalid(code, TEXTS.get(code, code).format(zone=zone))
        self._require_capacity(zone, len(ids))
        answer = self._moto(environ, form)
        for id in ids if answer.status == 200 else ():
            one, instance, now = self._books[id], self._instance(id), _now()
            one.resume(now)
            one.tags |= {tag["key"]: tag["value"] for tag in instance.get_tags()}
            instance.launch_time = datetime.fromtimestamp(int(now), UTC).replace(tzinfo=None)
            instance._reason, instance.state_reason = "", StateReason()
            if self._machines:
                self._hardware[id] = replace(self._hardware[id], user_data=self._programs[id])
                _set_state(instance, "pending", 0)
        if self._machines and answer.status == 200:
            self._machines.start_again([self._hardware[id] for id in ids])
        return answer

    # ---- ends ----

    def _terminate(self, ids: list[str], environ: dict[str, Any], form: dict[str, str]) -> Answer:
        states = {id: self._instance(id)._state.name for id in ids if id in self._books}
        answer = self._moto(environ, form)  # moto ends none if one of them is unknown
        if answer.status != 200:
            return answer
        for id in ids:
            instance = self._instance(id)
            if states[id] == "terminated":
                self._describe_end(instance, self._books[id])
            elif self._machines:
                self._machines.terminate(id)
                _set_state(instance, "shutting-down", 32)
            else:
                self._end(id, layout.TERMINATED, _now())
        return answer

    def _settle(self) -> None:
        """Update the instances from their processes."""
        if self._machines is None:
            for id in [id for id, at in self._due.items() if at <= _now()]:
                at = self._due.pop(id)
                if self._books[id].ended_at is None:
                    self._end(id, layout.PREEMPTED, at)
            return
        for one in self._books.values():
            record = self._machines.find(one.id)
            if one.ended_at is not None or record is None:
                continue
            if record.is_halted and not record.is_alive and one.stopped_at is None:
                one.stopped_at = record.state.get("ended_at") or _now()
                self._describe_stop(self._instance(one.id), one.stopped_at)
            elif record.is_gone:
                at = record.state.get("ended_at", _now())
                self._end(one.id, record.state.get("reason", layout.CRASHED), at)
            elif self._instance(one.id)._state.name == "pending" and not self._machines.is_booting(one.id):
                _set_state(self._instance(one.id), "running", 16)

    def _end(self, id: str, how: str, at: float) -> None:
        one, instance = self._books[id], self._instance(id)
        if instance._state.name not in ("shutting-down", "terminated"):
            instance.terminate()
        one.ended_at, one.why = max(int(at), one.launched_at), how
        one.resume(one.ended_at)
        self._describe_end(instance, one)

    @staticmethod
    def _describe_stop(instance: Any, at: float) -> None:
        _set_state(instance, "stopped", 80)
        instance.state_reason = StateReason("Client.UserInitiatedShutdown", "Client.UserInitiatedShutdown")
        instance._reason = f"User initiated ({datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S} GMT)"

    @staticmethod
    def _describe_end(instance: Any, one: Purchase) -> None:
        assert one.ended_at is not None
        assert one.why is not None
        code, begin = ENDS[one.why]
        _set_state(instance, "terminated", 48)
        instance.state_reason = StateReason(f"{code}: the machine has ended", code)
        instance._reason = f"{begin} ({datetime.fromtimestamp(one.ended_at, UTC):%Y-%m-%d %H:%M:%S} GMT)"

    # ---- helpers ----

    def _is_hidden(self, id: str) -> bool:
        one = self._books.get(id)
        return one is not None and _now() < one.launched_at + self._faults.listing_delay_s

    def _instance(self, id: str) -> Any:
        return self._backend(self._books[id].region).get_instance(id)

    @staticmethod
    def _backend(region: str) -> Any:
        return ec2_backends[DEFAULT_ACCOUNT_ID][region]


def price(kind: str, zone: str, market: Market) -> float:
    """USD per hour. The spot price differs in every zone."""
    usual = on_demand(kind, zone[:-1])
    if market is Market.ON_DEMAND:
        return usual
    return round(
        usual * SPOT_SHARE * (1 + ZONE_STEP * (ord(zone[-1]) - ord("a")) + crc32(zone.encode()) % 997 / 1e5), 6
    )


def _spot_prices(region: str, parameters: dict[str, Any]) -> Answer:
    types = set(parameters.get("InstanceTypes") or TYPES)
    offered = [offering for offering in _offerings(region) if offering["InstanceType"] in types]
    start = int(parameters.get("NextToken") or 0)
    page = [
        {
            "availabilityZone": offering["Location"],
            "instanceType": offering["InstanceType"],
            "productDescription": "Linux/UNIX",
            "spotPrice": f"{price(offering['InstanceType'], offering['Location'], Market.SPOT):.6f}",
            "timestamp": "2026-01-01T00:00:00.000Z",
        }
        for offering in offered[start : start + PRICES_PER_PAGE]
    ]
    more = str(start + PRICES_PER_PAGE) if start + PRICES_PER_PAGE < len(offered) else ""
    return responses.listing("DescribeSpotPriceHistory", "spotPriceHistorySet", page, more)


def _placement_scores(parameters: dict[str, Any], faults: Faults) -> Answer:
    """A request for one or two instance types gets low scores in every zone."""
    is_narrow = len(parameters["InstanceTypes"]) < 3
    scores = [
        {
            "region": region,
            "availabilityZoneId": zone.zone_id,
            "score": str(1 if is_narrow else faults.scores.get(zone.name, 5)),
        }
        for region in parameters["RegionNames"]
        for zone in RegionsAndZonesBackend.zones[region]
    ]
    assert parameters["SingleAvailabilityZone"], "this fake has no scores of whole regions"
    return responses.listing("GetSpotPlacementScores", "spotPlacementScoreSet", scores, "")


def _offerings(region: str) -> list[dict[str, str]]:
    listed: list[dict[str, str]] = INSTANCE_TYPE_OFFERINGS["availability-zone"].get(region, [])
    return listed


def _by_ids(form: dict[str, str], ids: list[str]) -> dict[str, str]:
    named = {f"InstanceId.{number}": id for number, id in enumerate(ids, 1)}
    return {"Action": "DescribeInstances", "Version": form["Version"], **named}


def _kind(parameters: dict[str, Any]) -> str:
    return str(parameters["InstanceType"])


def _zone(parameters: dict[str, Any]) -> str:
    return str(parameters["Placement"]["AvailabilityZone"])


def _market(parameters: dict[str, Any]) -> Market:
    is_spot = parameters.get("InstanceMarketOptions", {}).get("MarketType") == "spot"
    return Market.SPOT if is_spot else Market.ON_DEMAND


def _set_state(instance: Any, name: str, code: int) -> None:
    instance._state.name, instance._state.code = name, code


def _now() -> float:
    return time.time()  # noqa: TID251 - a cloud has its own clock
