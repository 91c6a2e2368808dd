"""`rules.machine_loss.evidence`: what a loss says of its offer, and for whom it counts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.recovery import actions, events
from perdure.recovery.market.history import OfferObservation
from perdure.recovery.market.unavailable import UnavailableOffer
from perdure.recovery.reasons import Reason
from perdure.recovery.statuses import NodePhase
from support.worlds.job_driver import TIMEOUTS, JobDriver, new_job


def notice(*, confirmed: bool = False) -> events.PreemptionNotice:
    return events.PreemptionNotice(0, 1, 0, 1120.0, confirmed)


def avoided(driver: JobDriver) -> list[UnavailableOffer]:
    return [a.unavailable for a in driver.last_actions if isinstance(a, actions.AvoidOffer)]


def lost(driver: JobDriver, *, unconfirmed: bool) -> list[OfferObservation]:
    recorded = [a for a in driver.last_actions if isinstance(a, actions.RecordObservation)]
    return [a.observation for a in recorded if a.unconfirmed is unconfirmed and not a.observation.available]


GONE = events.MachinesDescribed
ENDED = events.NodeReported(0, 1, 0, NodePhase.ENDED, exit_code=143, interrupted=True)


@pytest.mark.parametrize(
    ("loss", "counts_for_all", "is_preemption"),
    [
        (notice(), False, True),
        (notice(confirmed=True), True, True),
        (ENDED, False, True),
        (GONE(0, 1, {0: Reason.PREEMPTED}), True, True),
        (GONE(0, 1, {0: Reason.MACHINE_CRASHED}), True, False),
    ],
)
def test_loss__counts_for_all_jobs_if_the_cloud_reports_it(
    loss: events.Event, counts_for_all: bool, is_preemption: bool
) -> None:
    driver = new_job().running().send(loss)
    (refusal,) = avoided(driver)
    assert (refusal.from_preemption, refusal.unconfirmed) == (True, not counts_for_all)
    assert len(lost(driver, unconfirmed=not counts_for_all)) == int(is_preemption)
    assert not lost(driver, unconfirmed=counts_for_all)
    assert driver.task.attempts[0].loss_confirmed is counts_for_all


def test_loss__of_a_silent_node_counts_for_its_own_job() -> None:
    driver = new_job().running().send(events.NodeDisconnected(0, 1, 0)).tick(TIMEOUTS.node_timeout_s)
    assert [u.unconfirmed for u in avoided(driver)] == [True]


def test_loss__of_a_machine_whose_agent_never_connects_counts_for_its_own_job() -> None:
    driver = new_job().tick().launched().tick(TIMEOUTS.boot_timeout_s)
    assert [u.unconfirmed for u in avoided(driver)] == [True]


def test_loss__of_a_machine_that_its_user_stopped_says_nothing_of_the_offer() -> None:
    driver = new_job().running().send(GONE(0, 1, {0: Reason.MACHINE_STOPPED}))
    assert not avoided(driver)


@pytest.mark.parametrize(
    "confirmation", [notice(confirmed=True), GONE(0, 1, {0: Reason.PREEMPTED}), GONE(0, 1, {0: Reason.MACHINE_CRASHED})]
)
def test_confirmation__makes_an_earlier_notice_count_for_all_jobs_once(confirmation: events.Event) -> None:
    driver = new_job().running().send(notice()).send(confirmation)
    assert [u.unconfirmed for u in avoided(driver)] == [False]
    assert len(lost(driver, unconfirmed=False)) == 1
    assert len(driver.task.attempts) == 2, "it changes nothing else"
    assert not avoided(driver.send(confirmation))
    assert not avoided(driver.send(GONE(0, 1, {0: Reason.PREEMPTED})))


@pytest.mark.parametrize("preempted", [True, False])
def test_confirmation__may_come_from_the_termination_of_the_machine(preempted: bool) -> None:
    driver = new_job().running().send(notice()).send(ENDED)
    assert any(isinstance(a, actions.Terminate) for a in driver.last_actions)
    driver.send(events.AttemptGone(0, 1, preempted))
    assert [u.unconfirmed for u in avoided(driver)] == [False] * preempted


def test_confirmation__does_not_come_from_a_machine_that_is_being_terminated() -> None:
    driver = new_job().running().send(notice()).send(ENDED).send(GONE(0, 1, {0: Reason.MACHINE_CRASHED}))
    assert not avoided(driver)


NODE_EVENTS = st.one_of(
    st.builds(events.PreemptionNotice, st.just(0), st.integers(1, 4), st.just(0), st.floats(900, 5000)),
    st.builds(events.NodeDisconnected, st.just(0), st.integers(1, 4), st.just(0)),
    st.builds(
        events.NodeReported,
        st.just(0),
        st.integers(1, 4),
        st.just(0),
        st.sampled_from(NodePhase),
        exit_code=st.sampled_from([None, 0, 1, 143]),
        failed_stage=st.sampled_from([None, "setup", "run"]),
        interrupted=st.booleans(),
        mount_lost=st.booleans(),
    ),
    st.builds(events.Tick),
)


@given(st.lists(st.tuples(NODE_EVENTS, st.sampled_from([0.0, 1.0, 40.0, 120.0])), max_size=25))
def test_word_of_a_node__never_moves_the_market_of_other_jobs(received: list[tuple[events.Event, float]]) -> None:
    driver = new_job().running()
    for event, after_s in received:
        driver.send(event, after_s)
        requested = driver.actions_of(actions.Launch)
        assert all(u.unconfirmed for u in avoided(driver)), event
        assert not lost(driver, unconfirmed=False), event
        if requested:
            driver.launched()
