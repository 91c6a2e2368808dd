"""A cloud for Perdure whose machines are processes on the controller's computer. Each has a folder with its tags."""

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from perdure.controller.clouds.base import tags
from perdure.controller.clouds.base.config_section import Section
from perdure.controller.clouds.base.descriptor import BuildContext, CloudDescriptor
from perdure.controller.clouds.base.faults import CloudRejected, FaultRule, FaultTable, to_fault
from perdure.controller.clouds.base.protocol import Fault, Instance, InstanceState, LaunchRequest, Owner
from perdure.controller.clouds.bootstrap.render import render_boot_program
from perdure.controller.runtime.clock import Clock
from perdure.recovery.market.unavailable import FaultKind
from perdure.recovery.market.view import Market, Offer
from perdure.recovery.reasons import Reason

ZONES = {"toy-1a": ("toy-1", 0.10), "toy-2a": ("toy-2", 0.12)}  # zone → (region, on-demand price in USD per hour)
FIELDS = ("id", "rank", "region", "zone", "instance_type", "launched_at", "ended_at", "gone_reason")
FULL = FaultRule(FaultKind.AVOID_ZONE, Reason.NO_CAPACITY, 10.0, hint="raise toy.capacity in config.yaml")
FAULTS = FaultTable({"ZoneFull": FULL, "NotOffered": FaultRule(FaultKind.GIVE_UP, Reason.BAD_REQUEST)})


class ToyCloud:
    name = "toy"
    ignores = frozenset({"disk_gib", "disk_tier", "network_tier", "image_id"})

    def __init__(self, home: Path, clock: Clock, capacity: int) -> None:
        self.capacity, self._home, self._clock = dict.fromkeys(ZONES, capacity), home, clock
        self._lock = threading.RLock()  # the controller calls from several threads

    def unusable(self) -> str | None:
        return None if sys.platform == "linux" else "the toy cloud needs Linux: use another cloud here"

    def notes(self) -> Sequence[str]:
        return ["machines are processes of this computer, without isolation"]

    def offers(self) -> Sequence[Offer]:
        return [
            Offer(self.name, region, zone, "toy-2", market, round(price * share, 6), price, vcpus=2.0, memory_gib=8.0)
            for zone, (region, price) in ZONES.items()
            for market, share in ((Market.SPOT, 0.4), (Market.ON_DEMAND, 1.0))
        ]

    def launch(self, request: LaunchRequest) -> Sequence[Instance]:
        # Ids follow from the token, so that a repeated launch finds the machines of the first one.
        digest = hashlib.sha256(request.owner.token.encode()).hexdigest()[:16]
        ids = [f"toy-{digest}-{rank}" for rank in range(request.num_nodes)]
        with self._lock:
            missing = [rank for rank, id in enumerate(ids) if self._read(id) is None]
            if request.offer.key not in {offer.key for offer in self.offers()}:
                raise CloudRejected("NotOffered", f"{request.offer.key} is not offered")
            living = [machine["zone"] for machine in self._machines() if machine["ended_at"] is None]
            if missing and living.count(request.offer.zone) + len(missing) > self.capacity[request.offer.zone]:
                raise CloudRejected("ZoneFull", f"{request.offer.zone} has no room for {len(missing)} more machines")
            for rank in missing:
                self._start(ids[rank], rank, request)
            return [self._instance(machine) for machine in self._machines(ids)]

    def describe(self, region: str, ids: Sequence[str]) -> Sequence[Instance]:
        with self._lock:
            return [self._instance(machine) for machine in self._machines(ids) if machine["region"] == region]

    def list_owned(self, controller: str) -> Sequence[Instance]:
        with self._lock:
            living = [self._instance(machine) for machine in self._machines() if machine["ended_at"] is None]
        return [instance for instance in living if instance.owner.controller == controller]

    def terminate(self, region: str, ids: Sequence[str]) -> None:
        with self._lock:
            for machine in self._machines(ids):
                if machine["region"] == region and machine["ended_at"] is None:
                    kill_tree(machine["pid"])
                    self._write(machine | {"ended_at": self._clock.now(), "gone_reason": Reason.MACHINE_STOPPED})

    def classify(self, error: Exception) -> Fault:
        code = error.code if isinstance(error, CloudRejected) else type(error).__name__
        return to_fault(FAULTS.rule(code, error), code, str(error))

    def _start(self, id: str, rank: int, request: LaunchRequest) -> None:
        folder, offer, now = self._home / id, request.offer, self._clock.now()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        # A real cloud passes this program as user data. It fetches the agent from the controller and runs it.
        own = {"HOME": str(folder), "PERDURE_STATE_DIR": f"{folder}/state", "PERDURE_POWER_OFF": "true"}
        (folder / "boot.py").write_text(render_boot_program(request.bootstrap, rank, PERDURE_FOREGROUND="1", **own))
        command, environment = [sys.executable, "boot.py"], {"PATH": os.environ["PATH"]}  # no secrets of the controller
        with open(folder / "boot.log", "ab") as log:
            process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)
        values = (id, rank, offer.region, offer.zone, offer.instance_type, now, None, None)
        machine = dict(zip(FIELDS, values, strict=True)) | {"pid": process.pid, "started": start_time(process.pid)}
        self._write(machine | {"tags": request.labels | tags.to_tags(request.owner, "perdure:")})

    def _machines(self, ids: Sequence[str] | None = None) -> Iterator[dict[str, Any]]:
        names = sorted(path.name for path in self._home.glob("*")) if ids is None else ids
        return (machine for machine in map(self._read, names) if machine)

    def _read(self, id: str) -> dict[str, Any] | None:
        path = self._home / id / "machine.json"
        if not id.startswith("toy-") or "/" in id or not path.exists():
            return None
        machine: dict[str, Any] = json.loads(path.read_text())
        if machine["ended_at"] is None and start_time(machine["pid"]) != machine["started"]:  # it ended on its own
            machine |= {"ended_at": self._clock.now(), "gone_reason": Reason.MACHINE_CRASHED}
            self._write(machine)
        return machine

    def _write(self, machine: dict[str, Any]) -> None:
        path = self._home / machine["id"] / "machine.new"
        path.write_text(json.dumps(machine))
        path.replace(path.with_suffix(".json"))

    def _instance(self, machine: dict[str, Any]) -> Instance:
        state = InstanceState.RUNNING if machine["ended_at"] is None else InstanceState.GONE
        owner = tags.from_tags(machine["tags"], "perdure:") or Owner("", 0, 0, 0, "")
        fields = {name: machine[name] for name in FIELDS}
        fields["gone_reason"] = Reason(machine["gone_reason"]) if machine["gone_reason"] else None
        return Instance(**fields, cloud=self.name, owner=owner, state=state)


def start_time(pid: int) -> str | None:
    """Identifies a process together with its id, which may be reused. None if the process has ended."""
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if fields[0] in "ZX" else fields[19]
    return None


def kill_tree(pid: int) -> None:
    """Kill a process and its descendants, whatever sessions they are in."""
    with contextlib.suppress(OSError):
        os.kill(pid, signal.SIGSTOP)  # from now on it starts no others
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            kill_tree(int(child))
        os.kill(pid, signal.SIGKILL)


def build(context: BuildContext) -> ToyCloud:
    section = Section({"capacity": 4, **(context.section or {})}, "toy", known=("capacity",))
    return ToyCloud(context.local_home / "toy", context.clock, section.count("capacity", at_least=0))


DESCRIPTOR = CloudDescriptor(name="toy", build=build, runs_on_controller=True)
