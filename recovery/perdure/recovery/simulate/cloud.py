"""What would have happened to a machine: whether a launch succeeds, how long it takes, and when it is preempted.

All randomness of a scenario is drawn here from its seed, as a function of place and time. So all policies, the
baselines and the optimum face the same world.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from math import exp
from statistics import NormalDist

from perdure.recovery.market.offers import Market, Offer
from perdure.recovery.simulate.scenario import WORST_SIGMAS, Scenario

NAME = "trace"

_ON_DEMAND = Market.ON_DEMAND


@dataclass(frozen=True)
class TraceCloud:
    """The scenario's zones as a cloud. Times are in epoch seconds.

    The fields that start with an underscore are caches.
    """

    scenario: Scenario
    _offers: dict[int, tuple[Offer, ...]] = field(default_factory=dict)
    _drawn: dict[tuple[int, Market, int], float] = field(default_factory=dict)

    def offers(self, at: float) -> tuple[Offer, ...]:
        """The price list: the same tuple as long as prices stay the same."""
        number = bisect_right(self._price_changes, at)
        offers = self._offers.get(number)
        if offers is None:
            prices = tuple([zone.price(at) for zone in self.scenario.zones])
            offers = self._offers[number] = tuple(self._price_list(prices))
        return offers

    @cached_property
    def _zones(self) -> dict[tuple[str, str], int]:
        return {(zone.region, zone.zone): i for i, zone in enumerate(self.scenario.zones)}

    @cached_property
    def _price_changes(self) -> list[float]:
        """When any zone's price changes, in order."""
        zones = self.scenario.zones
        ticks = ((z, i) for z in zones for i in range(1, len(z.prices)) if z.prices[i] != z.prices[i - 1])
        return sorted({zone.time(tick) for zone, tick in ticks})

    def _price_list(self, prices: tuple[float, ...]) -> list[Offer]:
        return [
            Offer(
                cloud=NAME,
                region=zone.region,
                zone=zone.zone,
                instance_type=zone.instance_type,
                market=market,
                price_per_hour=price if market is Market.SPOT else zone.on_demand_price,
                on_demand_price_per_hour=zone.on_demand_price,
                # No simulated task requires an amount; these are a p3.2xlarge's.
                vcpus=8,
                memory_gib=61,
            )
            for zone, price in zip(self.scenario.zones, prices, strict=True)
            for market in Market
        ]

    def zone_of(self, offer: Offer) -> int:
        return self._zones[offer.region, offer.zone]

    def has_capacity(self, zone: int, market: Market, at: float) -> bool:
        """Whether the zone can hold all machines of the scenario. On-demand always can."""
        return market is _ON_DEMAND or self.scenario.zones[zone].has_capacity(self.scenario.num_nodes, at)

    def can_launch(self, zone: int, market: Market, at: float) -> bool:
        """Whether all machines can be launched: a zone that has given notice refuses launches."""
        notice_s = self.scenario.notice_s
        return self.has_capacity(zone, market, at) and (not notice_s or self.has_capacity(zone, market, at + notice_s))

    def preempted_at(self, zone: int, market: Market, launched_at: float) -> float:
        """When machines launched at `launched_at` would lose the first of them; infinity if never."""
        if market is _ON_DEMAND:
            return float("inf")
        return self.scenario.zones[zone].next_change(self.scenario.num_nodes, launched_at)

    def surviving_nodes(self, zone: int, at: float) -> int:
        """How many of the scenario's machines the zone has capacity for."""
        trace = self.scenario.zones[zone]
        return min(self.scenario.num_nodes, trace.counts[trace.tick(at)])

    def bill(self, zone: int, market: Market, begin: float, end: float) -> float:
        """USD for all machines from `begin` to `end`, billed by the second at the current price."""
        trace, nodes = self.scenario.zones[zone], self.scenario.num_nodes
        if market is _ON_DEMAND:
            return nodes * trace.on_demand_price * (end - begin) / 3600
        return nodes * (trace.spent(end) - trace.spent(begin))

    def cold_start_s(self, zone: int, market: Market, at: float) -> float:
        """How long machines launched at `at` take until they work. The same throughout a tick."""
        scenario = self.scenario
        sigma = scenario.cold_start_sigma
        if not sigma:
            return scenario.cold_start_s
        trace = scenario.zones[zone]
        key = (zone, market, int((at - trace.start_at) // trace.gap_s))
        drawn_s = self._drawn.get(key)
        if drawn_s is None:
            share = int.from_bytes(blake2b(f"{scenario.seed} {key}".encode(), digest_size=6).digest()) + 0.5
            deviate = min(NormalDist().inv_cdf(share / 2**48), WORST_SIGMAS)
            length = scenario.cold_start_s * exp(sigma * deviate - sigma**2 / 2)
            drawn_s = self._drawn[key] = max(1, round(length / scenario.grid_s)) * scenario.grid_s
        return drawn_s

    @cached_property
    def cuts(self) -> list[float]:
        """When anything changes in any zone, in order: availability, price and, if they vary, cold starts."""
        scenario = self.scenario
        times: set[float] = set()
        for zone in scenario.zones:
            if scenario.cold_start_sigma:
                times.update(zone.time(tick) for tick in range(len(zone.counts)))
            else:
                priced = zip(zone.counts, zone.prices, strict=True)
                states = [price if count >= scenario.num_nodes else None for count, price in priced]
                times.update(zone.time(i) for i in range(1, len(states)) if states[i] != states[i - 1])
        return sorted(times)
