"""Decides which replicas of a service are launched, which are retired, and which get requests.

The numbers of spot and on-demand replicas are SkyServe's (`sky/serve/autoscalers.py` of SkyPilot 0.14):

    spot      = target + num_overprovision - base_ondemand_fallback_replicas
    on-demand = base + (spot - ready spot, with dynamic_ondemand_fallback), at most target
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import StrEnum

from perdure.recovery.frozen import dataclass, replace
from perdure.recovery.market.services.replicas import Replica, ReplicaStatus, decision_at, failure_of
from perdure.recovery.market.services.scale import ScaleState, Traffic, next_state
from perdure.recovery.market.services.spec import ReplicaPolicy, ServiceSpec
from perdure.recovery.statuses import AttemptState

BACKOFF_S, MAX_BACKOFF_S = 5.0, 300.0


class UpdateMode(StrEnum):
    """How a new version replaces the old one."""

    ROLLING = "rolling"
    BLUE_GREEN = "blue_green"


@dataclass(frozen=True)
class ServiceView:
    """A service that is wanted. `replicas`: those that are not over, of all versions."""

    spec: ServiceSpec
    version: int
    scale: ScaleState
    replicas: tuple[Replica, ...] = ()
    mode: UpdateMode = UpdateMode.ROLLING
    was_ready: bool = False  # a replica of this version was ready once
    failures: int = 0  # replicas of this version that have failed since one of them was last ready
    failed_at: float | None = None  # when the last of them failed
    #: The versions whose replicas can become replicas of `version` on their machines: only their programs differ.
    reusable: frozenset[int] = frozenset()
    can_return: bool = False  # an earlier version was ready, to which replicas return on their machines

    @property
    def has_failed(self) -> bool:
        """The version cannot start: no more replicas are launched until it is updated."""
        return not self.was_ready and self.failures > 0


@dataclass(frozen=True)
class Retirement:
    """A replica to be ended, how that ends, and why: for users."""

    number: int
    status: ReplicaStatus = ReplicaStatus.TERMINATED
    message: str = ""


@dataclass(frozen=True)
class ServicePlan:
    """What to do now. `launches`: one entry per new replica, whether it is a spot replica.

    `changes`: the replicas that get the version on their machines, once they have answered their requests. `failures`:
    those that could not start the version on the machine of an earlier one. They keep it, and the version has failed.
    """

    scale: ScaleState
    launches: tuple[bool, ...] = ()
    retirements: tuple[Retirement, ...] = ()
    changes: tuple[int, ...] = ()
    failures: tuple[Retirement, ...] = ()
    serving: frozenset[int] = frozenset()  # the replicas that get requests
    wake_at: float | None = None  # when to decide again at the latest; None: at the next change


def decide(view: ServiceView, traffic: Traffic, now: float) -> ServicePlan:
    """The plan for this moment. Carrying it out twice does no harm: it counts what exists."""
    given_up = _failed(view, now)
    failures = [one for one in given_up if _can_return(view, one.number)]
    failed = [one for one in given_up if one not in failures]
    gone = {retirement.number for retirement in failed}
    wanted = [one for one in view.replicas if not one.is_ending and one.number not in gone]
    new = [one for one in wanted if one.version == view.version]
    old = [one for one in wanted if one.version != view.version]
    scale = next_state(view.spec.policy, [one.accelerator for one in new], traffic, view.scale, now)
    view = _with_new_failures(view, {*gone, *(one.number for one in failures)}, now)
    targets = mix(view.spec, scale.target, sum(one.is_spot and one.is_held for one in wanted))
    reused = _reused(view, new, old, targets)
    replaced = _replaced(view, new, [one for one in old if one not in reused], scale.target - len(reused))
    retired = [*failed, *_surplus(new, targets), *replaced]
    launches: tuple[bool, ...] = ()
    if not view.has_failed and (failed_recently_until(view) or 0.0) <= now:
        launches = _launches(view, new, old, reused, targets)
        if not launches and not replaced:  # those make room as well
            retired += _room(view, new, old, reused, targets)
    leaving = {retirement.number for retirement in retired}
    changes = _changes([one for one in wanted if one.number not in leaving], new, reused, is_held_back=view.has_failed)
    serving = _serving(view, [one for one in wanted if one.number not in {*leaving, *changes}])
    return ServicePlan(scale, launches, tuple(retired), changes, tuple(failures), serving, _wake_at(view, scale, now))


def mix(spec: ServiceSpec, target: int, ready_spot: int) -> dict[bool, int]:
    """How many spot (True) and on-demand (False) replicas there shall be."""
    policy = spec.policy
    if not spec.uses_spot:
        return {True: 0, False: target}
    if not target:
        return {True: 0, False: 0}
    base = min(policy.base_ondemand, target)
    spot = max(0, target + policy.num_overprovision - base)
    fallback = max(0, spot - ready_spot) if policy.ondemand_fallback else 0
    return {True: spot, False: min(base + fallback, target)}


def failed_recently_until(view: ServiceView) -> float | None:
    """When replicas may be launched again after failures in a row; None: at any time."""
    if view.failed_at is None or not view.failures:
        return None
    return view.failed_at + min(MAX_BACKOFF_S, BACKOFF_S * 2.0 ** min(view.failures - 1, 10))


def _with_new_failures(view: ServiceView, given_up: Collection[int], now: float) -> ServiceView:
    """The service with the failures of this version that are not recorded yet."""
    of_version = [one for one in view.replicas if one.version == view.version and one.retired_as is None]
    new = [one for one in of_version if one.number in given_up or one.has_failed]
    return replace(view, failures=view.failures + len(new), failed_at=now) if new else view


def _failed(view: ServiceView, now: float) -> list[Retirement]:
    """The replicas to be given up; not those that get another version in place of the one that has failed there."""
    failures = [(one, failure_of(one, view.spec, now)) for one in view.replicas]
    return [
        Retirement(one.number, *failure)
        for one, failure in failures
        if failure is not None and not (one.version != view.version and _may_reuse(view, one))
    ]


def _can_return(view: ServiceView, number: int) -> bool:
    """Whether a replica that has failed keeps its machine, since the version before can have it back."""
    one = next(one for one in view.replicas if one.number == number)
    is_first_try = one.was_changed and not one.was_ready and one.version == view.version
    return is_first_try and view.can_return and not view.was_ready


def _may_reuse(view: ServiceView, one: Replica) -> bool:
    """Whether a replica of another version can get this one on its machine. One without a program yet has no time to
    lose: its machine boots into the version that it was launched with."""
    has_program = one.attempt_state is AttemptState.RUNNING
    has_old_agent = one.probe is not None and one.probe.revision is None
    return view.mode is UpdateMode.ROLLING and one.version in view.reusable and has_program and not has_old_agent


def _reused(
    view: ServiceView, new: Sequence[Replica], old: Sequence[Replica], targets: dict[bool, int]
) -> list[Replica]:
    """The replicas of other versions that get this one on their machines, as many as are needed.

    A single replica is replaced instead: nothing would answer while its program starts.
    """
    reused: list[Replica] = []
    for is_spot, target in targets.items():
        needed = max(0, target - sum(one.is_spot is is_spot for one in new))
        able = [one for one in old if one.is_spot is is_spot and _may_reuse(view, one)]
        # One that waits for its last answers goes on with that; those that matter most keep their machines.
        order = sorted(able, key=lambda one: (one.changes_to is None, *(not key for key in _retire_key(one)[:2])))
        reused += order[:needed]
    if sum(targets.values()) == 1:
        return [one for one in reused if not one.was_ready]
    return reused


def _changes(
    wanted: Sequence[Replica], new: Sequence[Replica], reused: Sequence[Replica], *, is_held_back: bool
) -> tuple[int, ...]:
    """The replicas that shall get the version now: one after another, and each only while another one answers."""
    if is_held_back:
        return ()
    begun = [one for one in reused if one.changes_to is not None]
    # Nobody misses those that answer nothing. One whose node is silent may answer, for all that is known.
    idle = [one for one in reused if one.changes_to is None and not one.would_be_ready and not one.is_silent]
    if begun or idle:
        return tuple(one.number for one in (*begun, *idle))
    if any(one.was_changed and not one.is_ready for one in new):
        return ()
    able = sorted((one for one in reused if one.is_ready), key=_retire_key)
    others = [one for one in wanted if one.is_ready]
    return (able[0].number,) if able and len(others) > 1 else ()


def _surplus(new: Sequence[Replica], targets: dict[bool, int]) -> list[Retirement]:
    """Replicas beyond the targets: first those that are not ready, then those with the fewest requests."""
    retired = []
    for is_spot, target in targets.items():
        of_kind = sorted((one for one in new if one.is_spot is is_spot), key=_retire_key)
        retired += [Retirement(one.number, message="scaled down") for one in of_kind[: max(0, len(of_kind) - target)]]
    return retired


def _retire_key(replica: Replica) -> tuple[bool, bool, int, int]:
    return replica.is_ready, replica.was_ready, replica.in_flight, -replica.number


def _replaced(view: ServiceView, new: Sequence[Replica], old: Sequence[Replica], target: int) -> list[Retirement]:
    """Replicas of earlier versions whose place a ready one of the new version has taken."""
    ready = sum(one.is_ready for one in new)
    if view.mode is UpdateMode.BLUE_GREEN:
        keep = len(old) if ready < _switch_at(view, target) else 0
    else:
        keep = max(0, target - ready)
    order = sorted(old, key=_retire_key)
    return [Retirement(one.number, message="replaced by a newer version") for one in order[: max(0, len(old) - keep)]]


def _switch_at(view: ServiceView, target: int) -> int:
    """How many replicas of a new version must be ready before it gets all requests."""
    return max(min(view.spec.policy.min_replicas, target), min(1, target))


def _launches(
    view: ServiceView,
    new: Sequence[Replica],
    old: Sequence[Replica],
    reused: Sequence[Replica],
    targets: dict[bool, int],
) -> tuple[bool, ...]:
    there = [*new, *reused]
    missing = [
        is_spot
        for is_spot, target in targets.items()
        for _ in range(target - sum(one.is_spot is is_spot for one in there))
    ]
    total = sum(targets.values())
    # At the limit, those that answer their last requests count: their machines are still there.
    leaving = _num_leaving(view) if _is_at_limit(view.spec.policy, total) else 0
    if view.mode is UpdateMode.BLUE_GREEN or not (old or leaving):
        return tuple(missing)
    return tuple(missing[: max(0, _limit(view.spec.policy, total) - len(new) - len(old) - leaving)])


def _num_leaving(view: ServiceView) -> int:
    """How many replicas of other versions were retired, and are not over."""
    return sum(one.retired_as is not None and one.version != view.version for one in view.replicas)


def _limit(policy: ReplicaPolicy, total: int) -> int:
    """How many replicas there may be during a rolling update: one more than needed, but not above `max_replicas`."""
    return total if _is_at_limit(policy, total) else total + 1


def _is_at_limit(policy: ReplicaPolicy, total: int) -> bool:
    """Whether there are as many replicas as there may be.

    A service that needs a single replica gets a second one nevertheless: without it, it would answer nothing meanwhile.
    """
    return policy.max_replicas is not None and policy.scales and 1 < policy.max_replicas <= total


def _room(
    view: ServiceView,
    new: Sequence[Replica],
    old: Sequence[Replica],
    reused: Sequence[Replica],
    targets: dict[bool, int],
) -> list[Retirement]:
    """A replica of an earlier version that must go first, where there may be no more replicas than now."""
    total = sum(targets.values())
    leaving = [one for one in old if one not in reused]
    is_complete = len(new) + len(reused) >= total or any(not one.is_ready for one in new)
    if not leaving or is_complete or view.mode is UpdateMode.BLUE_GREEN or len(new) + len(old) < total:
        return []
    return [Retirement(min(leaving, key=_retire_key).number, message="replaced by a newer version")]


def _serving(view: ServiceView, wanted: Sequence[Replica]) -> frozenset[int]:
    ready = [one for one in wanted if one.is_ready]
    if view.mode is UpdateMode.BLUE_GREEN and (old := [one for one in ready if one.version != view.version]):
        ready = old  # all of them are retired at the switch
    return frozenset(one.number for one in ready)


def _wake_at(view: ServiceView, scale: ScaleState, now: float) -> float | None:
    policy = view.spec.policy
    times = [
        failed_recently_until(view),
        scale.above_since + policy.upscale_delay_s if scale.above_since is not None else None,
        scale.below_since + policy.downscale_delay_s if scale.below_since is not None else None,
        *(decision_at(one, view.spec) for one in view.replicas),
    ]
    return min((at for at in times if at is not None and at > now), default=None)
