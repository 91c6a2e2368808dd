"""The current zones: the settings, overridden by `PERDURE_HOME/local/zones.json`, which may change at any time.

    {"local-east-a": {"capacity": 0}, "local-east-b": {"launch_error": {"code": "InsufficientInstanceCapacity"}}}

The fields are those of a zone in the settings. An invalid file changes nothing: the last valid one applies, and
`problem` returns the error. The cloud stays usable, since its machines have to be managed.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from perdure.controller.clouds.local.capacity import Playback
from perdure.controller.clouds.local.settings import SPOT_SHARE, LocalSettings, Section, SectionError, Zone
from perdure.controller.runtime.clock import Clock
from perdure.recovery.market.view import Market, Offer


class Zones:
    """Thread-safe. With a `playback`, spot prices are those recorded for the `clock`'s time."""

    def __init__(
        self,
        cloud: str,
        settings: LocalSettings,
        path: Path,
        *,
        clock: Clock | None = None,
        playback: Playback | None = None,
    ) -> None:
        self._cloud = cloud
        self._settings = settings
        self._path = path
        self._clock, self._playback = clock, playback
        self._spot_prices: list[float] = []
        self._lock = threading.Lock()
        self._stat: object = ()  # of the file when it was last read
        self._zones = {zone.name: zone for zone in settings.zones}
        self._offers = self._list_offers()
        self._problem: str | None = None

    def get(self, name: str) -> Zone | None:
        with self._lock:
            self._refresh()
            return self._zones.get(name)

    def offers(self) -> Sequence[Offer]:
        with self._lock:
            self._refresh()
            self._update_spot_prices()
            return self._offers

    def problem(self) -> str | None:
        """Why the file is ignored; None if it is valid, or if there is none."""
        with self._lock:
            self._refresh()
            return self._problem

    def _refresh(self) -> None:
        try:
            stat = self._path.stat()
            current: object = (stat.st_mtime_ns, stat.st_ino, stat.st_size)
        except FileNotFoundError:
            current = None
        if current == self._stat:
            return
        self._stat = current
        try:
            self._zones = self._overridden(None if current is None else self._path.read_bytes())
        except (OSError, ValueError) as error:
            self._problem = f"{self._path} is ignored: {error}; correct or remove it"
            import structlog  # the machines' side of this package runs without it

            structlog.get_logger(__name__).warning("local_zones.invalid", problem=self._problem)
            return
        self._problem = None
        self._offers, self._spot_prices = self._list_offers(), []

    def _update_spot_prices(self) -> None:
        if self._clock is None or self._playback is None:
            return
        now = self._clock.now()
        prices = [self._playback.spot_price(zone, now) for zone in self._zones]
        if prices != self._spot_prices:
            self._spot_prices = prices
            recorded = dict(zip(self._zones, prices, strict=True))
            self._offers = tuple(
                replace(o, price_per_hour=recorded[o.zone]) if o.market is Market.SPOT else o
                for o in self._list_offers()
            )

    def _overridden(self, text: bytes | None) -> dict[str, Zone]:
        zones = {zone.name: zone for zone in self._settings.zones}
        for name, change in Section(json.loads(text) if text else {}, "zones.json").values.items():
            if name not in zones:
                raise SectionError("no such zone", where=name, fix=f"use one of {', '.join(zones)}")
            zones[name] = zones[name].with_overrides(change, name)
        return zones

    def _list_offers(self) -> tuple[Offer, ...]:
        return tuple(
            Offer(
                cloud=self._cloud,
                region=zone.region,
                zone=zone.name,
                instance_type=instance_type.name,
                market=market,
                price_per_hour=round(instance_type.price_per_hour * zone.price_factor * share, 6),
                on_demand_price_per_hour=round(instance_type.price_per_hour * zone.price_factor, 6),
                vcpus=instance_type.vcpus,
                memory_gib=instance_type.memory_gib,
                accelerators=instance_type.accelerators,
            )
            for zone in self._zones.values()
            for instance_type in self._settings.instance_types
            if self._playback is None or self._playback.sells(zone.name, instance_type.name)
            for market, share in ((Market.SPOT, SPOT_SHARE), (Market.ON_DEMAND, 1.0))
        )
