"""Where a cloud keeps what was fetched from it, for this process, for the next one, and for others beside it.

A cloud knows this Protocol alone: the daemon hands it one that is a table of the database (`controller/fetched.py`),
whoever has no database `InMemory`. What is kept is plain JSON, whose form is the cloud's own affair.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from perdure.controller.clock import Clock


@dataclass(frozen=True)
class Page:
    """What one region told. `at`: when (epoch seconds, by the reader's clock); `by`: the controller that asked.

    `told` is what `remember` was given. `stamp` is the database's: it changes when the page does.
    """

    region: str
    at: float
    by: str
    told: Mapping[str, Any]
    stamp: float


class OfferCache(Protocol):
    """Safe to use from any thread. No method raises: what can not be kept is not kept, and what can not be read is not
    there; it is logged. `by`: the controller in whose name it keeps."""

    by: str

    def recall(self, cloud: str, known: Mapping[str, float]) -> Sequence[Page]:
        """Every region's page, but those that are `known` (region → stamp) as they are."""
        ...

    def claim(self, cloud: str, region: str, *, age_s: float) -> bool:
        """Whether the caller is to fetch this region now: what is kept of it is `age_s` old or more, and nobody else
        is at it. It is nobody else's for a minute then, or until `remember`."""
        ...

    def remember(self, cloud: str, region: str, told: Mapping[str, Any]) -> float | None:
        """Keep it as the region's page, as of now. Its stamp; None if it is not kept."""
        ...


class InMemory:
    """An `OfferCache` for one process, which is alone."""

    def __init__(self, clock: Clock, by: str = "") -> None:
        self.by = by
        self._clock = clock
        self._lock = threading.Lock()
        self._pages: dict[tuple[str, str], Page] = {}

    def recall(self, cloud: str, known: Mapping[str, float]) -> Sequence[Page]:
        with self._lock:
            pages = [page for (of, _), page in self._pages.items() if of == cloud]
        return [page for page in pages if known.get(page.region) != page.stamp]

    def claim(self, cloud: str, region: str, *, age_s: float) -> bool:
        with self._lock:
            page = self._pages.get((cloud, region))
        return page is None or self._clock.now() - page.at >= age_s

    def remember(self, cloud: str, region: str, told: Mapping[str, Any]) -> float | None:
        now = self._clock.now()
        with self._lock:
            self._pages[cloud, region] = Page(region, now, self.by, told, stamp=now)
        return now
