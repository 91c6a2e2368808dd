"""What AWS is asked twice a day, region by region, because it changes seldom and takes long to tell."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

import structlog

from perdure.controller.clock import Clock
from perdure.controller.clouds.aws import faults

log = structlog.get_logger(__name__)

AGE_S = 12 * 3600.0
SILENT_S = 60.0
"""Who has not answered for one region is not asked of others for so long: each would have to wait for its time-out."""

Told = TypeVar("Told")


class Seldom(Generic[Told]):
    """Shared by threads. `what`: for the log. `ask(region)`: name → what is told of it."""

    def __init__(self, what: str, ask: Callable[[str], Mapping[str, Told]], clock: Clock) -> None:
        self._what = what
        self._ask = ask
        self._clock = clock
        self._lock = threading.Lock()
        # By one thread, after each other: these are long answers, and threads that read them side by side each keep the
        # memory that it took.
        self._asking = ThreadPoolExecutor(1, thread_name_prefix=f"aws-{what}")
        self._silent_until = float("-inf")
        self._known: dict[str, tuple[float, Mapping[str, Told]]] = {}

    def of_region(self, region: str) -> Mapping[str, Told]:
        """What was told last, while AWS does not answer, or may not be asked (by a policy that was made for an older
        version); empty if nothing ever was."""
        now = self._clock.now()
        with self._lock:
            at, known = self._known.get(region, (float("-inf"), {}))
        if now - at < AGE_S:
            return known
        return self._asking.submit(self._asked, region, known).result()

    def _asked(self, region: str, known: Mapping[str, Told]) -> Mapping[str, Told]:
        now = self._clock.now()
        if now < self._silent_until:
            return known
        try:
            told = self._ask(region)
        except Exception as error:  # noqa: BLE001 - the table stands in
            self._silent_until = now + SILENT_S
            log.warning("aws.not_told", what=self._what, region=region, error=faults.classify(error).message)
            return known
        with self._lock:
            self._known[region] = (now, told)
        return told
