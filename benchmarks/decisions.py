"""How long a policy thinks: one decision among hundreds of offers, most of them refused. CPU time on this machine."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from dataclasses import replace

from perdure.recovery.history import History, Sighting, learn
from perdure.recovery.job import AttemptView, NodeView, Recovery, TaskView
from perdure.recovery.market import FaultKind, Market, MarketView, Offer, Refusal
from perdure.recovery.needs import Need
from perdure.recovery.policies.cooldown import launch_refusal, preemption_refusal
from perdure.recovery.policies.registry import STRATEGIES, policy
from perdure.recovery.statuses import AttemptState, TaskState

OFFERS = 500
REFUSED = 300
PREEMPTED = 100
TRIALS = 300
TARGET_MS = 1.0
NOW = 1_000_000.0
HOUR = 3600.0


def main() -> list[str]:
    """Prints the table; returns what took too long."""
    market = _market()
    told = f"{OFFERS} offers, {len(market.refusals)} refusals"
    print(f"\na decision, {told} (median of {TRIALS}, CPU time; target {TARGET_MS:g} ms)")
    print(f"  {'policy':<18}{'to place':>12}{'to move':>12}{'x target':>10}")
    slow = []
    for name in STRATEGIES:
        place_ms, move_ms = _times_ms(name, market)
        worst_ms = max(place_ms, move_ms)
        print(f"  {name:<18}{place_ms:>9.3f} ms{move_ms:>9.3f} ms{worst_ms / TARGET_MS:>10.2f}")
        if worst_ms > TARGET_MS:
            slow.append(f"{name} takes {worst_ms:.2f} ms to decide")
    return slow


def _times_ms(name: str, market: MarketView) -> tuple[float, float]:
    needs = (Need(), Need(use_spot=False))
    recovery = Recovery(name, work_s=48 * HOUR, deadline_at=NOW + 60 * HOUR)
    task = TaskView(0, needs, recovery=recovery, refused_in_a_row=REFUSED // 10)
    dear = max((o for o in market.offers if o.market is Market.SPOT), key=lambda o: o.price_per_hour)
    attempt = AttemptView(1, AttemptState.RUNNING, dear, (NodeView(0),), NOW - HOUR, running_at=NOW - HOUR)
    runs = replace(task, state=TaskState.RUNNING, attempts=(attempt,), run_since=NOW - HOUR, last_offer=dear)
    chosen = policy(name)
    return (
        _median_ms(lambda: chosen.choose(task, market, NOW)),
        _median_ms(lambda: chosen.reconsider(runs, market, NOW)),
    )


def _median_ms(decide: Callable[[], object]) -> float:
    took = []
    for _ in range(TRIALS):
        began = time.process_time()
        decide()
        took.append(time.process_time() - began)
    return 1000 * statistics.median(took)


def _market() -> MarketView:
    chance = random.Random(1)
    offers = tuple(_offer(i, chance.random()) for i in range(OFFERS))
    history = History()
    for offer in offers:
        for hours in (4, 3, 2, 1):
            seen = Sighting(offer.key, NOW - hours * HOUR, chance.random() < 0.6, started_s=chance.uniform(300, 900))
            history = learn(history, seen)
    refusals: list[Refusal] = [
        launch_refusal(o, NOW - chance.random() * 2 * HOUR, kind=FaultKind.AVOID_ZONE, retry_after_s=3 * HOUR)
        for o in chance.sample(offers, REFUSED)
    ]
    refusals += [preemption_refusal(o, NOW - chance.random() * 1800) for o in chance.sample(offers, PREEMPTED)]
    return MarketView(offers, tuple(refusals), history=history)


def _offer(i: int, dear: float) -> Offer:
    market = (Market.SPOT, Market.ON_DEMAND)[i % 2]
    price = 1 + dear if market is Market.SPOT else 4.0
    return Offer(f"c{i % 3}", f"r{i // 10 % 17}", f"z{i // 2}", f"t{i % 5}", market, price, 4.0, 8, 61)
