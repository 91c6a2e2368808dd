"""Which replicas are launched, retired and served; updates and mixes of markets step by step."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.recovery.frozen import replace
from perdure.recovery.market.services.plan import ServicePlan, ServiceView, UpdateMode, decide, mix
from perdure.recovery.market.services.replicas import Probe, Replica, ReplicaStatus
from perdure.recovery.market.services.scale import ScaleState, Traffic
from perdure.recovery.market.services.spec import ReplicaPolicy, ServiceSpec
from perdure.recovery.reasons import Reason
from perdure.recovery.statuses import AttemptState, Status

NOW, QUIET = 1000.0, Traffic()


def replica(number: int, *, version: int = 1, ready: bool = True, spot: bool = False, **fields: Any) -> Replica:
    started = {"job_status": Status.RUNNING, "attempt_state": AttemptState.RUNNING, "running_at": NOW - 1}
    own = {"probe": Probe(True), "was_ready": True} if ready else {}
    return Replica(
        **{"number": number, "version": version, "is_spot": spot, "created_at": 0.0, **started, **own, **fields}
    )


def service(count: int, *replicas: Replica, version: int = 1, **fields: Any) -> ServiceView:
    spec = ServiceSpec(ReplicaPolicy(min_replicas=count))
    return ServiceView(
        **{
            "spec": spec,
            "version": version,
            "scale": ScaleState(count),
            "replicas": replicas,
            "was_ready": True,
            **fields,
        }
    )


def retired(plan: ServicePlan) -> list[int]:
    return [one.number for one in plan.retirements]


def test_decide__launches_what_is_missing() -> None:
    plan = decide(service(3, replica(1), replica(2, ready=False)), QUIET, NOW)
    assert plan.launches == (False,)
    assert (retired(plan), plan.serving) == ([], {1})


def test_decide__replaces_a_replica_that_has_a_notice() -> None:
    leaving = replica(1, outcome=Reason.NOT_RECOVERED, attempt_state=AttemptState.DRAINING)
    plan = decide(service(2, leaving, replica(2)), QUIET, NOW)
    assert (plan.launches, plan.serving) == ((False,), {2})


def test_decide__retires_the_ones_that_matter_least() -> None:
    view = service(1, replica(1, in_flight=5), replica(2, in_flight=1), replica(3, ready=False))
    plan = decide(view, QUIET, NOW)
    assert (sorted(retired(plan)), plan.serving) == ([2, 3], {1})


def test_decide__gives_up_a_replica_that_is_not_ready_in_time() -> None:
    view = service(1, replica(1, ready=False, running_at=0.0), was_ready=True)
    plan = decide(replace(view, spec=replace(view.spec, initial_delay_s=5.0)), QUIET, NOW)
    assert [one.status for one in plan.retirements] == [ReplicaStatus.FAILED_INITIAL_DELAY]
    assert (plan.launches, plan.wake_at) == ((), NOW + 5.0)


def test_decide__launches_no_more_of_a_version_that_cannot_start() -> None:
    view = service(2, was_ready=False, failures=1, failed_at=NOW - 10**6)
    assert view.has_failed
    assert decide(view, QUIET, NOW).launches == ()


def test_decide__counts_a_failure_that_is_not_recorded_yet() -> None:
    failed = replica(1, ready=False, outcome=Reason.NO_OFFER_FITS)
    assert decide(service(2, failed, was_ready=False), QUIET, NOW).launches == ()
    assert decide(service(2, failed), QUIET, NOW).launches == ()
    assert len(decide(service(2, replace(failed, outcome=Reason.NOT_RECOVERED)), QUIET, NOW).launches) == 2


def test_decide__waits_longer_after_each_failure_in_a_row() -> None:
    view = service(1, failures=3, failed_at=NOW)
    plan = decide(view, QUIET, NOW + 19.9)
    assert (plan.launches, plan.wake_at) == ((), NOW + 20.0)
    assert decide(view, QUIET, NOW + 20.0).launches == (False,)


def test_decide__scales_up_and_down() -> None:
    policy = ReplicaPolicy(min_replicas=0, max_replicas=4, target_ongoing=1.0, upscale_delay_s=0, downscale_delay_s=0)
    view = ServiceView(ServiceSpec(policy), 1, ScaleState(0), was_ready=True)
    plan = decide(view, Traffic(in_flight=3), NOW)
    assert (plan.scale.target, plan.launches) == (3, (False, False, False))
    busy = replace(view, scale=plan.scale, replicas=(replica(1), replica(2), replica(3)))
    plan = decide(busy, QUIET, NOW)
    assert (plan.scale.target, sorted(retired(plan)), plan.serving) == (0, [1, 2, 3], frozenset())


# --- updates --------------------------------------------------------------------------------------------------------


def steps(view: ServiceView, *, mode: UpdateMode = UpdateMode.ROLLING) -> tuple[list[int], list[frozenset[int]]]:
    """Carry out an update: what is launched is ready at the next step, and what is retired is gone.

    Returns how many replicas there were at each step, and which of them got requests.
    """
    counts, served = [], []
    view = replace(view, mode=mode)
    for _ in range(20):
        plan = decide(view, QUIET, NOW)
        if not plan.launches and not plan.retirements:
            return counts, served
        left = [one for one in view.replicas if one.number not in retired(plan)]
        first = max(one.number for one in view.replicas) + 1
        new = [replica(first + n, version=view.version, ready=False) for n in range(len(plan.launches))]
        counts.append(len(left) + len(new))
        served.append(plan.serving)
        view = replace(view, replicas=(*left, *(replica(one.number, version=view.version) for one in new)))
    raise AssertionError(f"the update does not end: {view.replicas}")


def test_decide__rolls_an_update_with_one_replica_more() -> None:
    counts, served = steps(service(2, replica(1), replica(2), version=2))
    assert max(counts) == 3
    assert min(len(one) for one in served) == 2


def test_decide__rolls_an_update_of_a_single_replica_without_a_gap() -> None:
    _, served = steps(service(1, replica(1), version=2))
    assert all(served)


def test_decide__never_exceeds_the_maximum_in_a_rolling_update() -> None:
    policy = ReplicaPolicy(min_replicas=1, max_replicas=3, target_ongoing=1.0)
    spec = ServiceSpec(replace(policy, downscale_delay_s=10**9))
    view = ServiceView(spec, 2, ScaleState(3), (replica(1), replica(2), replica(3)), was_ready=True)
    counts, served = steps(view)
    assert max(counts) == 3
    assert min(len(one) for one in served) >= 2


def test_decide__counts_at_the_maximum_what_answers_its_last_requests() -> None:
    """Its machine is still there."""
    policy = ReplicaPolicy(min_replicas=1, max_replicas=3, target_ongoing=1.0)
    fields: dict[str, Any] = {"version": 2, "spec": ServiceSpec(policy), "scale": ScaleState(3)}
    busy, leaving = Traffic(in_flight=3), replica(1, retired_as=ReplicaStatus.TERMINATED)
    for others in ([replica(2), replica(3)], [replica(4, version=2), replica(5, version=2)]):
        waiting, gone = service(3, leaving, *others, **fields), service(3, *others, **fields)
        assert decide(waiting, busy, NOW).launches == ()
        assert decide(gone, busy, NOW).launches == (False,)
    lost = replica(1, outcome=Reason.NOT_RECOVERED, attempt_state=AttemptState.DRAINING)
    plan = decide(service(3, lost, replica(2), **fields), busy, NOW)
    assert plan.launches == (False, False), "one with a notice does not count"


def test_decide__switches_a_blue_green_update_at_once() -> None:
    counts, served = steps(service(2, replica(1), replica(2), version=2), mode=UpdateMode.BLUE_GREEN)
    assert max(counts) == 4
    assert served == [{1, 2}, {3, 4}]


def test_decide__keeps_the_old_version_if_the_new_one_fails() -> None:
    view = service(2, replica(1), replica(2), version=2, was_ready=False, failures=1, failed_at=NOW)
    plan = decide(view, QUIET, NOW + 10**6)
    assert (plan.launches, retired(plan), plan.serving) == ((), [], {1, 2})


# --- spot and on-demand -----------------------------------------------------------------------------------------------

SPOT = ReplicaPolicy(min_replicas=3)


@pytest.mark.parametrize(
    ("policy", "ready_spot", "spot", "on_demand"),
    [
        pytest.param(SPOT, 0, 3, 0, id="spot alone"),
        pytest.param(replace(SPOT, num_overprovision=1), 0, 4, 0, id="one more than needed"),
        pytest.param(replace(SPOT, base_ondemand=1), 0, 2, 1, id="one is on-demand"),
        pytest.param(replace(SPOT, ondemand_fallback=True), 0, 3, 3, id="on-demand stands in for all"),
        pytest.param(replace(SPOT, ondemand_fallback=True), 2, 3, 1, id="on-demand stands in for the missing one"),
        pytest.param(replace(SPOT, ondemand_fallback=True), 3, 3, 0, id="spot has come back"),
        pytest.param(replace(SPOT, ondemand_fallback=True, num_overprovision=2), 0, 5, 3, id="never more than needed"),
        pytest.param(replace(SPOT, base_ondemand=5), 0, 0, 3, id="more on-demand than there are replicas"),
    ],
)
def test_mix__has_the_formulas_of_skyserve(policy: ReplicaPolicy, ready_spot: int, spot: int, on_demand: int) -> None:
    assert mix(ServiceSpec(policy, uses_spot=True), 3, ready_spot) == {True: spot, False: on_demand}


def test_mix__has_no_spot_replicas_unless_asked_for() -> None:
    assert mix(ServiceSpec(SPOT), 3, 0) == {True: 0, False: 3}


def test_decide__ends_the_stand_ins_when_spot_replicas_are_ready() -> None:
    spec = ServiceSpec(replace(SPOT, min_replicas=1, ondemand_fallback=True), uses_spot=True)
    view = ServiceView(spec, 1, ScaleState(1), (replica(1, spot=True, ready=False), replica(2)), was_ready=True)
    assert retired(decide(view, QUIET, NOW)) == []
    recovered = replace(view, replicas=(replica(1, spot=True), replica(2)))
    assert retired(decide(recovered, QUIET, NOW)) == [2]


def test_decide__retires_a_replica_once() -> None:
    """One that a ready replica of the new version replaces makes room for the next one as well."""
    plan = decide(service(2, replica(1), replica(2), replica(3, version=2), version=2), QUIET, NOW)
    assert len(retired(plan)) == len(set(retired(plan))) == 1
