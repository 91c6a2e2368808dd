"""A job with a history, for the tests of `perdure jobs` commands."""

from __future__ import annotations

from typing import Any

import pytest

from unit.sdk.contract_server import Controller

ATTEMPT = {
    "task_index": 0, "generation": 1, "state": "GONE", "reason": "PREEMPTION_NOTICE", "cloud": "aws",
    "region": "us-east-1", "zone": "us-east-1a", "instance_type": "p3.2xlarge", "market": "spot",
    "price_per_hour": 0.918, "requested_at": "2026-11-21T01:02:04.000000Z",
    "running_at": "2026-11-21T01:03:04.000000Z", "stopped_at": "2026-11-21T01:05:04.000000Z",
    "gone_at": "2026-11-21T01:05:30.000000Z", "cost_usd": 0.05,
    "nodes": [
        {"rank": 0, "instance_id": "i-1", "ip": "10.0.0.1", "phase": "ended", "connected": False, "exit_code": 143}
    ],
}  # fmt: skip


def timeline_entry(
    at: str,
    kind: str,
    generation: int | None = None,
    rank: int | None = None,
    reason: str | None = None,
    message: str = "",
) -> dict[str, Any]:
    about: dict[str, Any] = {
        "task_index": 0,
        "generation": generation,
        "rank": rank,
        "reason": reason,
        "message": message,
        "data": {},
    }
    return {"at": f"2026-11-21T{at}.000000Z", "kind": kind, **about}


@pytest.fixture
def preempted_job(server: Controller) -> int:
    """The id of a job that was preempted once and runs again."""
    job_id = server.add(
        "RUNNING", name="bert", printed=b"one\ntwo\nthree\n", submitted_at="2026-11-21T01:02:03.000000Z"
    )
    server.attempts[job_id] = [ATTEMPT, {**ATTEMPT, "generation": 2, "state": "RUNNING", "reason": None,
                                        "zone": "us-east-1b", "stopped_at": None, "gone_at": None}]  # fmt: skip
    server.timelines[job_id] = [
        timeline_entry("01:02:03", "job.submitted", reason="SUBMITTED"),
        timeline_entry("01:04:33", "node.notice", 1, 0, "PREEMPTION_NOTICE", "the cloud takes the machine at 01:06:33"),
        timeline_entry("01:05:10", "attempt.running", 2),
    ]
    return job_id


@pytest.fixture
def ended_entry() -> dict[str, Any]:
    """The timeline entry for the end of the job."""
    return timeline_entry("01:07:00", "job.ended", reason="COMPLETED")
