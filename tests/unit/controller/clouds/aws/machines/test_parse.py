"""Instances of EC2, parsed."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from perdure.controller.clouds.aws.machines import parse
from perdure.controller.clouds.aws.machines.parse import GONE_REASONS, ended_at
from perdure.controller.clouds.base.protocol import InstanceState
from perdure.recovery.reasons import MEANINGS, Reason

TAGS = {"controller": "c", "job": "7", "task": "0", "generation": "2", "token": "t"}


def description(state: str = "running", **more: Any) -> dict[str, Any]:
    return {
        "InstanceId": "i-1",
        "AmiLaunchIndex": 3,
        "State": {"Name": state},
        "Tags": [{"Key": f"perdure:{key}", "Value": value} for key, value in TAGS.items()],
        "LaunchTime": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        "Placement": {"AvailabilityZone": "us-east-1a"},
        "InstanceType": "g5.xlarge",
        "PrivateIpAddress": "10.0.0.9",
        **more,
    }


@pytest.mark.parametrize(
    ("name", "state"),
    [
        ("pending", InstanceState.PENDING),
        ("running", InstanceState.RUNNING),
        ("shutting-down", InstanceState.ENDING),
        ("stopping", InstanceState.ENDING),
        ("stopped", InstanceState.STOPPED),  # its disk is billed
        ("terminated", InstanceState.GONE),
        ("a-new-state", InstanceState.ENDING),
    ],
)
def test_instance__maps_states(name: str, state: InstanceState) -> None:
    instance = parse.instance(description(name), "us-east-1")
    assert instance is not None
    assert (instance.state, instance.rank, instance.ip) == (state, 3, "10.0.0.9")


def test_instance__ignores_foreign_machines() -> None:
    assert parse.instance(description() | {"Tags": [{"Key": "Name", "Value": "web"}]}, "us-east-1") is None
    assert parse.instance(description() | {"Tags": [{"Key": "perdure:controller", "Value": "c"}]}, "us-east-1") is None


def test_instance__reports_a_preemption_with_its_time() -> None:
    reason = {"Code": "Server.SpotInstanceTermination", "Message": "…"}
    gone = parse.instance(
        description(
            "terminated", StateReason=reason, StateTransitionReason="Service initiated (2026-01-02 04:04:05 GMT)"
        ),
        "us-east-1",
    )
    assert gone is not None
    assert gone.gone_reason is Reason.PREEMPTED
    assert gone.launched_at is not None
    assert gone.ended_at == gone.launched_at + 3600


@pytest.mark.parametrize(("code", "reason"), GONE_REASONS.items())
def test_gone_reason__is_recoverable_for_every_end(code: str, reason: Reason) -> None:
    gone = parse.instance(description("terminated", StateReason={"Code": code}), "us-east-1")
    assert gone is not None
    assert gone.gone_reason is reason
    assert MEANINGS[reason].recovers


def test_instance__omits_what_ec2_does_not_report() -> None:
    gone = parse.instance(description("terminated"), "us-east-1")
    assert gone is not None
    assert (gone.gone_reason, gone.ended_at) == (None, None)
    assert ended_at("User initiated") is None
    novel = parse.instance(description("terminated", StateReason={"Code": "Server.Novel"}), "us-east-1")
    assert novel is not None
    assert novel.gone_reason is Reason.MACHINE_CRASHED
