"""The zones as they are right now: the settings, changed by `PERDURE_HOME/local/zones.json` while the daemon runs.

    {"local-east-a": {"capacity": 0}, "local-east-b": {"refuse": {"code": "InsufficientInstanceCapacity"}}}

Fields are those of a zone in the settings. A file that can not be used changes nothing: the last that could be stands,
and `problem` says why. It is no reason to do without the cloud, whose machines need looking after.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from perdure.controller.clock import Clock
from perdure.controller.clouds.local.capacity import Playback
from perdure.controller.clouds.local.settings import SPOT_SHARE, LocalSettings, Section, SettingsError, Zone
from perdure.recovery.market import Market, Offer


class Zones:
    """Shared by threads. With a `playback`, spot prices are as recorded at the `clock`'s moment."""

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
        self._read: object = ()  # what the file looked like when it was last read
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
            self._follow_prices()
            return self._offers

    def problem(self) -> str | None:
        """Why the file is not followed; None when it is, or when there is none."""
        with self._lock:
            self._refresh()
            return self._problem

    def _refresh(self) -> None:
        try:
            stat = self._path.stat()
            seen: object = (stat.st_mtime_ns, stat.st_ino, stat.st_size)
        except FileNotFoundError:
            seen = None
        if seen == self._read:
            return
        self._read = seen
        try:
            self._zones = self._changed(None if seen is None else self._path.read_bytes())
        except (OSError, ValueError) as error:
            self._problem = f"{self._path}: {error}; mend or remove it"
            return
        self._problem = None
        self._offers, self._spot_prices = self._list_offers(), []

    def _follow_prices(self) -> None:
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

    def _changed(self, text: bytes | None) -> dict[str, Zone]:
        zones = {zone.name: zone for zone in self._settings.zones}
        for name, change in Section(json.loads(text) if text else {}, "zones.json").values.items():
            if name not in zones:
                raise SettingsError("no such zone", where=name, fix=f"use one of {', '.join(zones)}")
            zones[name] = zones[name].changed_by(change, name)
        return zones

    def _list_offers(self) -> tuple[Offer, ...]:
        return tuple(
            Offer(
                cloud=self._cloud,
                region=zone.region,
                zone=zone.name,
                instance_type=kind.name,
                market=market,
                price_per_hour=round(kind.price_per_hour * zone.price_factor * share, 6),
                on_demand_price_per_hour=round(kind.price_per_hour * zone.price_factor, 6),
                vcpus=kind.vcpus,
                memory_gib=kind.memory_gib,
                accelerators=kind.accelerators,
            )
            for zone in self._zones.values()
            for kind in self._settings.instance_types
            if self._playback is None or self._playback.sells(zone.name, kind.name)
            for market, share in ((Market.SPOT, SPOT_SHARE), (Market.ON_DEMAND, 1.0))
        )
