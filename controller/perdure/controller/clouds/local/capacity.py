"""Spot capacity and prices as they were recorded: `local.capacity_trace`, played back faster than it happened.

    local:
      capacity_trace:
        paths: [/data/traces/aws-v100]   # files as `perdure simulate` reads them, or folders of them
        unavailable_is: 1                # what a value means: see docs/simulator.md
        speed: 600                       # ten minutes of the trace, and of the controller's time, in a second
        start: 120h                      # where in the traces to begin; default 0
        notice: 2m                       # how long before a machine is taken it is told; default: it is not
        spot_price: 0.9                  # where the files have no prices; also on_demand_price

A machine's host knows from the start when it will be taken, and takes it, whether a controller lives or not.
On-demand can always be had. When the traces have ended, what was last stands.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from perdure.controller.clouds.section import Section, SettingsError
from perdure.sdk.deadlines import DURATION, read_duration, seconds
from perdure.sdk.problems import Refused

if TYPE_CHECKING:
    from perdure.recovery.simulate.traces import ZoneTrace

_KNOWN = ("paths", "unavailable_is", "speed", "start", "notice", "spot_price", "on_demand_price")
_FASTEST = 3600.0


@dataclass(frozen=True)
class CapacityTrace:
    """`speed`: seconds of the trace in one of the world. `start_s`: where in the traces their playback begins.

    `is_counted`: the traces tell how many machines there were; else a zone has all that are asked for, or none.
    """

    zones: tuple[ZoneTrace, ...]
    speed: float
    is_counted: bool
    start_s: float = 0.0
    notice_s: float = 0.0

    def played(self, since: float) -> Playback:
        """The traces as they go on from `since` on, in epoch seconds of the controller's clock."""
        begin, _ = self.span
        return Playback(self, begin + self.start_s - since)

    @property
    def span(self) -> tuple[float, float]:
        """From when to when all zones were recorded."""
        from perdure.recovery.simulate.traces import common_span

        return common_span(self.zones)


@dataclass(frozen=True)
class Playback:
    """Questions are asked, and answered, in the controller's time; `ahead_s` leads from there to the traces'."""

    trace: CapacityTrace
    ahead_s: float

    def spot_price(self, zone: str, now: float) -> float:
        return self._zone(zone).price(now + self.ahead_s)

    def free(self, zone: str, count: int, used: Collection[int], now: float) -> list[int] | None:
        """Places for `count` machines, beside those `used`; None if there are not as many.

        A place is there as long as the zone's capacity is as high as its number. A zone that has given notice sells no
        more of what it will take.
        """
        if not self.trace.is_counted:
            return [1] * count if self._room(zone, now) else None
        free = [place for place in range(1, self._room(zone, now) + 1) if place not in used]
        return free[:count] if len(free) >= count else None

    def sells(self, zone: str, instance_type: str) -> bool:
        return self._zone(zone).instance_type == instance_type

    def taken_at(self, zone: str, place: int, now: float) -> float:
        """When a machine in that place, bought now, is taken; infinity if never."""
        return self._zone(zone).changes_at(place, now + self.ahead_s) - self.ahead_s

    def at_h(self, now: float) -> tuple[float, float]:
        """How many hours into the traces it is, and how many they last."""
        begin, end = self.trace.span
        return (now + self.ahead_s - begin) / 3600, (end - begin) / 3600

    def _room(self, zone: str, now: float) -> int:
        trace, at = self._zone(zone), now + self.ahead_s
        return min(trace.counts[trace.tick(at)], trace.counts[trace.tick(at + self.trace.notice_s)])

    def _zone(self, name: str) -> ZoneTrace:
        return next(z for z in self.trace.zones if z.zone == name)


def read_speed(local: object) -> float | None:
    """How fast the `local:` section wants the controller's time to run; None where it has no trace. Raises
    SettingsError."""
    section = Section({} if local is None else local, "local")
    if "capacity_trace" not in section.values:
        return None
    speed = section.part("capacity_trace").number("speed", 1.0, above=0)
    if speed > _FASTEST:
        fix = f"write {_FASTEST:g} or less"
        raise SettingsError(f"{speed:g} leaves machines no time to start", where="local.capacity_trace.speed", fix=fix)
    return speed


def read_trace(local: Section) -> CapacityTrace:
    """The trace that a section names, with its files read. Raises SettingsError, which names the field."""
    # The simulator is loaded by those alone who play a trace.
    from perdure.recovery.simulate.files import load
    from perdure.recovery.simulate.traces import BadTrace, common_span

    speed = read_speed(local.values) or 1.0
    section = Section(local.values["capacity_trace"], f"{local.where}.capacity_trace", known=_KNOWN)
    unavailable_is = section.values.get("unavailable_is")
    if unavailable_is not in (0, 1) or isinstance(unavailable_is, bool):
        fix = "write 1 where the value 1 means that none can be had, 0 where values count machines"
        raise SettingsError("it has to be told", where=f"{section.where}.unavailable_is", fix=fix)
    try:
        zones = load(
            _paths(section),
            unavailable_is=unavailable_is,
            spot_price=_price(section, "spot_price"),
            on_demand_price=_price(section, "on_demand_price"),
        )
        common_span(zones)
    except BadTrace as error:
        fix = "see docs/simulator.md for what a trace is"
        raise SettingsError(str(error), where=f"{section.where}.paths", fix=fix) from error
    return CapacityTrace(
        zones=zones,
        speed=speed,
        is_counted=unavailable_is == 0,
        start_s=_duration(section, "start"),
        notice_s=_duration(section, "notice"),
    )


def _paths(section: Section) -> list[Path]:
    paths = section.values.get("paths")
    if not isinstance(paths, list) or not paths or not all(isinstance(p, str) and p for p in paths):
        fix = "write a list of files or folders: [/data/traces]"
        raise SettingsError(f"{paths!r} is no list of paths", where=f"{section.where}.paths", fix=fix)
    return [Path(path).expanduser() for path in paths]


def _price(section: Section, name: str) -> float | None:
    return section.number(name, above=0) if name in section.values else None


def _duration(section: Section, name: str) -> float:
    if name not in section.values:
        return 0.0
    try:
        return seconds(read_duration(section.values[name]))
    except Refused as error:
        raise SettingsError(str(error), where=f"{section.where}.{name}", fix=f"write {DURATION}") from error
