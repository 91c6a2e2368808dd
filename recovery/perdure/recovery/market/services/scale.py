"""How many replicas the load of a service needs, and since when: the number changes only after a delay, as in SkyServe.

SkyServe counts the requests of the last minute. `target_ongoing` counts those that are being answered, which suits
models: ten streams of a minute each are few requests per second, and keep a replica busy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from perdure.recovery.frozen import dataclass, replace
from perdure.recovery.market.services.spec import ReplicaPolicy

WINDOW_S = 60.0
"""The time over which arrivals are counted (`sky/serve/autoscalers.py` of SkyPilot 0.14)."""


@dataclass(frozen=True)
class Traffic:
    """The load of a service. Requests that were rejected without a replica do not count."""

    recent: int = 0  # requests that arrived in the last `WINDOW_S`
    in_flight: int = 0  # requests that are being answered or held


@dataclass(frozen=True)
class ScaleState:
    """The target, and since when the load has asked for more, or for less. Stored with the service."""

    target: int
    above_since: float | None = None
    below_since: float | None = None


def first_state(policy: ReplicaPolicy) -> ScaleState:
    """The state of a new service."""
    return ScaleState(policy.min_replicas)


def next_state(
    policy: ReplicaPolicy, accelerators: Sequence[str | None], traffic: Traffic, state: ScaleState, now: float
) -> ScaleState:
    """The state after this moment's load. `accelerators`: those of the replicas that are wanted now."""
    if not policy.scales:
        return ScaleState(policy.min_replicas)
    target = min(max(state.target, policy.min_replicas), policy.limit)
    wanted = needed(policy, accelerators, traffic)
    if wanted == target:
        return ScaleState(target)
    if wanted > target:
        since = now if state.above_since is None else state.above_since
        is_due = target == 0 or now - since >= policy.upscale_delay_s
        return ScaleState(wanted) if is_due else ScaleState(target, above_since=since)
    since = now if state.below_since is None else state.below_since
    is_due = now - since >= policy.downscale_delay_s
    return ScaleState(wanted) if is_due else replace(ScaleState(target), below_since=since)


def needed(policy: ReplicaPolicy, accelerators: Sequence[str | None], traffic: Traffic) -> int:
    """The number of replicas for this load, within the limits. Not zero while a request is under way."""
    wanted = 1 if traffic.in_flight else 0
    if policy.target_ongoing is not None:
        wanted = max(wanted, math.ceil(traffic.in_flight / policy.target_ongoing))
    if policy.target_qps is not None:
        wanted = max(wanted, _needed_for_rate(policy, accelerators, traffic.recent / WINDOW_S))
    return min(max(wanted, policy.min_replicas), policy.limit)


def _needed_for_rate(policy: ReplicaPolicy, accelerators: Sequence[str | None], qps: float) -> int:
    if not isinstance(policy.target_qps, dict):
        return math.ceil(qps / policy.target_qps) if policy.target_qps else 0
    known = sorted((policy.qps_of(accelerator) or 0.0 for accelerator in accelerators), reverse=True)
    left, count = qps, 0
    for capacity in known:
        if left <= 0:
            return count
        left, count = left - capacity, count + 1
    return count + math.ceil(max(0.0, left) / max(policy.target_qps.values()))
