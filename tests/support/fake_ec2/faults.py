"""What goes wrong in the fake EC2. Change it at any time."""

from __future__ import annotations

from dataclasses import dataclass, field

from perdure.recovery.market import Market

TEXTS = {
    "InsufficientInstanceCapacity": "We currently do not have sufficient capacity in the Availability Zone you "
    "requested ({zone}). Our system will be working on provisioning additional capacity.",
    "MaxSpotInstanceCountExceeded": "Max spot instance count exceeded",
    "VcpuLimitExceeded": "You have requested more vCPU capacity than your current vCPU limit of 0 allows.",
    "UnauthorizedOperation": "You are not authorized to perform this operation.",
    "AuthFailure": "AWS was not able to validate the provided access credentials",
    "RequestLimitExceeded": "Request limit exceeded.",
    "DryRunOperation": "Request would have succeeded, but DryRun flag is set.",
}


@dataclass
class Faults:
    """`capacity`: zone → how many instances may live there. `refuse`: zone, or (zone, market) → the code that every
    launch there meets. `deny`: the code that every call meets, as with bad credentials. `forbid`: what the policy does
    not allow ("ec2:RunInstances", "sqs:DeleteMessage on arn:…"). `quotas`: (region, code) → how much, where it is not
    as usual.

    Used up by the calls that meet them: `throttle`, how many calls are throttled; `lost_answers`: action → how many of
    its next calls take effect and are never answered; `lost_requests`: the same, but they take none.
    """

    capacity: dict[str, int] = field(default_factory=dict)
    refuse: dict[str | tuple[str, Market], str] = field(default_factory=dict)
    deny: str | None = None
    forbid: set[str] = field(default_factory=set)
    quotas: dict[tuple[str, str], float] = field(default_factory=dict)
    throttle: int = 0
    lost_answers: dict[str, int] = field(default_factory=dict)
    lost_requests: dict[str, int] = field(default_factory=dict)
    scores: dict[str, int] = field(default_factory=dict)  # zone → spot placement score, 5 if not said
    fis_notice_s: float = 120.0  # from the start of an experiment to the end of the instance
    listing_delay_s: float = 0.0  # a new instance is not described for so long

    def refusal(self, zone: str, market: Market) -> str | None:
        return self.refuse.get((zone, market)) or self.refuse.get(zone)
