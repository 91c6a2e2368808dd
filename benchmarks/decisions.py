"""CPU time of one decision of each policy, among hundreds of offers, most of them unavailable."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from dataclasses import replace

from perdure.recovery.job import AttemptView, NodeView, Recovery, TaskView
from perdure.recovery.market.cooldown import unavailable_after_launch, unavailable_after_preemption
from perdure.recovery.market.history import History, OfferObservation, with_observation
from perdure.recovery.market.requirements import MachineRequirement
from perdure.recovery.market.unavailable import FaultKind, UnavailableOffer
from perdure.recovery.market.view import Market, MarketView, Offer
from perdure.recovery.policies.registry import STRATEGIES, get_policy
from perdure.recovery.statuses import AttemptState, TaskState

OFFERS = 500
REFUSED = 300
PREEMPTED = 100
TRIALS = 300
TARGET_MS = 1.0
NOW = 1_000_000.0
HOUR = 3600.0


def main() -> list[str]:
    """Print the table; returns a line for each policy that takes too long."""
    market = _market()
    size = f"{OFFERS} offers, {len(market.unavailable)} of them unavailable"
    print(f"\na decision, {size} (median of {TRIALS}, CPU time; target {TARGET_MS:g} ms)")
    print(f"  {'policy':<18}{'to place':>12}{'to move':>12}{'x target':>10}")
    misses = []
    for name in STRATEGIES:
        place_ms, move_ms = _times_ms(name, market)
        worst_ms = max(place_ms, move_ms)
        print(f"  {name:<18}{place_ms:>9.3f} ms{move_ms:>9.3f} ms{worst_ms / TARGET_MS:>10.2f}")
        if worst_ms > TARGET_MS:
            misses.append(f"{name} takes {worst_ms:.2f} ms to decide")
    return misses


def _times_ms(name: str, market: MarketView) -> tuple[float, float]:
    requirements = (MachineRequirement(), MachineRequirement(use_spot=False))
    recovery = Recovery(name, work_s=48 * HOUR, deadline_at=NOW + 60 * HOUR)
    task = TaskView(0, requirements, recovery=recovery, consecutive_refusals=REFUSED // 10)
    expensive = max((o for o in market.offers if o.market is Market.SPOT), key=lambda o: o.price_per_hour)
    attempt = AttemptView(1, AttemptState.RUNNING, expensive, (NodeView(0),), NOW - HOUR, running_at=NOW - HOUR)
    running = replace(task, state=TaskState.RUNNING, attempts=(attempt,), run_since=NOW - HOUR, last_offer=expensive)
    policy = get_policy(name)
    return (
        _median_ms(lambda: policy.choose(task, market, NOW)),
        _median_ms(lambda: policy.reconsider(running, market, NOW)),
    )


def _median_ms(decide: Callable[[], object]) -> float:
    times = []
    for _ in range(TRIALS):
        began = time.process_time()
        decide()
        times.append(time.process_time() - began)
    return 1000 * statistics.median(times)


def _market() -> MarketView:
    generator = random.Random(1)
    offers = tuple(_offer(i, generator.random()) for i in range(OFFERS))
    history = History()
    for offer in offers:
        for hours in (4, 3, 2, 1):
            seen = OfferObservation(
                offer.key, NOW - hours * HOUR, generator.random() < 0.6, started_s=generator.uniform(300, 900)
            )
            history = with_observation(history, seen)
    unavailable: list[UnavailableOffer] = [
        unavailable_after_launch(
            o, NOW - generator.random() * 2 * HOUR, kind=FaultKind.AVOID_ZONE, retry_after_s=3 * HOUR
        )
        for o in generator.sample(offers, REFUSED)
    ]
    unavailable += [
        unavailable_after_preemption(o, NOW - generator.random() * 1800) for o in generator.sample(offers, PREEMPTED)
    ]
    return MarketView(offers, tuple(unavailable), history=history)


def _offer(i: int, expensive: float) -> Offer:
    market = (Market.SPOT, Market.ON_DEMAND)[i % 2]
    price = 1 + expensive if market is Market.SPOT else 4.0
    return Offer(f"c{i % 3}", f"r{i // 10 % 17}", f"z{i // 2}", f"t{i % 5}", market, price, 4.0, 8, 61)
