"""The same six jobs and deaths on an EC2 over HTTP: answers come late there, and machines end late."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from crash_ec2 import Ec2World

# At each of these, the outside and the database differ.
PLANS = (
    ("launch.called", "launch.calling:2"),
    ("launch.refused", "agent.welcoming:3"),
    ("bucket.made", "bucket.filled:2"),
    ("terminate.called", "terminate.calling:2"),
    ("intent.closing:2", "terminate.confirmed:2"),
    ("bucket.removing", "bucket.removed"),
    ("agent.noticed", "agent.ended:2"),
    ("turn.recorded:5", "turn.recording:9", "checkpoint.recorded"),
)


@pytest.mark.timeout(400)
def test_a_death_between_the_purchase_and_its_record_harms_no_job(survives: Callable[..., None]) -> None:
    survives(("launch.called:2",), world=Ec2World)


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.parametrize("plan", PLANS, ids=" ".join)
def test_deaths_around_what_is_outside_harm_no_job(survives: Callable[..., None], plan: Sequence[str]) -> None:
    survives(plan, world=Ec2World)
