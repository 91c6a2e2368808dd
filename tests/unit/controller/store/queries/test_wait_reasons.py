"""The sentence that says what a task waits for, of each kind of wait."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.controller.store.queries.wait_reasons import sentence, since

T0, T1, T2 = "2026-11-21T01:00:00Z", "2026-11-21T02:00:00Z", "2026-11-21T03:00:00Z"


def task(status: str, reason: str | None = None, message: str = "", index: int = 0) -> dict[str, Any]:
    named = {"task_index": index, "task_name": f"t{index}", "submitted_at": T0}
    return {**named, "status": status, "reason": reason, "message": message}


def attempt(state: str, phase: str = "running", *, connected: bool = True, reason: str | None = None) -> dict[str, Any]:
    nodes = [{"rank": rank, "phase": phase if rank else "ready", "connected": connected or not rank} for rank in (0, 1)]
    place = {"cloud": "aws", "zone": "us-east-1a", "instance_type": "p3.2xlarge"}
    times = {"requested_at": T1, "stopped_at": None, "gone_at": T2 if state == "GONE" else None}
    return {"task_index": 0, "generation": 1, "state": state, "reason": reason, "nodes": nodes, **place, **times}


def waiting(*why: str) -> dict[str, Any]:
    return {"kind": "task.waiting", "task_index": 0, "data": {"why": list(why)}}


BACKING_OFF = task("PENDING", "BACKING_OFF", "every matching offer was unavailable recently; the next attempt is at T")
WAITS: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]], list[dict[str, Any]], str]] = {
    "earlier task": ([task("RUNNING"), task("PENDING", index=1)], [], [], "it follows task 0 (t0), which is RUNNING"),
    "cancelled": ([task("CANCELLING")], [attempt("RUNNING")], [], "may save its work before its machines end"),
    "no decision yet": ([task("PENDING", "SUBMITTED")], [], [], "has not chosen a place"),
    "no offer": ([BACKING_OFF], [], [], "every matching offer was unavailable recently; the next attempt is at T"),
    "policy": ([BACKING_OFF], [], [waiting("no spot offer is available")], "no spot offer is available: every"),
    "requested": (
        [task("STARTING")], [attempt("REQUESTED")], [], "aws/us-east-1a has been asked for 2 machines (p3.2xlarge)",
    ),
    "boots": (
        [task("STARTING")], [attempt("BOOTING", connected=False)], [],
        "2 machines in aws/us-east-1a boot, and node 1 must connect",
    ),
    "files": ([task("STARTING")], [attempt("SETTING_UP", "mounting")], [], "files and buckets are brought to node 1"),
    "setup": ([task("STARTING")], [attempt("SETTING_UP", "setup")], [], "`setup` runs on node 1 in aws/us-east-1a"),
    "one at a time": ([task("STARTING")], [attempt("READY")], [], "an earlier attempt must be known to have stopped"),
    "drain": ([task("RECOVERING")], [attempt("DRAINING")], [], "in aws/us-east-1a save their work"),
    "lost": (
        [{**BACKING_OFF, "status": "RECOVERING"}], [attempt("GONE", reason="PREEMPTED")], [],
        "attempt 1 ended (the cloud took the machine back (preemption)); every matching offer",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", WAITS)
def test_sentence__names_what_a_task_waits_for(kind: str) -> None:
    tasks, attempts, timeline, expected = WAITS[kind]
    assert expected in sentence(tasks, attempts, timeline, index=len(tasks) - 1)


def test_sentences__of_different_waits_differ() -> None:
    texts = {sentence(tasks, *rest, index=len(tasks) - 1) for tasks, *rest in (one[:3] for one in WAITS.values())}
    assert len(texts) == len(WAITS)


def test_sentence__is_the_quota_that_holds_a_launch_back() -> None:
    waits = sentence([task("PENDING")], [attempt("REQUESTED")], [], index=0, blocked="all 4 machines are in use")
    assert waits == "all 4 machines are in use"


@pytest.mark.parametrize("status", ["RUNNING", "SUCCEEDED", "FAILED"])
def test_sentence__is_empty_if_nothing_is_waited_for(status: str) -> None:
    assert sentence([task(status)], [attempt("RUNNING")], [], index=0, blocked="a quota") == ""


def test_since__is_the_newest_of_submission_request_and_loss() -> None:
    assert since(task("PENDING"), []) == T0
    assert since(task("STARTING"), [attempt("BOOTING")]) == T1
    assert since(task("RECOVERING"), [attempt("GONE")]) == T2
