"""How fast the controller's clock runs: in real time, unless it replays a capacity trace faster."""

from __future__ import annotations

from dataclasses import replace

from sqlalchemy import Connection

from perdure.controller.clouds import registry
from perdure.controller.runtime.clock import REAL_TIME, TimeScale
from perdure.controller.runtime.config.config_file import SettingsError
from perdure.controller.runtime.config.settings import Settings
from perdure.controller.store.records import facts
from perdure.recovery.job import Timeouts

_FACT = "time_scale"


def load_time_scale(conn: Connection, settings: Settings, speed: float | None, now: float) -> TimeScale:
    """The time scale of this database's controllers.

    It never changes once a trace was replayed, since the stored times are in that scale. `speed`: the requested speed;
    None if no trace is replayed. `now`: the wall clock. Raises SettingsError.
    """
    if speed is not None:
        _check(settings)
    stored = facts.get(conn, _FACT)
    if stored is None and speed is None:
        return REAL_TIME
    if stored is None:
        stored = f"{speed!r} since {now!r}"
        facts.set(conn, _FACT, stored)
    time_scale = _parse(stored)
    if speed is None or time_scale.speed != speed:
        raise SettingsError(
            f"{settings.home}: this controller's clock runs {time_scale.speed:g} times as fast as real time, and "
            "that cannot change: restore local.capacity_trace as it was, or use another PERDURE_HOME"
        )
    return time_scale


def stored_time_scale(conn: Connection) -> TimeScale:
    """The time scale with which this database has been used so far."""
    stored = facts.get(conn, _FACT)
    return REAL_TIME if stored is None else _parse(stored)


def _parse(stored: str) -> TimeScale:
    speed, _, since = stored.partition(" since ")
    return TimeScale(float(since), float(speed))


def scale_timeouts(timeouts: Timeouts, time_scale: TimeScale) -> Timeouts:
    """`timeouts` in seconds of the controller's clock: those of machines and networks last as long in real time."""
    return replace(
        timeouts,
        boot_timeout_s=timeouts.boot_timeout_s * time_scale.speed,
        node_timeout_s=timeouts.node_timeout_s * time_scale.speed,
        drain_timeout_s=timeouts.drain_timeout_s * time_scale.speed,
        describe_interval_s=timeouts.describe_interval_s * time_scale.speed,
    )


def _check(settings: Settings) -> None:
    if not settings.is_single_controller:
        raise SettingsError(
            "local.capacity_trace: several controllers share one clock; replay the trace on one controller with SQLite"
        )
    real = [name for name in registry.real_time_clouds() if name in settings.sections]
    if real:
        raise SettingsError(f"local.capacity_trace: {real[0]} runs in real time; remove its section, or the trace")
