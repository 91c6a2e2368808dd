"""Runs one scenario from its beginning to its rest, and says what came of it."""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import structlog

from faultworld.database import as_a_server
from faultworld.judge import Violation
from faultworld.scenario import Scenario
from faultworld.world import World


def _pass_over_the_dead(unraisable: Any) -> None:
    """Coroutines of a process that died are thrown away in the middle of what they did."""
    if "Channel.serve" not in repr(unraisable.object):
        sys.__unraisablehook__(unraisable)


sys.unraisablehook = _pass_over_the_dead


@dataclass(frozen=True)
class History:
    """`violation`: None where every invariant held. `met`: how often each kind of fault met something."""

    scenario: Scenario
    violation: Violation | None
    met: Counter[str]
    story: str
    checks: int
    virtual_s: float


def run(scenario: Scenario) -> History:
    """Let `scenario` happen. Histories run one after another: they share this process's database."""
    world = World(scenario)
    with _listening(world), as_a_server(world) as world.notices:
        world.run()
    virtual_s = world.scheduler.now() - 1_800_000_000.0
    return History(scenario, world.judge.first, world.met, world.story.text(), world.judge.checks, virtual_s)


@contextmanager
def _listening(world: World) -> Iterator[None]:
    """The controller's log lines go into the judge's ear."""

    def hear(_: Any, method: str, line: MutableMapping[str, Any]) -> Any:
        if line.get("event") in ("turn.failed", "intent.worker_failed"):
            world.judge.turn_failed(f"{line}")
        raise structlog.DropEvent

    before = structlog.get_config()
    structlog.configure(
        processors=[structlog.processors.format_exc_info, hear], wrapper_class=structlog.make_filtering_bound_logger(40)
    )
    was_collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_collecting:
            gc.enable()
        structlog.configure(**before)
