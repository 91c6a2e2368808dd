"""`rules.placement`: storage, and where the next attempt is requested."""

from __future__ import annotations

from dataclasses import replace

from perdure.recovery import actions, events
from perdure.recovery.market.requirements import MachineRequirement
from perdure.recovery.market.unavailable import FaultKind, UnavailableOffer
from perdure.recovery.statuses import Status, TaskState
from support.worlds.job_driver import ZONES, new_job


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
