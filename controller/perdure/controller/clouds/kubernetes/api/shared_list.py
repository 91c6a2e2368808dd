"""A list of objects that concurrent callers share: one of them fetches it, and the others use what it got."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from perdure.controller.clouds.kubernetes.api.watch import Object


class SharedList:
    """Thread-safe. `fetch` raises what `ApiClient` does; then the next caller tries."""

    def __init__(self, fetch: Callable[[], Sequence[Object]], now: Callable[[], float]) -> None:
        self._fetch = fetch
        self._now = now
        self._fetching = threading.Lock()
        self._listed: tuple[float, Sequence[Object]] | None = None
        self._lock = threading.Lock()
        self._added: list[tuple[float, Object]] = []

    def get(self, max_age_s: float = 0.0) -> list[Object]:
        """The objects as they were at most so long before this call, with those of `add`.

        With an age of 0 a list that another caller requested during this call serves as well.
        """
        oldest = self._now() - max_age_s
        with self._fetching:
            if self._listed is None or self._listed[0] < oldest:
                at = self._now()
                self._listed = (at, self._fetch())
            listed_at, objects = self._listed
        known = {one["metadata"].get("uid") for one in objects}
        with self._lock:
            self._added = [(at, one) for at, one in self._added if at >= listed_at]
            return [*objects, *(one for _, one in self._added if one["metadata"].get("uid") not in known)]

    def add(self, one: Object) -> None:
        """An object that was just created: the list may have been fetched before."""
        now = self._now()
        with self._lock:
            self._added.append((now, one))
