"""Kueue's conditions as one sentence. The conditions are those of its own tests and issues."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.controller.clouds.kubernetes.waits.kueue import compose_problem, explanation

NO_QUOTA = "couldn't assign flavors to pod set main: insufficient unused quota for cpu in flavor a100, 2 more needed"
PREEMPTED = "Preempted to accommodate a workload (UID: 9f54, JobUID: a20d) due to prioritization in the ClusterQueue"


def condition(kind: str, status: str, reason: str, message: str) -> dict[str, str]:
    return {"type": kind, "status": status, "reason": reason, "message": message}


RESERVED = condition("QuotaReserved", "True", "QuotaReserved", "Quota reserved in ClusterQueue q1")
CASES: dict[str, tuple[dict[str, Any], int | None, str]] = {
    "no quota": (
        {"status": {"conditions": [condition("QuotaReserved", "False", "Pending", NO_QUOTA)]}},
        2,
        f"{NO_QUOTA}; position 3 in the queue",
    ),
    "missing queue": (
        {"status": {"conditions": [condition("QuotaReserved", "False", "Inadmissible", "LocalQueue q doesn't exist")]}},
        None,
        "LocalQueue q doesn't exist",
    ),
    "evicted and back": (
        {
            "status": {
                "conditions": [
                    condition("QuotaReserved", "False", "Pending", PREEMPTED),
                    condition("Evicted", "True", "PodsReadyTimeout", "Exceeded the PodsReady timeout ns/x"),
                ],
                "requeueState": {"count": 2, "requeueAt": "2026-01-01T00:00:00Z"},
            }
        },
        None,
        f"{PREEMPTED}; evicted before: Exceeded the PodsReady timeout ns/x; tried again after 2026-01-01T00:00:00Z",
    ),
    "admission check": (
        {
            "status": {
                "conditions": [RESERVED],
                "admissionChecks": [
                    {"name": "dws", "state": "Pending", "message": "Waiting for resources. Currently there are none."},
                    {"name": "other", "state": "Ready"},
                ],
            }
        },
        0,
        "its quota is reserved, and it waits for the admission check dws (Pending: Waiting for resources. Currently "
        "there are none.)",
    ),
    "deactivated": (
        {
            "spec": {"active": False},
            "status": {"conditions": [condition("Evicted", "True", "Deactivated", "The workload is deactivated")]},
        },
        None,
        "The workload is deactivated",
    ),
    "admitted": (
        {"status": {"conditions": [RESERVED, condition("Admitted", "True", "Admitted", "The workload is admitted")]}},
        None,
        "",
    ),
    "new": ({}, None, "the quota has not been checked yet"),
}


@pytest.mark.parametrize("case", CASES)
def test_explanation__is_in_kueues_words(case: str) -> None:
    workload, position, expected = CASES[case]
    assert explanation(workload, position) == expected


def test_compose_problem__is_the_newest_event_of_that_kind() -> None:
    events = [
        {"reason": "ErrWorkloadCompose", "message": "'g' group has fewer runnable pods than expected"},
        {"reason": "Started", "message": "x"},
    ]
    assert compose_problem(events) == "'g' group has fewer runnable pods than expected"
    assert compose_problem(events[1:]) == ""
