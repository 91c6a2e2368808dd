"""The faults of the fake EC2. They may be changed at any time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from perdure.recovery.market.view import Market

TEXTS = {
    "InsufficientInstanceCapacity": "We currently do not have sufficient capacity in the Availability Zone you "
    "requested ({zone}). Our system will be working on provisioning additional capacity.",
    "MaxSpotInstanceCountExceeded": "Max spot instance count exceeded",
    "VcpuLimitExceeded": "You have requested more vCPU capacity than your current vCPU limit of 0 allows.",
    "UnauthorizedOperation": "You are not authorized to perform this operation.",
    "denied region": "You are not authorized to perform this operation. User: arn:aws:sts::1:assumed-role/r/s is not "
    "authorized to perform: {action} on resource: arn:aws:ec2:{region}:1:instance/* with an explicit deny in a service "
    "control policy. Encoded authorization failure message: {encoded}",
    "AuthFailure": "AWS was not able to validate the provided access credentials",
    "RequestLimitExceeded": "Request limit exceeded.",
    "DryRunOperation": "Request would have succeeded, but DryRun flag is set.",
}


@dataclass
class Faults:
    """A count of calls (`throttle`, `lost_answers`, …) decreases with each call that it affects."""

    capacity: dict[str, int] = field(default_factory=dict)  # zone → how many instances may exist there
    #: zone, or (zone, market) → the error code of every launch there
    launch_errors: dict[str | tuple[str, Market], str] = field(default_factory=dict)
    deny: str | None = None  # the error code of every call, as with invalid credentials
    #: what the policy does not allow: "ec2:RunInstances", "sqs:DeleteMessage on arn:…"
    forbid: set[str] = field(default_factory=set)
    denied_regions: set[str] = field(default_factory=set)  # by the organization; where every call is rejected
    policy: Sequence[Mapping[str, Any]] = ()  # if any: the statements that allow calls of EC2, and no others
    quotas: dict[tuple[str, str], float] = field(default_factory=dict)  # (region, code) → limit
    throttle: int = 0  # how many of the next calls are throttled
    lost_answers: dict[str, int] = field(default_factory=dict)  # action → how many calls take effect without a response
    lost_requests: dict[str, int] = field(default_factory=dict)  # the same, but they take no effect
    unseen_groups: dict[str, int] = field(default_factory=dict)  # action → how many calls see no security group yet
    scores: dict[str, int] = field(default_factory=dict)  # zone → spot placement score, 5 by default
    fis_notice_s: float = 120.0  # seconds from the start of an experiment to the end of the instance
    listing_delay_s: float = 0.0  # how long a new instance is not described

    def refusal(self, zone: str, market: Market) -> str | None:
        return self.launch_errors.get((zone, market)) or self.launch_errors.get(zone)
