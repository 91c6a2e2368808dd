"""A cache for data of AWS that rarely changes and takes long to fetch: region by region, twice a day."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

import structlog

from perdure.controller.clouds.aws import faults
from perdure.controller.runtime.clock import Clock

log = structlog.get_logger(__name__)

AGE_S = 12 * 3600.0
RETRY_AFTER_FAILURE_S = 60.0
"""After a failure for one region, fetches for all regions pause this long: each would wait for its own time-out."""

V = TypeVar("V")


class TtlCache(Generic[V]):
    """Thread-safe. `what`: for the log. `fetch`: region → values by name."""

    def __init__(self, what: str, fetch: Callable[[str], Mapping[str, V]], clock: Clock) -> None:
        self._what = what
        self._fetch_values = fetch
        self._clock = clock
        self._lock = threading.Lock()
        # One thread fetches all regions in turn: the responses are long, and each thread that parses one retains its
        # memory.
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=f"aws-{what}")
        self._paused_until = float("-inf")
        self._values: dict[str, tuple[float, Mapping[str, V]]] = {}

    def get(self, region: str) -> Mapping[str, V]:
        """The newest values. While AWS does not respond, or the policy does not allow the call: the previous values;
        empty if there are none."""
        now = self._clock.now()
        with self._lock:
            at, known = self._values.get(region, (float("-inf"), {}))
        if now - at < AGE_S:
            return known
        return self._executor.submit(self._fetch, region, known).result()

    def _fetch(self, region: str, known: Mapping[str, V]) -> Mapping[str, V]:
        now = self._clock.now()
        if now < self._paused_until:
            return known
        try:
            values = self._fetch_values(region)
        except Exception as error:  # noqa: BLE001 - the built-in table is the fallback
            self._paused_until = now + RETRY_AFTER_FAILURE_S
            log.warning("aws.unavailable", what=self._what, region=region, error=faults.classify(error).message)
            return known
        with self._lock:
            self._values[region] = (now, values)
        return values
