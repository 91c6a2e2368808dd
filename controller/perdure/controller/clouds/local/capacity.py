"""Recorded spot capacity and prices, played back faster than real time: `local.capacity_trace`.

    local:
      capacity_trace:
        paths: [/data/traces/aws-v100]   # files as `perdure simulate` reads them, or folders of them
        unavailable_is: 1                # the meaning of a value: see docs/guides/simulate.md
        speed: 600                       # ten minutes of the trace, and of the controller's time, in a second
        start: 120h                      # where to begin in the traces; default 0
        notice: 2m                       # how long before a preemption the machine gets its notice; default: no notice
        spot_price: 0.9                  # for files without prices; also on_demand_price

A machine's host knows the time of its preemption from the start and carries it out, even without a controller.
On-demand capacity is unlimited. After the end of the traces, their last values stay in force.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from perdure.controller.clouds.base.config_section import Section, SectionError
from perdure.controller.runtime.config.config_key import ConfigKey, child_names
from perdure.sdk.spec.problems import InvalidValue
from perdure.sdk.spec.values.deadlines import DURATION, parse_duration, seconds

if TYPE_CHECKING:
    from perdure.recovery.simulate.traces import ZoneTrace

_MAX_SPEED = 3600.0

_PATH = "local.capacity_trace"
TRACE_KEYS = (
    ConfigKey(f"{_PATH}.paths", "list of paths", "required", "Trace files, or folders of them, to play back."),
    ConfigKey(
        f"{_PATH}.unavailable_is",
        "0 or 1",
        "required",
        "1: the value 1 means that a zone has no capacity; 0: values count available machines.",
    ),
    ConfigKey(
        f"{_PATH}.speed", "number", "1", f"How many times faster than real time it plays, at most {_MAX_SPEED:g}."
    ),
    ConfigKey(f"{_PATH}.start", "duration", "0", "Where in the traces playback starts, such as 120h."),
    ConfigKey(
        f"{_PATH}.notice", "duration", "0 (no notice)", "How long before its interruption a machine is notified."
    ),
    ConfigKey(f"{_PATH}.spot_price", "number", "that of the files", "The spot price if the files have none.", "USD/h"),
    ConfigKey(
        f"{_PATH}.on_demand_price",
        "number",
        "that of the files",
        "The on-demand price if the files have none.",
        "USD/h",
    ),
)


@dataclass(frozen=True)
class CapacityTrace:
    """The traces of all zones and how to play them back."""

    zones: tuple[ZoneTrace, ...]
    speed: float  # seconds of the trace per second of real time
    is_counted: bool  # the traces count machines; otherwise a zone has unlimited capacity or none
    start_s: float = 0.0  # where in the traces the playback begins
    notice_s: float = 0.0

    def playback(self, since: float) -> Playback:
        """The traces played from `since` on (epoch seconds of the controller's clock)."""
        begin, _ = self.span
        return Playback(self, begin + self.start_s - since)

    @property
    def span(self) -> tuple[float, float]:
        """The first and the last moment for which all zones have records."""
        from perdure.recovery.simulate.traces import common_span

        return common_span(self.zones)


@dataclass(frozen=True)
class Playback:
    """A running playback. All times are the controller's; adding `offset_s` gives the traces' time."""

    trace: CapacityTrace
    offset_s: float

    def spot_price(self, zone: str, now: float) -> float:
        return self._zone(zone).price(now + self.offset_s)

    def free(self, zone: str, count: int, used: Collection[int], now: float) -> list[int] | None:
        """Numbers of `count` free slots besides those in `used`; None if there are fewer.

        Slot N exists while the zone's capacity is at least N. Slots that end within the notice are not free.
        """
        if not self.trace.is_counted:
            return [1] * count if self._capacity(zone, now) else None
        free = [slot for slot in range(1, self._capacity(zone, now) + 1) if slot not in used]
        return free[:count] if len(free) >= count else None

    def sells(self, zone: str, instance_type: str) -> bool:
        return self._zone(zone).instance_type == instance_type

    def preempted_at(self, zone: str, slot: int, now: float) -> float:
        """When a machine that is launched now in that slot is preempted; infinity if never."""
        return self._zone(zone).next_change(slot, now + self.offset_s) - self.offset_s

    def position_h(self, now: float) -> tuple[float, float]:
        """(hours since the begin of the traces, hours that the traces last)."""
        begin, end = self.trace.span
        return (now + self.offset_s - begin) / 3600, (end - begin) / 3600

    def _capacity(self, zone: str, now: float) -> int:
        trace, at = self._zone(zone), now + self.offset_s
        return min(trace.counts[trace.tick(at)], trace.counts[trace.tick(at + self.trace.notice_s)])

    def _zone(self, name: str) -> ZoneTrace:
        return next(z for z in self.trace.zones if z.zone == name)


def read_speed(local: object) -> float | None:
    """The speed of the controller's time that the `local:` section sets; None without a trace. Raises SettingsError."""
    section = Section({} if local is None else local, "local")
    if "capacity_trace" not in section.values:
        return None
    speed = section.subsection("capacity_trace").number("speed", 1.0, above=0)
    if speed > _MAX_SPEED:
        fix = f"write {_MAX_SPEED:g} or less"
        raise SectionError(f"{speed:g} leaves machines no time to start", where="local.capacity_trace.speed", fix=fix)
    return speed


def read_trace(local: Section) -> CapacityTrace:
    """Read the trace that a section names. Raises SettingsError, which names the field."""
    # Only a controller that plays a trace imports the simulator.
    from perdure.recovery.simulate.files import load
    from perdure.recovery.simulate.traces import BadTrace, common_span

    speed = read_speed(local.values) or 1.0
    section = Section(
        local.values["capacity_trace"], f"{local.where}.capacity_trace", known=child_names(TRACE_KEYS, _PATH)
    )
    unavailable_is = section.values.get("unavailable_is")
    if unavailable_is not in (0, 1) or isinstance(unavailable_is, bool):
        fix = "write 1 if the value 1 means that the zone has no capacity, 0 if values count machines"
        raise SectionError("it must be 0 or 1", where=f"{section.where}.unavailable_is", fix=fix)
    try:
        zones = load(
            _paths(section),
            unavailable_is=unavailable_is,
            spot_price=_price(section, "spot_price"),
            on_demand_price=_price(section, "on_demand_price"),
        )
        common_span(zones)
    except BadTrace as error:
        fix = "see docs/guides/simulate.md for the format of traces"
        raise SectionError(str(error), where=f"{section.where}.paths", fix=fix) from error
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
        raise SectionError(f"{paths!r} is not a list of paths", where=f"{section.where}.paths", fix=fix)
    return [Path(path).expanduser() for path in paths]


def _price(section: Section, name: str) -> float | None:
    return section.number(name, above=0) if name in section.values else None


def _duration(section: Section, name: str) -> float:
    if name not in section.values:
        return 0.0
    try:
        return seconds(parse_duration(section.values[name]))
    except InvalidValue as error:
        raise SectionError(str(error), where=f"{section.where}.{name}", fix=f"write {DURATION}") from error
