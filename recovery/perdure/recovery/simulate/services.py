"""Simulates a service on recorded spot markets: how many of its replicas are ready, and what its machines cost.

The number and the kinds of replicas are decided by `market.services.plan`, as in the daemon. Where a spot replica is
launched is a placement: SPREAD is the daemon's; SPOTHEDGE is the published one (arXiv 2411.01438, and SkyServe's spot
placer): the cheapest active zone without a replica, else any active one; a preemption or a refusal makes a zone
inactive, a launch active, and with fewer than two active zones all are.

A zone has as many machines as are wanted, or none: of sixteen, all or none were available in 94 % of the recorded time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from perdure.recovery.frozen import replace
from perdure.recovery.job import Recovery, TaskView
from perdure.recovery.market.cooldown import unavailable_after_launch, unavailable_after_preemption
from perdure.recovery.market.history import History, OfferObservation, with_observation
from perdure.recovery.market.offers import Market, Offer
from perdure.recovery.market.requirements import MachineRequirement
from perdure.recovery.market.services.plan import ServiceView, decide
from perdure.recovery.market.services.replicas import Probe, Replica
from perdure.recovery.market.services.scale import ScaleState, Traffic
from perdure.recovery.market.services.spec import ReplicaPolicy, ServiceSpec
from perdure.recovery.market.unavailable import FaultKind, UnavailableOffer
from perdure.recovery.market.view import MarketView
from perdure.recovery.policies.decisions import Place
from perdure.recovery.policies.strategies.spread import spread
from perdure.recovery.simulate.traces import ZoneTrace
from perdure.recovery.statuses import AttemptState, Status

SPREAD, SPOTHEDGE, ONE_ZONE = "SPREAD", "SPOTHEDGE", "ONE_ZONE"
STEP_S = 60.0
_HOUR_S = 3600.0
_TASK = TaskView(0, (MachineRequirement(use_spot=True),))


@dataclass(frozen=True)
class ServiceScenario:
    """`notice_s`: how long before its end a spot machine has a notice; 0: never. `cold_start_s`: from a launch until
    the replica is ready."""

    zones: tuple[ZoneTrace, ...]
    policy: ReplicaPolicy
    uses_spot: bool = True
    placement: str = SPREAD
    start_at: float = 0.0
    length_s: float = 7 * 24 * _HOUR_S
    cold_start_s: float = 180.0
    notice_s: float = 120.0


@dataclass(frozen=True)
class ServiceResult:
    """`available`: the share of time in which at least `min_replicas` were ready; `answered`: at least one."""

    available: float
    answered: float
    cost_usd: float
    on_demand_usd: float  # what `min_replicas` on-demand machines cost
    preemptions: int

    @property
    def cost_ratio(self) -> float:
        return self.cost_usd / self.on_demand_usd


@dataclass
class _Machine:
    number: int
    is_spot: bool
    zone: int | None = None  # None: it waits for one
    launched_at: float = 0.0
    leaves_at: float | None = None  # of its notice


@dataclass
class _World:
    scenario: ServiceScenario
    now: float
    machines: list[_Machine] = field(default_factory=list)
    next_number: int = 1
    history: History = field(default_factory=History)
    offers: tuple[Offer, ...] = ()  # by zone
    unavailable: tuple[UnavailableOffer, ...] = ()
    inactive: set[int] = field(default_factory=set)
    preemptions: int = 0

    def used(self, zone: int) -> int:
        return sum(one.zone == zone and one.is_spot for one in self.machines)

    def is_ready(self, one: _Machine) -> bool:
        return one.zone is not None and self.now >= one.launched_at + self.scenario.cold_start_s

    def see_prices(self) -> None:
        """Make the offers of this moment, if a price has changed."""
        prices = tuple(zone.price(self.now) for zone in self.scenario.zones)
        if prices != tuple(offer.price_per_hour for offer in self.offers):
            self.offers = tuple(map(_offer, self.scenario.zones, prices))

    def avoid(self, failed: UnavailableOffer) -> None:
        """Keep what is avoided, and what lengthens the next time."""
        kept = (one for one in self.unavailable if one.until > self.now - _HOUR_S)
        self.unavailable = (*kept, failed)

    def observe(self, zone: int, *, available: bool) -> None:
        observation = OfferObservation(self.offers[zone].key, self.now, available)
        self.history = with_observation(self.history, observation)


def simulate_service(scenario: ServiceScenario) -> ServiceResult:
    """The service over the scenario's time."""
    world, target = _World(scenario, scenario.start_at), scenario.policy.min_replicas
    spec = ServiceSpec(scenario.policy, uses_spot=scenario.uses_spot)
    steps = round(scenario.length_s / STEP_S)
    available = answered = 0
    cost = on_demand = 0.0
    for _ in range(steps):
        world.see_prices()
        _take_back(world)
        _decide(world, spec, target)
        _launch(world)
        serving = sum(world.is_ready(one) for one in world.machines)
        available += serving >= target
        answered += serving > 0
        cost += sum(_price(world, one) for one in world.machines) * STEP_S / _HOUR_S
        on_demand += target * min(zone.on_demand_price for zone in scenario.zones) * STEP_S / _HOUR_S
        world.now += STEP_S
    return ServiceResult(available / steps, answered / steps, cost, on_demand, world.preemptions)


def _price(world: _World, one: _Machine) -> float:
    if one.zone is None:
        return 0.0
    zone = world.scenario.zones[one.zone]
    return zone.price(world.now) if one.is_spot else zone.on_demand_price


def _take_back(world: _World) -> None:
    """End the machines that their zones take back.

    The recording ends a machine at a tick; a notice comes before it, since the cloud knows what it will take.
    """
    scenario = world.scenario
    gone = [one for one in world.machines if one.leaves_at is not None and one.leaves_at <= world.now]
    for one in gone:
        world.machines.remove(one)
    for zone, trace in enumerate(scenario.zones):
        held = [one for one in world.machines if one.zone == zone and one.is_spot and one.leaves_at is None]
        if not held or trace.has_capacity(1, world.now + scenario.notice_s):
            continue
        world.preemptions += len(held)
        world.inactive.add(zone)
        world.avoid(unavailable_after_preemption(world.offers[zone], world.now))
        world.observe(zone, available=False)
        for one in held:
            if scenario.notice_s:
                one.leaves_at = world.now + scenario.notice_s
            else:
                world.machines.remove(one)


def _decide(world: _World, spec: ServiceSpec, target: int) -> None:
    """Add and remove replicas as the daemon would."""
    views = tuple(_view(world, one) for one in world.machines if one.leaves_at is None)
    plan = decide(ServiceView(spec, 1, ScaleState(target), views, was_ready=True), Traffic(), world.now)
    retired = {one.number for one in plan.retirements}
    world.machines = [one for one in world.machines if one.number not in retired]
    for is_spot in plan.launches:
        world.machines.append(_Machine(world.next_number, is_spot))
        world.next_number += 1


def _view(world: _World, one: _Machine) -> Replica:
    ready = world.is_ready(one)
    return Replica(
        one.number,
        1,
        one.is_spot,
        created_at=one.launched_at,
        job_status=Status.RUNNING,
        attempt_state=AttemptState.RUNNING,
        probe=Probe(ready=ready),
        was_ready=ready,
    )


def _launch(world: _World) -> None:
    """Launch the replicas that wait for a machine."""
    place = _PLACEMENTS[world.scenario.placement]
    for one in world.machines:
        if one.zone is not None:
            continue
        if not one.is_spot:
            prices = [zone.on_demand_price for zone in world.scenario.zones]
            one.zone, one.launched_at = prices.index(min(prices)), world.now
            continue
        zone = place(world)
        if zone is None:
            continue
        is_available = world.scenario.zones[zone].has_capacity(1, world.now)
        world.observe(zone, available=is_available)
        if is_available:
            one.zone, one.launched_at = zone, world.now
            world.inactive.discard(zone)
        else:  # another one is tried a moment later
            world.inactive.add(zone)
            of_zone = world.offers[zone]
            kind, earlier = FaultKind.AVOID_ZONE, world.unavailable
            world.avoid(unavailable_after_launch(of_zone, world.now, kind=kind, earlier=earlier))


def _offer(zone: ZoneTrace, price: float) -> Offer:
    prices = (price, zone.on_demand_price)
    return Offer("trace", zone.region, zone.zone, zone.instance_type, Market.SPOT, *prices, 8, 61)


def _place_by_spread(world: _World) -> int | None:
    market = MarketView(world.offers, world.unavailable, history=world.history)
    taken = sorted(world.offers[one.zone].zone for one in world.machines if one.zone is not None and one.is_spot)
    task = replace(_TASK, recovery=Recovery(recovers=False, taken_zones=tuple(taken)))
    choice = spread(task, market, world.now)
    return world.offers.index(choice.offer) if isinstance(choice, Place) else None


def _place_by_spothedge(world: _World) -> int | None:
    zones = range(len(world.scenario.zones))
    active = [zone for zone in zones if zone not in world.inactive]
    if len(active) < 2:
        world.inactive.clear()
        active = list(zones)
    free = [zone for zone in active if not world.used(zone)]
    return _cheapest(world, free or active)


def _place_in_one_zone(world: _World) -> int | None:
    return 0 if world.scenario.zones[0].has_capacity(1, world.now) else None


def _cheapest(world: _World, zones: Sequence[int]) -> int:
    return min(zones, key=lambda zone: world.scenario.zones[zone].price(world.now))


_PLACEMENTS: dict[str, Callable[[_World], int | None]] = {
    SPREAD: _place_by_spread,
    SPOTHEDGE: _place_by_spothedge,
    ONE_ZONE: _place_in_one_zone,
}
