"""EC2's spot placement scores, fetched in the background: `aws: {placement_scores: true}`.

A score (1 to 10) rates a set of instance types in one zone, and is low for any set of fewer than three. So types with
the same accelerator are rated together, and sets of fewer types are not rated. A score promises nothing: it becomes an
estimate of the preemption rate that weighs as much as two observed preemptions.
docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-placement-score.html
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import structlog

from perdure.controller.clouds.aws.faults import classify
from perdure.controller.clouds.aws.pricing.catalog import TYPES
from perdure.controller.runtime.clock import Clock
from perdure.recovery.market.history import Advice
from perdure.recovery.market.offers import Market, OfferKey

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

log = structlog.get_logger(__name__)

AGE_S = 3600.0
MIN_TYPES = 3
REGIONS_PER_CALL = 10
# Twice the usual rate for a score of 1, less than half of it for 10.
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
        """The newest scores. Never waits for a running fetch."""
        with self._lock:
            if self._clock.now() >= self._next_at:
                self._next_at = self._clock.now() + AGE_S
                threading.Thread(target=self._fetch, name="aws-scores", daemon=True).start()
            return self._advice

    def _fetch(self) -> None:
        try:
            advice = tuple(self._fetch_scores())
        except Exception as error:  # noqa: BLE001 - advice is optional
            log.warning("aws.scores_failed", error=classify(error).message)
            return
        with self._lock:
            self._advice = advice

    def _fetch_scores(self) -> Iterator[Advice]:
        now, regions = self._clock.now(), list(self._regions())
        zones: dict[str, tuple[str, str]] = {}
        for region in regions:
            ec2 = self._client(region)
            for zone in ec2.describe_availability_zones()["AvailabilityZones"]:
                zones[zone["ZoneId"]] = (region, zone["ZoneName"])
        pages = self._client(regions[0]).get_paginator("get_spot_placement_scores")
        for types in families():
            for start in range(0, len(regions), REGIONS_PER_CALL):
                scores = pages.paginate(
                    InstanceTypes=list(types),
                    TargetCapacity=1,
                    SingleAvailabilityZone=True,
                    RegionNames=regions[start : start + REGIONS_PER_CALL],
                )
                for score in (one for page in scores for one in page["SpotPlacementScores"]):
                    if (place := zones.get(score["AvailabilityZoneId"])) is not None:
                        for name in types:
                            key = OfferKey(self._cloud, *place, name, Market.SPOT)
                            yield Advice(key, now, relative_rate(score["Score"]))


def families() -> list[tuple[str, ...]]:
    """Sets of types with the same accelerator that are large enough for a meaningful score."""
    names_by_accelerator: dict[str, list[str]] = {}
    for instance_type in TYPES.values():
        if instance_type.accelerators is not None:
            names_by_accelerator.setdefault(instance_type.accelerators[0], []).append(instance_type.name)
    return [tuple(names) for names in names_by_accelerator.values() if len(names) >= MIN_TYPES]


def relative_rate(score: int) -> float:
    """The preemption rate assumed for that score, relative to the usual one."""
    return float(2.0 ** ((USUAL_SCORE - score) / POINTS_PER_HALVING))
