"""What a cloud sells right now: zones, types and prices, crawled region by region in the background and kept on disk.

Nobody waits for a crawl but the very first asker. What was known stays known while a region does not answer: a market
that seems empty would end jobs that only need to wait.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path

import structlog

from holdfast.controller.clock import Clock
from holdfast.controller.clouds.base import Fault
from holdfast.recovery.market import Market, Offer

log = structlog.get_logger(__name__)

AGE_S = 600.0
AGE_AFTER_TROUBLE_S = 60.0
FIRST_CRAWL_S = 60.0
REGIONS_AT_ONCE = 8

# zone → instance type → spot price in USD per hour, None where there is none
Prices = dict[str, dict[str, float | None]]


@dataclass(frozen=True)
class InstanceType:
    """`price_per_hour`: on demand, in the region that its cloud's table of prices is for; USD."""

    name: str
    vcpus: float
    memory_gib: float
    price_per_hour: float
    accelerators: tuple[str, float] | None = None


@dataclass(frozen=True)
class Sold:
    """What a region sells. `on_demand`: type → USD per hour, of those of which the cloud itself tells."""

    zones: Prices
    on_demand: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Source:
    """How one cloud's prices are found. `regions`: those to crawl. `crawl(region, now)`: which of `types` each of its
    zones sells, and at what price. `on_demand(type, region)`: USD per hour, where the crawl told none. `classify` as a
    `Cloud`'s.
    """

    cloud: str
    types: Mapping[str, InstanceType]
    regions: Callable[[], Sequence[str]]
    crawl: Callable[[str, float], Sold]
    on_demand: Callable[[InstanceType, str], float]
    classify: Callable[[Exception], Fault]


@dataclass(frozen=True)
class Known:
    """`at`: when it was crawled (epoch seconds). `by_region`: region → its spot prices; `on_demand`: region → type →
    price, of those that were told."""

    at: float
    by_region: dict[str, Prices]
    on_demand: dict[str, dict[str, float]]


class PriceList:
    """Shared by threads. `path`: the file where it is kept."""

    def __init__(self, source: Source, path: Path, clock: Clock) -> None:
        self._source = source
        self._path = path
        self._clock = clock
        self._changed = threading.Condition()
        self._known = _load(path)
        self._offers = self._list(self._known)
        self._crawling = False
        self._next_at = self._known.at + AGE_S if self._known else 0.0
        self._trouble: Exception | None = None

    def offers(self) -> Sequence[Offer]:
        """All offers, at most `AGE_S` old while the cloud answers. Raises what went wrong if nothing was ever known."""
        with self._changed:
            if not self._crawling and self._clock.now() >= self._next_at:
                self._crawling = True
                threading.Thread(target=self._crawl, name=f"{self._source.cloud}-prices", daemon=True).start()
            if self._known is None:
                self._changed.wait_for(lambda: self._known is not None or not self._crawling, FIRST_CRAWL_S)
            if self._known is None and self._trouble is not None:
                raise self._trouble
            return self._offers

    def notes(self) -> Sequence[str]:
        """How old it is, and what keeps it so; nothing while nothing is known."""
        with self._changed:
            if self._known is None:
                return ()
            minutes = (self._clock.now() - self._known.at) / 60.0
            trouble = f"; the last try failed: {self._source.classify(self._trouble).message}" if self._trouble else ""
            return (f"what is sold, and for how much, was asked {minutes:.0f} min ago{trouble}",)

    def _crawl(self) -> None:
        """Every region, side by side; one that fails keeps the prices that it had."""
        found: dict[str, Sold] = {}
        trouble: Exception | None = None
        try:
            regions = self._source.regions()
            with ThreadPoolExecutor(REGIONS_AT_ONCE, thread_name_prefix=f"{self._source.cloud}-prices") as pool:
                for region, asked in [(r, pool.submit(self._source.crawl, r, self._clock.now())) for r in regions]:
                    try:
                        found[region] = asked.result()
                    except Exception as error:  # noqa: BLE001 - a region's trouble is not the others'
                        trouble = error
                        self._warn(error, region=region)
        except Exception as error:  # noqa: BLE001 - reported to whoever asks
            trouble = error
            self._warn(error)
        self._take_over(found, trouble)

    def _take_over(self, found: dict[str, Sold], trouble: Exception | None) -> None:
        now = self._clock.now()
        with self._changed:
            self._trouble = trouble
            if found:
                before = self._known if self._known and trouble else Known(now, {}, {})
                self._known = Known(
                    now,
                    {**before.by_region, **{region: sold.zones for region, sold in found.items()}},
                    {**before.on_demand, **{region: sold.on_demand for region, sold in found.items()}},
                )
                self._offers = self._list(self._known)
                _keep(self._path, self._known)
            self._next_at = now + (AGE_AFTER_TROUBLE_S if trouble else AGE_S)
            self._crawling = False
            self._changed.notify_all()

    def _warn(self, error: Exception, **where: str) -> None:
        log.warning(
            "cloud.prices_failed", cloud=self._source.cloud, error=self._source.classify(error).message, **where
        )

    def _list(self, known: Known | None) -> tuple[Offer, ...]:
        return tuple(self._each(known)) if known else ()

    def _each(self, known: Known) -> Iterator[Offer]:
        for region, prices in known.by_region.items():
            told = known.on_demand.get(region, {})
            for zone, types in prices.items():
                for name, spot_price in types.items():
                    if (kind := self._source.types.get(name)) is None:
                        continue  # kept by a version that knew it
                    on_demand = told.get(name) or self._source.on_demand(kind, region)
                    for market, price in ((Market.SPOT, spot_price), (Market.ON_DEMAND, on_demand)):
                        if price is not None:
                            yield Offer(
                                cloud=self._source.cloud,
                                region=region,
                                zone=zone,
                                instance_type=name,
                                market=market,
                                price_per_hour=price,
                                on_demand_price_per_hour=on_demand,
                                vcpus=kind.vcpus,
                                memory_gib=kind.memory_gib,
                                accelerators=kind.accelerators,
                            )


def _load(path: Path) -> Known | None:
    try:
        kept = json.loads(path.read_text())
        return Known(float(kept["at"]), dict(kept["by_region"]), dict(kept.get("on_demand", {})))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _keep(path: Path, known: Known) -> None:
    """For the next start, which then need not wait. Without it, it waits."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = path.with_suffix(".new")
        new.write_text(json.dumps(asdict(known)))
        new.replace(path)
    except OSError as error:
        log.warning("cloud.prices_not_kept", path=str(path), error=str(error))
