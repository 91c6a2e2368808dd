"""EC2's spot placement scores, asked for now and then in the background: `aws: {placement_scores: true}`.

A score (1 to 10) is of a choice of instance types in one zone, and low for any choice of fewer than three. So types
that carry the same accelerator are asked for together, and those of smaller families not at all. It promises nothing:
it is made a guess at how often machines are taken, which weighs as much as two losses seen.
docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-placement-score.html
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import structlog

from perdure.controller.clock import Clock
from perdure.controller.clouds.aws.catalog import TYPES
from perdure.controller.clouds.aws.faults import classify
from perdure.recovery.history import Advice
from perdure.recovery.offers import Market, OfferKey

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

log = structlog.get_logger(__name__)

AGE_S = 3600.0
FEWEST_TYPES = 3
REGIONS_AT_ONCE = 10
# Twice as often as usual for a score of 1, less than half as often for one of 10.
USUAL_SCORE = 5
POINTS_PER_HALVING = 4.0


class PlacementScores:
    """Shared by threads."""

    def __init__(
        self, cloud: str, clock: Clock, *, regions: Callable[[], Sequence[str]], client: Callable[[str], EC2Client]
    ) -> None:
        self._cloud = cloud
        self._clock = clock
        self._regions = regions
        self._client = client
        self._lock = threading.Lock()
        self._advice: tuple[Advice, ...] = ()
        self._next_at = 0.0

    def advice(self) -> Sequence[Advice]:
        """What was said last; nobody waits for what is being asked."""
        with self._lock:
            if self._clock.now() >= self._next_at:
                self._next_at = self._clock.now() + AGE_S
                threading.Thread(target=self._ask, name="aws-scores", daemon=True).start()
            return self._advice

    def _ask(self) -> None:
        try:
            found = tuple(self._scored())
        except Exception as error:  # noqa: BLE001 - advice is no condition for anything
            log.warning("aws.scores_failed", error=classify(error).message)
            return
        with self._lock:
            self._advice = found

    def _scored(self) -> Iterator[Advice]:
        now, regions = self._clock.now(), list(self._regions())
        zones: dict[str, tuple[str, str]] = {}
        for region in regions:
            ec2 = self._client(region)
            for zone in ec2.describe_availability_zones()["AvailabilityZones"]:
                zones[zone["ZoneId"]] = (region, zone["ZoneName"])
        pages = self._client(regions[0]).get_paginator("get_spot_placement_scores")
        for types in families():
            for start in range(0, len(regions), REGIONS_AT_ONCE):
                asked = pages.paginate(
                    InstanceTypes=list(types),
                    TargetCapacity=1,
                    SingleAvailabilityZone=True,
                    RegionNames=regions[start : start + REGIONS_AT_ONCE],
                )
                for told in (one for page in asked for one in page["SpotPlacementScores"]):
                    if (place := zones.get(told["AvailabilityZoneId"])) is not None:
                        for name in types:
                            key = OfferKey(self._cloud, *place, name, Market.SPOT)
                            yield Advice(key, now, rate_of(told["Score"]))


def families() -> list[tuple[str, ...]]:
    """Types that carry the same accelerator, where there are enough of them for a score to mean something."""
    found: dict[str, list[str]] = {}
    for kind in TYPES.values():
        if kind.accelerators is not None:
            found.setdefault(kind.accelerators[0], []).append(kind.name)
    return [tuple(names) for names in found.values() if len(names) >= FEWEST_TYPES]


def rate_of(score: int) -> float:
    """How many times as often as is usual a zone of that score is taken to lose machines."""
    return float(2.0 ** ((USUAL_SCORE - score) / POINTS_PER_HALVING))
