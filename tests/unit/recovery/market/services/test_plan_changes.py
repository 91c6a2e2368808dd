"""Replicas that get another version on their machines, and those that are not heard for a moment."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.recovery.frozen import replace
from perdure.recovery.market.services.plan import ServicePlan, ServiceView, UpdateMode, decide
from perdure.recovery.market.services.replicas import Probe, Replica, ReplicaStatus
from perdure.recovery.market.services.scale import ScaleState, Traffic
from perdure.recovery.market.services.spec import ReplicaPolicy, ServiceSpec
from perdure.recovery.statuses import AttemptState
from unit.recovery.market.services.test_plan import NOW, QUIET, replica, retired


def update(*replicas: Replica, policy: ReplicaPolicy | None = None, spot: bool = False, **fields: Any) -> ServiceView:
    """An update to version 2 that changes the program alone."""
    policy = policy or ReplicaPolicy(min_replicas=len(replicas))
    view = ServiceView(ServiceSpec(policy, uses_spot=spot), 2, ScaleState(policy.min_replicas), replicas)
    return replace(view, reusable=frozenset({1}), can_return=True, **fields)


def changed(number: int, *, ready: bool = False, version: int = 2, **fields: Any) -> Replica:
    """A replica whose program begins on the machine of another version."""
    started = {} if ready else {"running_at": None, "probe": None}
    return replica(number, version=version, ready=ready, was_changed=True, **{**started, **fields})


def carried_out(view: ServiceView, plan: ServicePlan) -> ServiceView:
    """One second later: what was to change has changed, and what had changed is ready."""
    after = []
    for one in view.replicas:
        if one.number in retired(plan):
            continue
        if one.changes_to is not None:
            after.append(changed(one.number, version=one.changes_to, is_spot=one.is_spot))
        elif one.number in plan.changes:
            after.append(replace(one, changes_to=view.version))
        elif one.was_changed:
            after.append(changed(one.number, ready=True, version=one.version, is_spot=one.is_spot))
        else:
            after.append(replace(one, probe=Probe(True), was_ready=True))
    first = max(one.number for one in view.replicas) + 1
    new = [replica(first + i, version=2, ready=False, spot=spot) for i, spot in enumerate(plan.launches)]
    was_ready = view.was_ready or any(one.is_ready and one.version == view.version for one in after)
    return replace(view, replicas=(*after, *new), was_ready=was_ready)


def steps(view: ServiceView) -> tuple[ServiceView, list[ServicePlan]]:
    plans = []
    for _ in range(60):
        plan = decide(view, QUIET, NOW)
        after = carried_out(view, plan)
        if after == view:
            return view, plans
        plans.append(plan)
        view = after
    raise AssertionError(f"the update does not end: {view.replicas}")


@pytest.mark.parametrize("spot", [False, True])
@pytest.mark.parametrize("count", [2, 3, 7])
@pytest.mark.parametrize("extra", [{}, {"num_overprovision": 1}, {"ondemand_fallback": True}, {"base_ondemand": 1}])
def test_update__changes_one_replica_after_another(count: int, extra: dict[str, Any], spot: bool) -> None:
    policy = ReplicaPolicy(min_replicas=count, **(extra if spot else {}))
    num_spot = (count + policy.num_overprovision - policy.base_ondemand) if spot else 0
    kinds = [True] * num_spot + [False] * (count if not spot else policy.base_ondemand)
    view = update(*(replica(i + 1, spot=kind) for i, kind in enumerate(kinds)), policy=policy, spot=spot)
    after, plans = steps(view)
    assert [(one.number, one.version, one.is_spot) for one in after.replicas] == [
        (i + 1, 2, kind) for i, kind in enumerate(kinds)
    ]
    assert not any(plan.launches or plan.retirements for plan in plans)
    assert min(len(plan.serving) for plan in plans) == len(kinds) - 1
    assert max(len(plan.changes) for plan in plans) == 1


def test_update__of_a_single_replica_launches_another_one() -> None:
    """Nothing would answer while its program starts."""
    after, plans = steps(update(replica(1)))
    assert all(plan.serving for plan in plans)
    assert [(one.number, one.version) for one in after.replicas] == [(2, 2)]


def test_update__changes_a_single_replica_that_was_never_ready() -> None:
    plan = decide(update(replica(1, ready=False)), QUIET, NOW)
    assert (plan.changes, plan.launches, retired(plan)) == ((1,), (), [])


def test_update__waits_for_a_second_replica_that_answers() -> None:
    silent = replica(2, ready=False, was_ready=True, attempt_state=AttemptState.RUNNING)
    plan = decide(update(replica(1), silent), QUIET, NOW)
    assert (plan.changes, plan.serving) == ((), {1}), "for all that is known, the silent one answers too"
    plan = decide(update(replica(1), replica(2), changed(3)), QUIET, NOW)
    assert plan.changes == ()


def test_update__goes_on_with_the_one_that_answers_its_last_requests() -> None:
    view = update(replica(1), replica(2, changes_to=2, in_flight=4))
    plan = decide(view, QUIET, NOW)
    assert (plan.changes, plan.serving) == ((2,), {1})


@pytest.mark.parametrize(
    "view",
    [
        pytest.param(update(replica(1), replica(2), mode=UpdateMode.BLUE_GREEN), id="blue-green"),
        pytest.param(replace(update(replica(1), replica(2)), reusable=frozenset()), id="other machines"),
        pytest.param(
            update(*(replica(i, probe=Probe(True, revision=None)) for i in (1, 2))), id="agents of an older version"
        ),
    ],
)
def test_update__launches_machines_where_it_cannot_reuse_any(view: ServiceView) -> None:
    plan = decide(view, QUIET, NOW)
    assert plan.changes == ()
    assert plan.launches


def test_update__that_cannot_start_keeps_the_machine() -> None:
    broken = changed(1, probe=Probe(False, message="run exited with code 3", has_ended=True))
    view = update(broken, replica(2))
    plan = decide(view, QUIET, NOW)
    assert [(one.number, one.status, one.message) for one in plan.failures] == [
        (1, ReplicaStatus.FAILED, "run exited with code 3")
    ]
    assert (plan.changes, plan.launches, retired(plan), plan.serving) == ((), (), [], {2})
    back = replace(view, version=1, reusable=frozenset({2}), can_return=False, was_ready=True)
    after, plans = steps(back)
    assert [(one.number, one.version) for one in after.replicas] == [(1, 1), (2, 1)]
    assert not any(plan.failures or plan.launches or plan.retirements for plan in plans)


def test_update__that_is_not_ready_in_time_keeps_the_machine() -> None:
    slow = changed(1, probe=Probe(False, message="503"), running_at=NOW - 6)
    view = update(slow, replica(2))
    assert decide(view, QUIET, NOW).failures == ()
    (failed,) = decide(replace(view, spec=replace(view.spec, initial_delay_s=5.0)), QUIET, NOW).failures
    assert failed.status is ReplicaStatus.FAILED_INITIAL_DELAY


def test_update__that_has_started_elsewhere_replaces_the_machine() -> None:
    broken = changed(1, probe=Probe(False, message="out of memory", has_ended=True))
    plan = decide(update(broken, changed(2, ready=True), was_ready=True), QUIET, NOW)
    assert (retired(plan), plan.failures) == ([1], ())


# --- what stands in for spot replicas ---------------------------------------------------------------------------------

FALLBACK = ReplicaPolicy(min_replicas=2, ondemand_fallback=True)


@pytest.mark.parametrize(
    ("one", "stand_ins"),
    [
        pytest.param(
            {"probe": None, "is_briefly_silent": True}, 0, id="not heard yet by a controller that has just started"
        ),
        pytest.param({"probe": None}, 1, id="not heard for long"),
        pytest.param({"probe": Probe(False, NOW - 1)}, 1, id="not ready"),
        pytest.param({"probe": None, "is_briefly_silent": True, "attempt_state": AttemptState.GONE}, 1, id="lost"),
        pytest.param({"probe": None, "is_briefly_silent": True, "was_ready": False}, 1, id="never ready"),
        pytest.param({"was_changed": True, "was_ready": False, "probe": None}, 0, id="its version changes"),
    ],
)
def test_fallback__stands_in_for_replicas_that_are_away(one: dict[str, Any], stand_ins: int) -> None:
    view = ServiceView(ServiceSpec(FALLBACK, uses_spot=True), 1, ScaleState(2), was_ready=True)
    view = replace(view, replicas=(replica(1, spot=True), replica(2, spot=True, **one)))
    plan = decide(view, Traffic(), NOW)
    assert sum(not is_spot for is_spot in plan.launches) == stand_ins
