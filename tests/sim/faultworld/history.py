"""Runs one scenario until nothing is left to do, and returns its history."""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import structlog

from faultworld.database import bind_database
from faultworld.invariants import Violation
from faultworld.scenario import Scenario
from faultworld.virtual_time import START
from faultworld.world import World


def _ignore_dropped_coroutines(unraisable: sys.UnraisableHookArgs) -> None:
    """Coroutines of a dead process are dropped while they run, which is no error."""
    if "NodeSessions.serve" not in repr(unraisable.object):
        sys.__unraisablehook__(unraisable)


sys.unraisablehook = _ignore_dropped_coroutines


@dataclass(frozen=True)
class History:
    """What happened in one scenario."""

    scenario: Scenario
    violation: Violation | None  # None: every invariant held
    fault_counts: Counter[str]  # how often each kind of fault had an effect, and what followed from faults
    trace: str
    transactions: int  # how many were checked
    virtual_s: float


def run(scenario: Scenario) -> History:
    """Run `scenario`. Histories run one after another, because they share this process's database."""
    world = World(scenario)
    with _capture_log(world), bind_database(world) as world.notifications:
        world.run()
    virtual_s = world.scheduler.now() - START
    return History(
        scenario,
        world.invariants.first_violation,
        world.fault_counts,
        world.trace.text(),
        world.invariants.transactions,
        virtual_s,
    )


@contextmanager
def _capture_log(world: World) -> Iterator[None]:
    """Report every error in the controller's log as a violation: nothing in this world may cause one."""

    def on_line(_: Any, method: str, line: MutableMapping[str, Any]) -> Any:
        world.invariants.on_error(f"{line}")
        raise structlog.DropEvent

    before = structlog.get_config()
    structlog.configure(
        processors=[structlog.processors.format_exc_info, on_line],
        wrapper_class=structlog.make_filtering_bound_logger(40),
    )
    was_collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_collecting:
            gc.enable()
        structlog.configure(**before)
