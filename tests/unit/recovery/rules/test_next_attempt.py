"""`rules.next_attempt`: storage, and where the next attempt is requested."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perdure.recovery import actions, events
from perdure.recovery.job import DEFAULT_RECOVERIES_PER_HOUR, Recovery
from perdure.recovery.market.cooldown import PREEMPTION_COOLDOWN_S, unavailable_after_preemption
from perdure.recovery.market.requirements import MachineRequirement
from perdure.recovery.market.unavailable import FaultKind, UnavailableOffer
from perdure.recovery.reasons import Reason
from perdure.recovery.statuses import NodePhase, Status, TaskState
from support.worlds.job_driver import OFFERS, ZONES, JobDriver, new_job


def test_launch_refused__tries_next_offer_at_once() -> None:
    driver = new_job().tick()
    unavailable = UnavailableOffer(
        "local", driver.now + 300, FaultKind.AVOID_ZONE, driver.now, "east", "east-a", code="NoCapacity"
    )
    driver.send(events.LaunchRefused(0, 1, unavailable))
    assert driver.attempt.generation == 2
    assert driver.attempt.offer.zone == "east-b"
    assert driver.task.recovery_count == 0


def test_launch_refused__waits_when_every_offer_is_refused() -> None:
    driver = new_job().tick()
    for generation, zone in enumerate(ZONES, start=1):
        unavailable = UnavailableOffer(
            "local", driver.now + 100 * generation, FaultKind.AVOID_ZONE, driver.now, None, zone
        )
        driver.send(events.LaunchRefused(0, generation, unavailable))
    assert driver.task.state is TaskState.WAITING
    assert driver.task.status is Status.PENDING
    assert driver.wake_at is not None
    assert driver.wake_at <= driver.now + 100
    driver.tick(driver.wake_at - driver.now)
    assert driver.actions_of(actions.Launch)


@pytest.mark.parametrize("may_exist", [True, False])
def test_launch_refused__ends_the_task_if_it_is_final(may_exist: bool) -> None:
    driver = new_job().running().send(events.MachinesDescribed(0, 1, {0: Reason.MACHINE_CRASHED}))
    while not driver.actions_of(actions.Launch):
        driver.tick(60)
    lost = UnavailableOffer("local", driver.now, FaultKind.GIVE_UP, driver.now, message="its disk is lost")
    driver.send(events.LaunchRefused(0, 2, lost, may_exist, is_final=True))
    assert (driver.task.outcome, driver.task.message) == (Reason.PRECHECKS_FAILED, "its disk is lost")
    assert not driver.actions_of(actions.Launch)


def test_place__fails_job_if_no_offer_can_fit() -> None:
    driver = new_job()
    driver.job = driver.job.with_task(
        replace(driver.task, requirements=(MachineRequirement(accelerators=("H100", 8)),))
    )
    driver.tick()
    assert driver.task.status is Status.FAILED_NO_RESOURCE
    assert "H100" in driver.task.message


def test_storage__is_prepared_before_launch() -> None:
    driver = new_job()
    driver.job = driver.job.with_task(replace(driver.task, storage_ready=False))
    driver.tick()
    assert driver.actions_of(actions.PrepareStorage)
    assert not driver.actions_of(actions.Launch)
    driver.send(events.StorageReady(0))
    assert driver.actions_of(actions.Launch)


def test_storage__failure_fails_job() -> None:
    driver = new_job()
    driver.job = driver.job.with_task(replace(driver.task, storage_ready=False))
    driver.tick().send(events.StorageFailed(0, "bucket belongs to somebody else"))
    assert driver.task.status is Status.FAILED_PRECHECKS
    assert "somebody else" in driver.task.message


# --- the limit on recoveries ------------------------------------------------------------------------------------------


def hostile_job(recovery: Recovery | None = None) -> JobDriver:
    """A job that can always find an offer."""
    driver = new_job(recovery=recovery)
    driver.offers = tuple(replace(OFFERS[0], region=f"region-{i}", zone=f"zone-{i}") for i in range(200))
    return driver.running()


def send_false_notice(driver: JobDriver) -> None:
    """The node reports a notice and ends at once; its machine is terminated."""
    generation = driver.attempt.generation
    driver.send(events.PreemptionNotice(0, generation, 0, driver.now + 120))
    begun = driver.actions_of(actions.Launch)
    waiting = [a for a in driver.last_actions if isinstance(a, actions.TimelineEntry) and a.kind == "task.waiting"]
    driver.report(NodePhase.ENDED, generation=generation, interrupted=True, exit_code=143)
    driver.send(events.AttemptGone(0, generation))
    if begun:
        driver.launched().report(NodePhase.BOOTED).report(NodePhase.READY).report(NodePhase.RUNNING)
    driver.last_actions = [*begun, *waiting]


def test_recovery_limit__bounds_the_machines_of_a_job_with_false_notices() -> None:
    driver, began_at, launches = hostile_job(), 1000.0, 0
    while driver.now < began_at + 2 * 3600:
        send_false_notice(driver)
        launches += len(driver.actions_of(actions.Launch))
        while driver.task.state is TaskState.WAITING:
            assert driver.wake_at is not None
            driver.tick(driver.wake_at - driver.now)
            assert len(driver.actions_of(actions.Launch)) == 1
            launches += 1
            driver.launched().report(NodePhase.BOOTED).report(NodePhase.READY).report(NodePhase.RUNNING)
        driver.now += 1.5
    assert launches <= 10 + 2 * 10


def test_recovery_limit__delays_none_of_the_first_recoveries_and_explains_the_first_delay() -> None:
    driver = hostile_job()
    for _ in range(DEFAULT_RECOVERIES_PER_HOUR // 2):
        driver.now += 1.5
        send_false_notice(driver)
        assert driver.actions_of(actions.Launch)
        assert not driver.actions_of(actions.TimelineEntry)
    driver.now += 1.5
    send_false_notice(driver)
    assert not driver.actions_of(actions.Launch)
    (entry,) = [a for a in driver.last_actions if isinstance(a, actions.TimelineEntry)]
    assert entry.reason is Reason.BACKING_OFF
    assert "limits.recoveries_per_hour" in entry.message
    assert entry.data["until"] == driver.wake_at
    assert driver.task.status is Status.RECOVERING
    assert driver.task.reason is Reason.PREEMPTION_NOTICE


def test_recovery_limit__holds_whatever_wakes_the_task() -> None:
    driver = hostile_job()
    while driver.task.state is not TaskState.WAITING:
        send_false_notice(driver)
    allowed_at = driver.wake_at
    driver.job = driver.job.with_task(replace(driver.task, wake_at=driver.now))
    assert not driver.tick().actions_of(actions.Launch)
    assert driver.wake_at == allowed_at
    driver.send(events.CancelRequested(0.0))
    assert driver.task.outcome is Reason.USER_CANCELLED, "a cancel does not wait"


def test_recovery_limit__does_not_concern_honest_preemptions() -> None:
    driver = hostile_job()
    for _ in range(24 * 6):
        driver.now += 600.0
        send_false_notice(driver)
        assert driver.actions_of(actions.Launch), "six per hour, all day"


def test_recovery_limit__bounds_restarts_on_exit_codes() -> None:
    driver = hostile_job(Recovery(recover_on_exit_codes=frozenset({33})))
    launches = 0
    for _ in range(50):
        generation = driver.attempt.generation
        driver.report(NodePhase.ENDED, failed_stage="run", exit_code=33)
        launches += len(driver.actions_of(actions.Launch))
        driver.send(events.AttemptGone(0, generation), after_s=1.0)
        if driver.task.state is TaskState.WAITING:
            break
        driver.launched().report(NodePhase.BOOTED).report(NodePhase.READY).report(NodePhase.RUNNING)
    assert launches == DEFAULT_RECOVERIES_PER_HOUR // 2


def test_place__avoids_where_other_replicas_of_a_service_lost_machines() -> None:
    driver = new_job()
    first = min(OFFERS, key=lambda offer: offer.price_per_hour)
    lost = unavailable_after_preemption(first, driver.now, unconfirmed=True)
    driver.job = driver.job.with_task(replace(driver.task, recovery=Recovery(avoided=(lost,))))
    driver.tick()
    assert driver.attempt.offer.key != first.key


def test_place__tries_the_offer_again_once_half_an_hour_is_over() -> None:
    driver = new_job()
    first = min(OFFERS, key=lambda offer: offer.price_per_hour)
    lost = unavailable_after_preemption(first, driver.now - PREEMPTION_COOLDOWN_S, unconfirmed=True)
    driver.job = driver.job.with_task(replace(driver.task, recovery=Recovery(avoided=(lost,))))
    driver.tick()
    assert driver.attempt.offer.key == first.key
