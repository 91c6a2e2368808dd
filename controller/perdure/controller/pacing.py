"""How fast the controller's time runs: as the world's, unless a capacity trace is played back faster."""

from __future__ import annotations

from dataclasses import replace

from sqlalchemy import Connection

from perdure.controller.clock import REAL_TIME, Pace
from perdure.controller.leases import fact, remember
from perdure.controller.settings import Settings, SettingsError
from perdure.recovery.job import Limits

_FACT = "pace"
_REAL_CLOUDS = ("aws", "gcp", "azure", "kubernetes")


def pace_of(conn: Connection, settings: Settings, speed: float | None, now: float) -> Pace:
    """The pace of this database's controllers: for good, once a trace was played, since what is stored is in its time.

    `speed`: what is asked for; None: no trace is played. `now`: the world's time. Raises SettingsError.
    """
    if speed is not None:
        _check(settings)
    kept = fact(conn, _FACT)
    if kept is None and speed is None:
        return REAL_TIME
    if kept is None:
        kept = f"{speed!r} since {now!r}"
        remember(conn, _FACT, kept)
    found, _, since = kept.partition(" since ")
    if speed is None or float(found) != speed:
        raise SettingsError(
            f"{settings.home}: the time of this controller has run {float(found):g} times as fast as the world's, and "
            "can not run otherwise now: leave local.capacity_trace as it was, or take another PERDURE_HOME"
        )
    return Pace(float(since), float(found))


def paced(limits: Limits, pace: Pace) -> Limits:
    """`limits` by the controller's clock: those of machines and networks last as long as they do in the world."""
    return replace(
        limits,
        boot_timeout_s=limits.boot_timeout_s * pace.speed,
        silent_s=limits.silent_s * pace.speed,
        drain_s=limits.drain_s * pace.speed,
        recheck_s=limits.recheck_s * pace.speed,
    )


def _check(settings: Settings) -> None:
    if not settings.is_alone:
        raise SettingsError("local.capacity_trace: several controllers share one time: play it on one with SQLite")
    real = [name for name in _REAL_CLOUDS if name in settings.sections]
    if real:
        raise SettingsError(f"local.capacity_trace: {real[0]} lives in real time: take its section out, or the trace")
