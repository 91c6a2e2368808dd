"""What AWS is asked twice a day, region by region, because it changes seldom and takes long to tell."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

import structlog

from holdfast.controller.clock import Clock
from holdfast.controller.clouds.aws import faults

log = structlog.get_logger(__name__)

AGE_S = 12 * 3600.0
Told = TypeVar("Told")


class Seldom(Generic[Told]):
    """Shared by threads. `what`: for the log. `ask(region)`: name → what is told of it."""

    def __init__(self, what: str, ask: Callable[[str], Mapping[str, Told]], clock: Clock) -> None:
        self._what = what
        self._ask = ask
        self._clock = clock
        self._lock = threading.Lock()
        self._known: dict[str, tuple[float, Mapping[str, Told]]] = {}

    def of_region(self, region: str) -> Mapping[str, Told]:
        """What was told last, while AWS does not answer, or may not be asked (by a policy that was made for an older
        version); empty if nothing ever was."""
        now = self._clock.now()
        with self._lock:
            at, known = self._known.get(region, (float("-inf"), {}))
        if now - at < AGE_S:
            return known
        try:
            known = self._ask(region)
        except Exception as error:  # noqa: BLE001 - the table stands in
            log.warning("aws.not_told", what=self._what, region=region, error=faults.classify(error).message)
            return known
        with self._lock:
            self._known[region] = (now, known)
        return known
