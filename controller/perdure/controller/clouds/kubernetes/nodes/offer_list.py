"""The offers of a context, read in the background: decisions about other clouds must not wait for this cluster."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from perdure.controller.runtime.clock import Clock
from perdure.recovery.market.view import Offer

MAX_AGE_S = 15.0
RETRY_AFTER_FAILURE_S = 30.0
FIRST_READ_TIMEOUT_S = 10.0


class OfferList:
    """The offers of one context. Thread-safe."""

    def __init__(
        self, read_offers: Callable[[], Sequence[Offer]], on_error: Callable[[Exception], None], clock: Clock
    ) -> None:
        """`read_offers` calls the cluster. `on_error` gets what it raises; the last offers stay."""
        self._read_offers = read_offers
        self._on_error = on_error
        self._clock = clock
        self._condition = threading.Condition()
        self._offers: tuple[Offer, ...] = ()
        self._next_at = float("-inf")
        self._is_reading = False
        self._has_read = False

    def offers(self) -> tuple[Offer, ...]:
        """The last offers. Only the first call waits for the cluster, and not for long."""
        with self._condition:
            if not self._is_reading and self._clock.now() >= self._next_at:
                self._is_reading = True
                threading.Thread(target=self._read_once, name="kubernetes-offers", daemon=True).start()
            if not self._has_read:
                self._condition.wait_for(lambda: self._has_read, FIRST_READ_TIMEOUT_S)
            return self._offers

    def _read_once(self) -> None:
        pause_s, offers = MAX_AGE_S, self._offers
        try:
            offers = tuple(self._read_offers())
        except Exception as error:  # noqa: BLE001 - the caller's own errors; other contexts have offers
            pause_s = RETRY_AFTER_FAILURE_S
            self._on_error(error)
        with self._condition:
            if offers != self._offers:  # the same object as long as nothing changes: callers cache by identity
                self._offers = offers
            self._next_at = self._clock.now() + pause_s
            self._is_reading, self._has_read = False, True
            self._condition.notify_all()
