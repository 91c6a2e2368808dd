"""A cloud in memory for tests: deterministic, driven by a clock alone, and able to fail as real clouds do.

It ships with the product, so that code that is built on `Cloud` can use it in its tests.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from perdure.controller.clouds.base.partial_listing import PartialListing
from perdure.controller.clouds.base.protocol import (
    Fault,
    Instance,
    InstanceState,
    LaunchRequest,
    Owner,
    StoppedMachineLost,
)
from perdure.controller.runtime.clock import Clock
from perdure.recovery.market.unavailable import FaultKind
from perdure.recovery.market.view import Market, Offer
from perdure.recovery.reasons import Reason

ZONES = {"fake-1a": "fake-1", "fake-1b": "fake-1", "fake-2a": "fake-2"}
CODES = {
    "NoCapacity": (FaultKind.AVOID_ZONE, Reason.NO_CAPACITY, 60.0),
    "QuotaExceeded": (FaultKind.AVOID_REGION, Reason.QUOTA, 60.0),
    "BadCredentials": (FaultKind.AVOID_CLOUD, Reason.BAD_CREDENTIALS, 60.0),
    "Throttled": (FaultKind.RETRY_LATER, Reason.THROTTLED, 2.0),
    "BadRequest": (FaultKind.GIVE_UP, Reason.BAD_REQUEST, None),
}


class FakeError(Exception):
    """A definite rejection: nothing happened."""

    def __init__(self, code: str, message: str = "") -> None:
        self.code = code
        super().__init__(f"{code}: {message}" if message else code)


@dataclass
class Faults:
    """The injected faults. They may change at any time."""

    #: Zone → how many machines it may have.
    capacity: dict[str, int] = field(default_factory=dict)
    #: Zone → the code with which every launch fails.
    launch_errors: dict[str, str] = field(default_factory=dict)
    #: How many of the next calls are throttled.
    throttle: int = 0
    #: For each of the next launches, how many machines start before the connection breaks. 0: the request is lost;
    #: all: the response is lost.
    broken_launches: list[int] = field(default_factory=list)
    boot_s: float = 0.0  # how long a machine is PENDING
    listing_delay_s: float = 0.0  # how long a new machine is neither described nor listed
    ending_s: float = 0.0  # how long a machine is ENDING after `terminate` or `stop`
    #: For each of the next calls of `start`, how many machines start before the connection breaks.
    broken_starts: list[int] = field(default_factory=list)
    stop_error: str | None = None  # the code with which every call of `stop` fails
    off_is_billed: bool = False  # a machine that powers itself off is ENDING until it is stopped, as on Azure
    forgotten_after_s: float = 3600.0  # how long a machine is described after its end
    unusable: str | None = None
    silent_regions: set[str] = field(default_factory=set)  # whose machines cannot be listed


@dataclass(frozen=True)
class Charge:
    """The cost of one machine so far."""

    instance_id: str
    owner: Owner
    offer: Offer
    seconds: float

    @property
    def usd(self) -> float:
        return self.offer.price_per_hour * self.seconds / 3600


@dataclass
class _Machine:
    id: str
    rank: int
    request: LaunchRequest
    ip: str
    launched_at: float
    ends_at: float = float("inf")
    gone_reason: Reason | None = None
    is_terminating: bool = False
    is_forgotten: bool = False
    is_off: bool = False  # it has powered itself off, and is not stopped
    stopped_at: float = float("inf")  # from when on it is stopped
    past: list[Charge] = field(default_factory=list)  # of the times before it was stopped

    def turn_off(self, at: float) -> None:
        """Stop at that time, with a disk that is kept. A preemption after it has nothing to take back."""
        self.stopped_at = min(self.stopped_at, at)
        if self.gone_reason is Reason.PREEMPTED and self.stopped_at <= self.ends_at:
            self.ends_at, self.gone_reason = float("inf"), None

    def end(self, at: float, gone_reason: Reason) -> None:
        """The earliest end wins."""
        if at < self.ends_at:
            self.ends_at, self.gone_reason = at, gone_reason


class FakeCloud:
    """A `Cloud` that is `Interruptible`, `Stoppable`, `HasConsole`. `calls`: of each method, including failed ones."""

    ignores: frozenset[str] = frozenset()

    def __init__(
        self, clock: Clock, *, offers: Sequence[Offer] | None = None, faults: Faults | None = None, name: str = "fake"
    ) -> None:
        self.name = name
        self.faults = faults or Faults()
        self.calls: Counter[str] = Counter()
        self.consoles: dict[str, str] = {}  # what machines have written to their console, by id
        self._clock = clock
        self._offers = default_offers(name) if offers is None else tuple(offers)
        self._machines: dict[str, _Machine] = {}
        self._lock = threading.RLock()

    # ---- the Cloud protocol ----

    def notes(self) -> Sequence[str]:
        return ()

    def unusable(self) -> str | None:
        return self.faults.unusable

    def offers(self) -> Sequence[Offer]:
        return self._offers

    def launch(self, request: LaunchRequest) -> Sequence[Instance]:
        with self._lock:
            self._begin_call("launch")
            ids = [f"{self.name}-{request.owner.token}-{rank}" for rank in range(request.num_nodes)]
            missing = [rank for rank, id in enumerate(ids) if id not in self._machines]
            if missing:
                self._check_capacity(request, len(missing))
                break_after = self.faults.broken_launches.pop(0) if self.faults.broken_launches else None
                for rank in missing[:break_after]:
                    self._start(ids[rank], rank, request)
                if break_after is not None:
                    raise ConnectionError("the connection broke before the response came")
            return [self._describe(self._machines[id]) for id in ids]

    def describe(self, region: str, ids: Sequence[str]) -> Sequence[Instance]:
        with self._lock:
            self._begin_call("describe")
            known = [machine for machine in map(self._machines.get, ids) if machine and self._is_visible(machine)]
            return [self._describe(machine) for machine in known if machine.request.offer.region == region]

    def console_output(self, region: str, id: str) -> str:  # noqa: ARG002
        with self._lock:
            self._begin_call("console_output")
            return self.consoles.get(id, "")

    def list_owned(self, controller: str) -> Sequence[Instance]:
        with self._lock:
            self._begin_call("list_owned")
            seen = [self._describe(machine) for machine in self._machines.values() if self._is_visible(machine)]
            owned = [i for i in seen if i.owner.controller == controller and i.state is not InstanceState.GONE]
            if silent := self.faults.silent_regions:
                failures = {region: ConnectionError(f"{region} does not answer") for region in sorted(silent)}
                raise PartialListing([i for i in owned if i.region not in silent], failures)
            return owned

    def terminate(self, region: str, ids: Sequence[str]) -> None:
        with self._lock:
            self._begin_call("terminate")
            for machine in map(self._machines.get, ids):
                if machine and machine.request.offer.region == region:
                    machine.is_terminating = True
                    machine.end(self._clock.now() + self.faults.ending_s, Reason.MACHINE_STOPPED)

    def stop(self, region: str, ids: Sequence[str]) -> None:
        with self._lock:
            self._begin_call("stop")
            if self.faults.stop_error:
                raise FakeError(self.faults.stop_error, "StopInstances")
            for machine in map(self._machines.get, ids):
                if machine and machine.request.offer.region == region:
                    machine.turn_off(self._clock.now() + self.faults.ending_s)

    def start(self, request: LaunchRequest, ids: Sequence[str]) -> Sequence[Instance]:
        with self._lock:
            self._begin_call("start")
            machines = [self._machines.get(id) for id in ids]
            if any(machine is None or self._is_gone(machine) for machine in machines):
                raise StoppedMachineLost(", ".join(ids))
            known = [machine for machine in machines if machine is not None]
            if any(machine.stopped_at < float("inf") and not self._is_stopped(machine) for machine in known):
                raise FakeError("BadRequest", "a machine that is stopping cannot be started")
            off = [machine for machine in known if self._is_stopped(machine)]
            self._check_capacity(request, len(off))
            break_after = self.faults.broken_starts.pop(0) if self.faults.broken_starts else None
            for machine in off[:break_after]:
                self._restart(machine, request)
            if break_after is not None:
                raise ConnectionError("the connection broke before the response came")
            return [self._describe(machine) for machine in known]

    def disk_price_per_hour(self, offer: Offer, disk_gib: int | None, disk_tier: str | None) -> float:  # noqa: ARG002
        return 0.0001 * (disk_gib or 100)

    def classify(self, error: Exception) -> Fault:
        if not isinstance(error, FakeError):
            return Fault(FaultKind.AMBIGUOUS, Reason.NO_CAPACITY, type(error).__name__, str(error))
        kind, reason, retry_after_s = CODES[error.code]
        return Fault(
            kind,
            reason,
            error.code,
            str(error),
            retry_after_s,
            whole_region=kind is FaultKind.AVOID_REGION,
            whole_cloud=kind is FaultKind.AVOID_CLOUD,
        )

    # ---- events of machines ----

    def interrupt(self, region: str, instance_id: str, *, notice_s: float | None) -> None:
        """Preempt the machine at the end of the notice. Raises FakeError if it does not run."""
        with self._lock:
            self._begin_call("interrupt")
            machine = self._machines.get(instance_id)
            if machine is None or self._is_gone(machine) or machine.request.offer.region != region:
                raise FakeError("BadRequest", f"there is no machine {instance_id!r} in {region}")
            machine.end(self._clock.now() + (notice_s or 0.0), Reason.PREEMPTED)

    def power_off(self, instance_id: str) -> None:
        """The machine powers itself off: its disk is kept if it was launched so."""
        with self._lock:
            machine = self._machines[instance_id]
            if self.faults.off_is_billed:
                machine.is_off = True
            elif machine.request.keeps_disks:
                machine.turn_off(self._clock.now())
            else:
                machine.end(self._clock.now(), Reason.MACHINE_STOPPED)

    def preempt(self, instance_id: str, notice_s: float | None = None) -> None:
        """`interrupt` in the machine's region."""
        self.interrupt(self._machines[instance_id].request.offer.region, instance_id, notice_s=notice_s)

    def crash(self, instance_id: str) -> None:
        """The machine ends on its own."""
        with self._lock:
            self._machines[instance_id].end(self._clock.now(), Reason.MACHINE_CRASHED)

    def forget(self, instance_id: str) -> None:
        """The machine ends, and the cloud never describes it again."""
        with self._lock:
            self._machines[instance_id].end(self._clock.now(), Reason.MACHINE_CRASHED)
            self._machines[instance_id].is_forgotten = True

    def notice(self, instance_id: str) -> float | None:
        """The deadline (epoch seconds) in the machine's metadata; None while there is none."""
        with self._lock:
            machine = self._machines[instance_id]
            return machine.ends_at if machine.gone_reason is Reason.PREEMPTED and not self._is_gone(machine) else None

    def bill(self) -> list[Charge]:
        """The cost of every machine until now, in order of launch, without disks. Billing is per second."""
        with self._lock:
            return [charge for m in self._machines.values() for charge in (*m.past, self._charge(m))]

    # ---- private ----

    def _begin_call(self, method: str) -> None:
        self.calls[method] += 1
        if self.faults.throttle > 0:
            self.faults.throttle -= 1
            raise FakeError("Throttled", method)

    def _check_capacity(self, request: LaunchRequest, count: int) -> None:
        zone = request.offer.zone
        if request.offer.key not in {offer.key for offer in self._offers}:
            raise FakeError("BadRequest", f"{request.offer.key} is not offered")
        if code := self.faults.launch_errors.get(zone):
            raise FakeError(code, zone)
        running = (m for m in self._machines.values() if not (self._is_gone(m) or self._is_stopped(m)))
        living = sum(m.request.offer.zone == zone for m in running)
        if living + count > self.faults.capacity.get(zone, living + count):
            raise FakeError("NoCapacity", zone)

    def _charge(self, machine: _Machine) -> Charge:
        """Of the time since it was launched or started last."""
        ran_until = min(self._clock.now(), machine.ends_at, machine.stopped_at)
        seconds = max(0.0, ran_until - machine.launched_at)
        return Charge(machine.id, machine.request.owner, machine.request.offer, seconds)

    def _restart(self, machine: _Machine, request: LaunchRequest) -> None:
        machine.past.append(self._charge(machine))
        machine.request, machine.launched_at, machine.stopped_at = request, self._clock.now(), float("inf")
        machine.is_off = False

    def _start(self, id: str, rank: int, request: LaunchRequest) -> None:
        high, low = divmod(len(self._machines), 254)
        self._machines[id] = _Machine(id, rank, request, f"10.77.{high}.{low + 1}", self._clock.now())

    def _is_gone(self, machine: _Machine) -> bool:
        return machine.ends_at <= self._clock.now()

    def _is_stopped(self, machine: _Machine) -> bool:
        return machine.stopped_at <= self._clock.now()

    def _is_visible(self, machine: _Machine) -> bool:
        shown_from = machine.launched_at + self.faults.listing_delay_s
        shown_until = machine.ends_at + self.faults.forgotten_after_s
        return not machine.is_forgotten and shown_from <= self._clock.now() < shown_until

    def _describe(self, machine: _Machine) -> Instance:
        offer, is_gone = machine.request.offer, self._is_gone(machine)
        is_stopped = not is_gone and self._is_stopped(machine)
        return Instance(
            id=machine.id,
            rank=machine.rank,
            owner=machine.request.owner,
            state=self._state(machine),
            cloud=self.name,
            region=offer.region,
            zone=offer.zone,
            instance_type=offer.instance_type,
            ip=machine.ip,
            launched_at=machine.launched_at,
            ended_at=min(machine.ends_at, machine.stopped_at) if is_gone or is_stopped else None,
            gone_reason=machine.gone_reason if is_gone else Reason.MACHINE_STOPPED if is_stopped else None,
        )

    def _state(self, machine: _Machine) -> InstanceState:
        if self._is_gone(machine):
            return InstanceState.GONE
        if self._is_stopped(machine) and not machine.is_terminating:
            return InstanceState.STOPPED
        if machine.is_terminating or machine.is_off or machine.stopped_at < float("inf"):
            return InstanceState.ENDING
        is_booting = self._clock.now() < machine.launched_at + self.faults.boot_s
        return InstanceState.PENDING if is_booting else InstanceState.RUNNING


def default_offers(cloud: str = "fake") -> tuple[Offer, ...]:
    """Offers of three zones in two regions, at rising prices: a type with an accelerator and one without, spot and
    on-demand."""
    types = (("fake-4", 4.0, 16.0, 0.2, None), ("fake-v100", 8.0, 64.0, 3.0, ("V100", 1.0)))
    return tuple(
        Offer(
            cloud=cloud,
            region=region,
            zone=zone,
            instance_type=name,
            market=market,
            price_per_hour=round(price * share * (1 + 0.05 * number), 6),
            on_demand_price_per_hour=round(price * (1 + 0.05 * number), 6),
            vcpus=vcpus,
            memory_gib=memory_gib,
            accelerators=accelerators,
        )
        for number, (zone, region) in enumerate(ZONES.items())
        for name, vcpus, memory_gib, price, accelerators in types
        for market, share in ((Market.SPOT, 0.3), (Market.ON_DEMAND, 1.0))
    )
