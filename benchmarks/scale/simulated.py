"""The daemon with a simulated cloud behind it: `python -m benchmarks.scale.simulated HOME SOCKET LAUNCH_S`.

The cloud stands where Google's stands in `config.yaml`. A launch takes `LAUNCH_S` seconds. The machines themselves, and
so what survives the daemon, are at the other end of the Unix socket SOCKET (`nodes`), which is told of each.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from perdure.controller.clock import Clock
from perdure.controller.clouds import registry
from perdure.controller.clouds.base import Fault, Instance, InstanceState, LaunchRequest, Owner
from perdure.controller.daemon import serve
from perdure.recovery.market import FaultKind, Market, Offer
from perdure.recovery.reasons import Reason

NAME = "gcp"


class SimulatedCloud:
    """Machines without end, each there at once. The other end may take them: `{"lost": [id, …]}`.

    It also tells what other daemons had of the same cloud: `{"known": machine}`, `{"gone": [id, …]}`.
    """

    name = NAME
    ignores: frozenset[str] = frozenset()

    def __init__(self, told: socket.socket, launch_s: float, clock: Clock) -> None:
        self._told = told
        self._launch_s = launch_s
        self._clock = clock
        self._offers = offers()
        self._lock = threading.Lock()
        self._known: dict[str, Instance] = {}
        self._is_known = threading.Event()
        threading.Thread(target=self._listen, args=(told.makefile("rb"),), daemon=True).start()

    def notes(self) -> Sequence[str]:
        return ()

    def unusable(self) -> str | None:
        return None

    def offers(self) -> Sequence[Offer]:
        return self._offers

    def launch(self, request: LaunchRequest) -> Sequence[Instance]:
        time.sleep(self._launch_s)  # what a cloud's answer takes
        boot, bought = request.bootstrap, []
        for rank in range(request.num_nodes):
            machine = self._described(request, rank)
            with self._lock:
                is_new = machine["id"] not in self._machines
                bought.append(self._machines.setdefault(machine["id"], _instance(machine)))
            if is_new:
                self._tell({"launched": machine, "token": boot.token, "endpoint": boot.endpoint})
        return bought

    def describe(self, region: str, ids: Sequence[str]) -> Sequence[Instance]:
        return [machine for machine in map(self._machines.get, ids) if machine and machine.region == region]

    def list_owned(self, controller: str) -> Sequence[Instance]:
        with self._lock:
            machines = list(self._machines.values())
        return [m for m in machines if m.owner.controller == controller and m.state is not InstanceState.GONE]

    def terminate(self, region: str, ids: Sequence[str]) -> None:  # noqa: ARG002
        self._end(ids, Reason.MACHINE_STOPPED)
        self._tell({"ended": list(ids)})

    def classify(self, error: Exception) -> Fault:
        return Fault(FaultKind.FIND_OUT, Reason.NO_CAPACITY, type(error).__name__, str(error))

    def _described(self, request: LaunchRequest, rank: int) -> dict[str, Any]:
        owner, offer = request.owner, request.offer
        return {
            "id": f"{owner.token}-{rank}",
            "rank": rank,
            "owner": [owner.controller, owner.job_id, owner.task, owner.generation, owner.token],
            "region": offer.region,
            "zone": offer.zone,
            "instance_type": offer.instance_type,
            "launched_at": self._clock.now(),
        }

    def _end(self, ids: Sequence[str], why: Reason) -> None:
        with self._lock:
            for machine in filter(None, map(self._machines.get, ids)):
                if machine.state is not InstanceState.GONE:
                    gone = replace(machine, state=InstanceState.GONE, ended_at=self._clock.now(), gone_reason=why)
                    self._machines[machine.id] = gone

    def _tell(self, what: object) -> None:
        line = json.dumps(what).encode() + b"\n"
        with self._lock:
            self._told.sendall(line)

    @property
    def _machines(self) -> dict[str, Instance]:
        """As a real cloud's, they are asked for when they are needed, not when a daemon starts."""
        self._is_known.wait()
        return self._known

    def _listen(self, lines: Any) -> None:
        self._known |= {machine["id"]: _instance(machine) for machine in json.loads(lines.readline())["machines"]}
        self._is_known.set()
        for line in lines:
            told = json.loads(line)
            if "known" in told:
                with self._lock:
                    self._machines.setdefault(told["known"]["id"], _instance(told["known"]))
            self._end(told.get("lost", ()), Reason.PREEMPTED)
            self._end(told.get("gone", ()), Reason.MACHINE_STOPPED)


def offers() -> tuple[Offer, ...]:
    """Two types in both markets of 24 zones in eight regions, the one after the other a little dearer."""
    return tuple(
        Offer(
            cloud=NAME,
            region=f"region-{number // 3}",
            zone=f"region-{number // 3}-{'abc'[number % 3]}",
            instance_type=name,
            market=market,
            price_per_hour=price * share * (1 + number / 100),
            on_demand_price_per_hour=price * (1 + number / 100),
            vcpus=vcpus,
            memory_gib=4 * vcpus,
        )
        for number in range(24)
        for name, vcpus, price in (("simulated-4", 4.0, 0.2), ("simulated-8", 8.0, 0.4))
        for market, share in ((Market.SPOT, 0.3), (Market.ON_DEMAND, 1.0))
    )


def _instance(machine: dict[str, Any]) -> Instance:
    owner = Owner(*machine["owner"])
    rest = {name: value for name, value in machine.items() if name != "owner"}
    return Instance(owner=owner, state=InstanceState.RUNNING, cloud=NAME, ip="10.0.0.1", **rest)


def main() -> None:
    home, path, launch_s = sys.argv[1:]
    told = socket.socket(socket.AF_UNIX)
    told.connect(path)
    registry.BOUGHT[NAME] = lambda _cache, _section, clock: SimulatedCloud(told, float(launch_s), clock)
    serve(Path(home))


if __name__ == "__main__":
    main()
