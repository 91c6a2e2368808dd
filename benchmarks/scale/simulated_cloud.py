"""The daemon with a simulated cloud behind it: `python -m benchmarks.scale.simulated_cloud HOME SOCKET LAUNCH_S`.

In `config.yaml`, it takes the place of Google's cloud. A launch takes `LAUNCH_S` seconds. The machines, which outlive
the daemon, are at the other end of the Unix socket SOCKET (`nodes`), which receives every launch and end.
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

from perdure.controller.__main__ import serve
from perdure.controller.runtime.process import load_structlog, quick_imports

load_structlog()
with quick_imports():  # as a daemon does
    from perdure.controller.clouds import registry
    from perdure.controller.clouds.base.protocol import Fault, Instance, InstanceState, LaunchRequest, Owner
    from perdure.controller.runtime.clock import Clock
    from perdure.recovery.market.unavailable import FaultKind
    from perdure.recovery.market.view import Market, Offer
    from perdure.recovery.reasons import Reason

NAME = "gcp"


class SimulatedCloud:
    """An unlimited supply of machines that start at once. The other end may preempt them: `{"lost": [id, …]}`.

    It also sends what other daemons launched and ended: `{"known": machine}`, `{"gone": [id, …]}`.
    """

    name = NAME
    ignores: frozenset[str] = frozenset()

    def __init__(self, connection: socket.socket, launch_s: float, clock: Clock) -> None:
        self._socket = connection
        self._launch_s = launch_s
        self._clock = clock
        self._offers = offers()
        self._lock = threading.Lock()
        self._known: dict[str, Instance] = {}
        self._is_known = threading.Event()
        threading.Thread(target=self._listen, args=(connection.makefile("rb"),), daemon=True).start()

    def notes(self) -> Sequence[str]:
        return ()

    def unusable(self) -> str | None:
        return None

    def offers(self) -> Sequence[Offer]:
        return self._offers

    def launch(self, request: LaunchRequest) -> Sequence[Instance]:
        time.sleep(self._launch_s)  # the response time of a cloud
        boot, bought = request.bootstrap, []
        for rank in range(request.num_nodes):
            machine = self._described(request, rank)
            with self._lock:
                is_new = machine["id"] not in self._machines
                bought.append(self._machines.setdefault(machine["id"], _instance(machine)))
            if is_new:
                self._send({"launched": machine, "token": boot.token, "endpoint": boot.endpoint})
        return bought

    def describe(self, region: str, ids: Sequence[str]) -> Sequence[Instance]:
        return [machine for machine in map(self._machines.get, ids) if machine and machine.region == region]

    def list_owned(self, controller: str) -> Sequence[Instance]:
        with self._lock:
            machines = list(self._machines.values())
        return [m for m in machines if m.owner.controller == controller and m.state is not InstanceState.GONE]

    def terminate(self, region: str, ids: Sequence[str]) -> None:  # noqa: ARG002
        self._end(ids, Reason.MACHINE_STOPPED)
        self._send({"ended": list(ids)})

    def classify(self, error: Exception) -> Fault:
        return Fault(FaultKind.AMBIGUOUS, Reason.NO_CAPACITY, type(error).__name__, str(error))

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

    def _send(self, what: object) -> None:
        line = json.dumps(what).encode() + b"\n"
        with self._lock:
            self._socket.sendall(line)

    @property
    def _machines(self) -> dict[str, Instance]:
        """As with a real cloud, they are requested when they are needed, not when a daemon starts."""
        self._is_known.wait()
        return self._known

    def _listen(self, lines: Any) -> None:
        self._known |= {machine["id"]: _instance(machine) for machine in json.loads(lines.readline())["machines"]}
        self._is_known.set()
        for line in lines:
            message = json.loads(line)
            if "known" in message:
                with self._lock:
                    self._machines.setdefault(message["known"]["id"], _instance(message["known"]))
            self._end(message.get("lost", ()), Reason.PREEMPTED)
            self._end(message.get("gone", ()), Reason.MACHINE_STOPPED)


def offers() -> tuple[Offer, ...]:
    """Two types in both markets of 24 zones in eight regions. Each zone costs a little more than the one before."""
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
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    real = registry.descriptors()
    # The load generator simulates the machines on this computer, so they reach the controller's loopback address.
    simulated = replace(
        real[NAME],
        build=lambda context: SimulatedCloud(connection, float(launch_s), context.clock),
        is_remote=False,
    )
    registry.descriptors = lambda: {**real, NAME: simulated}
    serve(Path(home))


if __name__ == "__main__":
    main()
