"""The statuses of replicas and services, and when a replica is given up."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.recovery.market.services.replicas import (
    Probe,
    Replica,
    ReplicaStatus,
    ServiceStatus,
    decision_at,
    failure_of,
    service_status,
)
from perdure.recovery.market.services.spec import ServiceSpec
from perdure.recovery.reasons import Reason
from perdure.recovery.statuses import AttemptState, Status

SPEC = ServiceSpec(initial_delay_s=5.0, failure_threshold_s=60.0)
READY, FAILING = Probe(True), Probe(False, 1000.0, "/ answers 500")


def replica(**fields: Any) -> Replica:
    return Replica(**{"number": 1, "version": 1, "is_spot": False, "created_at": 0.0, **fields})


def running(**fields: Any) -> Replica:
    started = {"job_status": Status.RUNNING, "attempt_state": AttemptState.RUNNING, "running_at": 900.0}
    return replica(**{**started, **fields})


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        (replica(), ReplicaStatus.PENDING),
        (replica(job_status=Status.STARTING, attempt_state=AttemptState.BOOTING), ReplicaStatus.PROVISIONING),
        (replica(job_status=Status.STARTING, attempt_state=AttemptState.SETTING_UP), ReplicaStatus.STARTING),
        (running(), ReplicaStatus.STARTING),
        (running(probe=FAILING), ReplicaStatus.STARTING),
        (running(probe=READY), ReplicaStatus.READY),
        (running(probe=FAILING, was_ready=True), ReplicaStatus.NOT_READY),
        (running(was_ready=True), ReplicaStatus.NOT_READY),
        (running(probe=READY, outcome=Reason.NOT_RECOVERED), ReplicaStatus.SHUTTING_DOWN),
        (running(probe=READY, retired_as=ReplicaStatus.TERMINATED), ReplicaStatus.SHUTTING_DOWN),
    ],
)
def test_status__follows_job_and_probe(one: Replica, expected: ReplicaStatus) -> None:
    assert one.status is expected


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (Reason.NOT_RECOVERED, ReplicaStatus.PREEMPTED),
        (Reason.RUN_FAILED, ReplicaStatus.FAILED),
        (Reason.SETUP_FAILED, ReplicaStatus.FAILED),
        (Reason.COMPLETED, ReplicaStatus.FAILED),
        (Reason.NO_OFFER_FITS, ReplicaStatus.FAILED_PROVISION),
        (Reason.USER_CANCELLED, ReplicaStatus.TERMINATED),
    ],
)
def test_final_status__says_how_it_ended(outcome: Reason, expected: ReplicaStatus) -> None:
    assert running(outcome=outcome).final_status is expected
    assert running(outcome=outcome, retired_as=ReplicaStatus.TERMINATED).final_status is ReplicaStatus.TERMINATED


def test_failure_of__counts_the_initial_delay_from_the_start_of_run() -> None:
    slow_setup = replica(job_status=Status.STARTING, attempt_state=AttemptState.SETTING_UP)
    assert failure_of(slow_setup, SPEC, 10**6) is None
    one = running(probe=FAILING)
    assert failure_of(one, SPEC, 904.9) is None
    assert decision_at(one, SPEC) == 905.0
    status, text = failure_of(one, SPEC, 905.0) or (None, "")
    assert status is ReplicaStatus.FAILED_INITIAL_DELAY
    assert "/ answers 500" in text


def test_failure_of__gives_up_after_failures_in_a_row() -> None:
    one = running(probe=FAILING, was_ready=True)
    assert failure_of(one, SPEC, 1059.9) is None
    assert (failure_of(one, SPEC, 1060.0) or (None,))[0] is ReplicaStatus.FAILED_PROBING


@pytest.mark.parametrize(
    "one", [running(probe=READY, was_ready=True), running(was_ready=True), running(outcome=Reason.NOT_RECOVERED)]
)
def test_failure_of__leaves_others_alone(one: Replica) -> None:
    assert failure_of(one, SPEC, 10**6) is None


@pytest.mark.parametrize(
    ("replicas", "is_wanted", "has_failed", "expected"),
    [
        ([running()], True, False, ServiceStatus.REPLICA_INIT),
        ([running(), running(probe=READY)], True, False, ServiceStatus.READY),
        ([running(probe=READY)], True, True, ServiceStatus.READY),
        ([], True, False, ServiceStatus.NO_REPLICA),
        ([running(outcome=Reason.NOT_RECOVERED)], True, False, ServiceStatus.NO_REPLICA),
        ([running()], True, True, ServiceStatus.FAILED),
        ([], True, True, ServiceStatus.FAILED),
        ([running()], False, False, ServiceStatus.SHUTTING_DOWN),
        ([], False, False, ServiceStatus.DOWN),
    ],
)
def test_service_status__names_what_users_see(
    replicas: list[Replica], is_wanted: bool, has_failed: bool, expected: ServiceStatus
) -> None:
    assert service_status(replicas, is_wanted=is_wanted, has_failed=has_failed) is expected
