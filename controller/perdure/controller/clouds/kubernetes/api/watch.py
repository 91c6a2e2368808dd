"""A copy of some objects of a cluster that follows their changes: list, then watch, and list again when that ends.

kubernetes.io/docs/reference/using-api/api-concepts/#efficient-detection-of-changes. A list after a gap is compared with
the copy, so a deletion in the gap is not missed. Resource versions are opaque: they are stored, never compared.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from perdure.controller.clouds.kubernetes.api.client import ApiClient
from perdure.controller.clouds.kubernetes.api.errors import ApiError

PAGE_SIZE = 500
# The server ends a watch after WATCH_S, and it continues from its version, which costs one request. So a line that
# carries nothing any more is noticed after SILENCE_S, also where a proxy keeps the connection to the controller alive.
WATCH_S = 20
SILENCE_S = 26.0
MIN_RELIST_INTERVAL_S = 1.0

Object = dict[str, Any]


class ChangeHandler(Protocol):
    """Called for each change: `old` is None for a new object, `new` for one that is gone."""

    def __call__(self, old: Object | None, new: Object | None) -> None: ...


def list_objects(
    client: ApiClient, path: str, *, reduce: Callable[[Object], Object] = lambda one: one, **query: Any
) -> tuple[list[Object], str]:
    """(every object, the resource version of the list), in pages. Raises what `ApiClient.get` does.

    A list whose continuation has expired begins again without pages. `reduce`: returns the part of an object to keep;
    it is applied as they are decoded, since whole objects of a large cluster take 100 MiB.
    """
    objects: list[Object] = []
    token: str | None = None
    limit: int | None = PAGE_SIZE
    while True:
        try:
            page = client.get_page(path, reduce, **query, limit=limit, **({"continue": token} if token else {}))
        except ApiError as error:
            if error.status != 410 or token is None:
                raise
            objects, token, limit = [], None, None
            continue
        objects += page.get("items") or ()
        token = (page.get("metadata") or {}).get("continue") or None
        if token is None:
            return objects, str((page.get("metadata") or {}).get("resourceVersion", ""))


class ObjectWatch:
    """The objects of one path and selector. `run` keeps them up to date on its caller's thread.

    `reduce`: returns the part of an object to keep, since nodes list all their images. Other threads use `snapshot`.
    """

    def __init__(
        self,
        client: Callable[[], ApiClient],
        path: str,
        on_change: ChangeHandler,
        *,
        reduce: Callable[[Object], Object] = lambda one: one,
        **selectors: str,
    ) -> None:
        self._client = client
        self.path = path
        self._on_change = on_change
        self._reduce = reduce
        self._selectors = selectors
        self._version: str | None = None
        self._objects: dict[str, Object] = {}
        #: Set once the objects have been listed.
        self.is_synced = threading.Event()
        #: Called after every list.
        self.on_sync: Callable[[], None] = lambda: None

    def snapshot(self) -> list[Object]:
        """The objects as they are known now. They must not be changed."""
        return list(self._objects.values())

    def find(self, name: str) -> Object | None:
        return self._objects.get(name)

    def run_once(self) -> None:
        """List if necessary, and watch until the server ends the watch. Raises what `ApiClient` does."""
        client = self._client()
        if self._version is None:
            listed, self._version = list_objects(client, self.path, reduce=self._reduce, **self._selectors)
            self._replace_all(listed)
            self.is_synced.set()
            self.on_sync()
        started_at = time.monotonic()
        events = client.watch(
            self.path,
            silence_s=SILENCE_S,
            **self._selectors,
            resourceVersion=self._version,
            allowWatchBookmarks="true",
            timeoutSeconds=WATCH_S,
        )
        try:
            for event in events:
                if not self._apply(event):
                    self._version = None
                    return
        except ApiError as error:
            self._version = None
            if error.status != 410:
                raise
        if time.monotonic() - started_at < MIN_RELIST_INTERVAL_S:
            self._version = None  # the server does not hold the watch: list before the next one

    def _apply(self, event: Mapping[str, Any]) -> bool:
        """Apply one event. False: the version is too old, and the objects must be listed again."""
        kind, one = event.get("type"), event.get("object") or {}
        if kind == "ERROR":
            if one.get("code") == 410:
                return False
            raise ApiError(int(one.get("code") or 500), str(one.get("reason", "Error")), str(one.get("message", "")))
        self._version = str((one.get("metadata") or {}).get("resourceVersion", self._version))
        if kind in ("ADDED", "MODIFIED"):
            self._put(self._reduce(one))
        elif kind == "DELETED":
            self._remove(self._reduce(one))
        return True

    def _put(self, new: Object) -> None:
        name = new["metadata"]["name"]
        old = self._objects.get(name)
        self._objects[name] = new
        self._on_change(old, new)

    def _remove(self, last: Object) -> None:
        name = last["metadata"]["name"]
        self._objects.pop(name, None)
        self._on_change(last, None)

    def _replace_all(self, listed: list[Object]) -> None:
        before = self._objects
        after = {one["metadata"]["name"]: one for one in listed}
        self._objects = after
        for name, one in after.items():
            old = before.get(name)
            if old is None or _version_of(old) != _version_of(one):
                self._on_change(old, one)
        for name, one in before.items():
            if name not in after or after[name]["metadata"].get("uid") != one["metadata"].get("uid"):
                self._on_change(one, None)


def _version_of(one: Object) -> object:
    return one["metadata"].get("resourceVersion")
