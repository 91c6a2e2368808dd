"""EC2's words, read."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from perdure.controller.clouds.aws.reading import GONE_REASONS, ended_at, read
from perdure.controller.clouds.base import InstanceState
from perdure.recovery.reasons import MEANINGS, Reason

TAGS = {"controller": "c", "job": "7", "task": "0", "generation": "2", "token": "t"}


def told(state: str = "running", **more: Any) -> dict[str, Any]:
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
        ("stopped", InstanceState.ENDING),  # its disk is billed: it must still be ended
        ("terminated", InstanceState.GONE),
        ("a-new-state", InstanceState.ENDING),
    ],
)
def test_states(name: str, state: InstanceState) -> None:
    instance = read(told(name), "us-east-1")
    assert instance is not None
    assert (instance.state, instance.rank, instance.ip) == (state, 3, "10.0.0.9")


def test_a_machine_of_somebody_elses_is_none_of_ours() -> None:
    assert read(told() | {"Tags": [{"Key": "Name", "Value": "web"}]}, "us-east-1") is None
    assert read(told() | {"Tags": [{"Key": "perdure:controller", "Value": "c"}]}, "us-east-1") is None


def test_a_spot_interruption_is_a_preemption_with_the_second_of_its_end() -> None:
    reason = {"Code": "Server.SpotInstanceTermination", "Message": "…"}
    gone = read(
        told("terminated", StateReason=reason, StateTransitionReason="Service initiated (2026-01-02 04:04:05 GMT)"),
        "us-east-1",
    )
    assert gone is not None
    assert gone.gone_reason is Reason.PREEMPTED
    assert gone.launched_at is not None
    assert gone.ended_at == gone.launched_at + 3600


@pytest.mark.parametrize(("code", "reason"), GONE_REASONS.items())
def test_every_end_is_one_that_a_task_recovers_from(code: str, reason: Reason) -> None:
    gone = read(told("terminated", StateReason={"Code": code}), "us-east-1")
    assert gone is not None
    assert gone.gone_reason is reason
    assert MEANINGS[reason].recovers


def test_what_ec2_does_not_tell_is_not_made_up() -> None:
    gone = read(told("terminated"), "us-east-1")
    assert gone is not None
    assert (gone.gone_reason, gone.ended_at) == (None, None)
    assert ended_at("User initiated") is None
    odd = read(told("terminated", StateReason={"Code": "Server.Novel"}), "us-east-1")
    assert odd is not None
    assert odd.gone_reason is Reason.MACHINE_CRASHED
