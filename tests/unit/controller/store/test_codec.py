"""Values of decisions as columns, and back."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from random import Random

import pytest

from perdure.controller.store.codec import (
    OBSERVATION_COLUMNS,
    decode_observations,
    decode_recovery,
    decode_task,
    encode_recovery,
    encode_requirement,
    observation_columns,
    task_columns,
)
from perdure.recovery import events
from perdure.recovery.job import Recovery, TaskView
from perdure.recovery.market.history import OfferObservation
from perdure.recovery.market.offers import Market, OfferKey
from perdure.recovery.market.unavailable import FaultKind, UnavailableOffer
from perdure.recovery.reasons import Reason
from perdure.recovery.statuses import AttemptState
from support.worlds.job_driver import JobDriver, new_job

ALL_SET = Recovery(
    strategy="DEADLINE",
    max_restarts_on_errors=2,
    recover_on_exit_codes=frozenset({3, 33}),
    deadline_at=5.0,
    work_s=6.0,
    on_time=0.99,
    patience=0.1,
    move_cost=1.5,
    recovers=False,
    keep_on_failure_s=60.0,
    stuck_after_s=7.0,
    restart_when_stuck_s=8.0,
    max_duration_s=9.0,
    max_run_s=9.5,
    max_cost=10.0,
    taken_zones=("east-1a", "west-1a"),
    avoided=(UnavailableOffer("aws", 60.0, FaultKind.AVOID_ZONE, 5.0, "east-1", "east-1a", unconfirmed=True),),
)
# The fields that the first controllers know, which refuse any other.
FIRST_FIELDS = {
    "strategy",
    "max_restarts_on_errors",
    "recover_on_exit_codes",
    "deadline_at",
    "work_s",
    "patience",
    "move_cost",
}


@pytest.mark.parametrize("name", [field.name for field in fields(Recovery)])
def test_recovery__survives_a_round_trip(name: str) -> None:
    assert getattr(ALL_SET, name) != getattr(Recovery(), name), "a value that shows nothing"
    for value in (ALL_SET, replace(Recovery(), **{name: getattr(ALL_SET, name)})):
        assert decode_recovery(json.loads(json.dumps(encode_recovery(value)))) == value


def test_recovery_without_new_features__is_read_by_a_controller_that_lacks_them() -> None:
    given = replace(ALL_SET, **{name: getattr(Recovery(), name) for name in encode_recovery(ALL_SET)} | {"work_s": 6.0})
    assert set(encode_recovery(given)) <= FIRST_FIELDS


# --- a task's work ----------------------------------------------------------------------------------------------------


def reloaded(task: TaskView) -> TaskView:
    """The task as the next controller reads it."""
    row = {
        "index": task.index,
        "num_nodes": task.num_nodes,
        "requirements": [encode_requirement(one) for one in task.requirements],
        "recovery": encode_recovery(task.recovery),
        **task_columns(task),
    }
    return decode_task(json.loads(json.dumps(row)), task.attempts)


def work_of(driver: JobDriver) -> list[float | None]:
    task = driver.task
    return [task.durable_s, task.progress_s(driver.now), task.estimated_s, task.work_s, task.cautious_work_s]


def run_again(driver: JobDriver) -> None:
    """The machine is lost, and the next one runs."""
    driver.send(events.MachinesDescribed(0, driver.attempt.generation, {0: Reason.PREEMPTED}))
    driver.send(events.AttemptGone(0, driver.attempt.generation))
    for _ in range(100):
        if driver.task.attempts and driver.attempt.state is AttemptState.REQUESTED:
            break
        driver.tick(600)
    driver.running()
    assert driver.attempt.state is AttemptState.RUNNING


def after_random_event(driver: JobDriver, chance: Random, step: int) -> int:
    """The step that the program is at afterwards."""
    generation = driver.attempt.generation
    match chance.choice(("save", "save", "save", "load", "load", "lose")):
        case "save":
            step += chance.randint(0, 50)
            seconds = chance.choice((0, 60, 900, 3600))
            driver.now += seconds
            driver.send(events.CheckpointDurable(0, generation, driver.now - chance.choice((0, 30)), step, 1000))
        case "load":
            step = max(0, step - chance.choice((0, 1, 40, 1000)))
            driver.send(events.CheckpointLoaded(0, generation, step))
        case _:
            run_again(driver)
    return step


def test_work__is_the_same_to_the_next_controller() -> None:
    """Work that a loaded older step has undone does not come back: a deadline would count on it."""
    undone = 0
    for seed in range(20):
        chance, step = Random(seed), 100
        driver = new_job(recovery=Recovery(work_s=1e6 if seed % 2 else None)).running()
        for _ in range(40):
            step = after_random_event(driver, chance, step)
            undone += driver.task.undone_s > 0
            successor = JobDriver(driver.job.with_task(reloaded(driver.task)), driver.now)
            assert work_of(successor) == work_of(driver), seed
            saved = events.CheckpointDurable(0, driver.attempt.generation, driver.now + 600, step + 10, 1000)
            predecessor = JobDriver(driver.job, driver.now)
            assert work_of(successor.send(saved, 600)) == work_of(predecessor.send(saved, 600)), seed
    assert undone > 50, "histories that show nothing"


def test_observations__are_read_as_they_were_written_and_share_their_keys() -> None:
    spot, on_demand = (OfferKey("aws", "east", "e1", "v", market) for market in (Market.SPOT, Market.ON_DEMAND))
    written = [
        OfferObservation(spot, 1.0, available=True, started_s=60.0),
        OfferObservation(on_demand, 2.0, available=True),
        OfferObservation(spot, 3.0, available=False, held_since=1.0),
    ]
    rows = [tuple(observation_columns(one)[name] for name in OBSERVATION_COLUMNS) for one in written]
    read = decode_observations(rows)
    assert read == written
    assert all(isinstance(one.key.market, Market) for one in read)
    assert read[0].key is read[2].key
