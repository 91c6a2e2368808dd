"""The same six jobs and deaths on an EC2 over HTTP, whose answers are slow and whose machines end slowly."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from support.worlds.crash_ec2 import Ec2World

pytestmark = pytest.mark.long

# At each of these failpoints, the cloud and the database differ.
PLANS = (
    ("launch.called", "launch.calling:2"),
    ("launch.rejected", "agent.welcoming:3"),
    ("bucket.created", "bucket.filled:2"),
    ("terminate.called", "terminate.calling:2"),
    ("intent.closing:2", "terminate.confirmed:2"),
    ("bucket.removing", "bucket.removed"),
    ("agent.notice_received", "agent.ended:2"),
    ("event.recorded:5", "event.recording:9", "checkpoint.recorded"),
)


@pytest.mark.timeout(400)
def test_jobs__survive_a_death_between_launch_and_record(survives: Callable[..., None]) -> None:
    survives(("launch.called:2",), world=Ec2World)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("plan", PLANS, ids=" ".join)
def test_jobs__survive_deaths_around_cloud_calls(survives: Callable[..., None], plan: Sequence[str]) -> None:
    survives(plan, world=Ec2World)
