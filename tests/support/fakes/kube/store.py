"""The objects of the fake cluster, their versions and their history, as etcd and the watch cache keep them."""

from __future__ import annotations

import copy
import itertools
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

Object = dict[str, Any]
Key = tuple[str, str, str]  # resource, namespace ("" for a cluster's own), name


class Rejected(Exception):
    """An answer with a status of 400 or more."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status, self.reason = status, reason


class Store:
    """Every change increments the version and notifies watches. `lock` guards everything."""

    def __init__(self, history: int) -> None:
        self.lock = threading.Condition(threading.RLock())
        self.version = 100
        self.objects: dict[Key, Object] = {}
        self._keys: dict[str, list[Key]] = {}  # of each resource, in order, until one comes or goes
        self._history: deque[tuple[int, str, str, Object, Object | None]] = deque(maxlen=history)
        self._compacted = 100
        self.on_change: Callable[[], None] = lambda: None

    def get(self, resource: str, namespace: str, name: str) -> Object:
        try:
            return self.objects[resource, namespace, name]
        except KeyError:
            raise Rejected(404, "NotFound", f'{resource} "{name}" not found') from None

    def all(self, resource: str, namespace: str | None = None) -> list[Object]:
        if resource not in self._keys:
            self._keys[resource] = sorted(key for key in self.objects if key[0] == resource)
        return [self.objects[key] for key in self._keys[resource] if namespace in (None, key[1])]

    def create(self, resource: str, namespace: str, one: Object) -> Object:
        name = one["metadata"]["name"]
        if (resource, namespace, name) in self.objects:
            raise Rejected(409, "AlreadyExists", f'{resource} "{name}" already exists')
        one = copy.deepcopy(one)
        one["metadata"] |= {"uid": str(uuid.uuid4()), "creationTimestamp": timestamp()}
        if namespace:
            one["metadata"]["namespace"] = namespace
        return self._store("ADDED", (resource, namespace, name), one)

    def update(self, resource: str, namespace: str, one: Object) -> Object:
        """Replace an object; one that is being deleted and has no finalizer left is removed."""
        key = (resource, namespace, one["metadata"]["name"])
        if _is_finished(one):
            return self.remove(key, one)
        return self._store("MODIFIED", key, copy.deepcopy(one))

    def remove(self, key: Key, last: Object | None = None) -> Object:
        one = last or self.objects[key]
        if one["metadata"].get("finalizers"):
            one["metadata"].setdefault("deletionTimestamp", timestamp())
            return self._store("MODIFIED", key, copy.deepcopy(one))
        return self._store("DELETED", key, copy.deepcopy(one))

    def compact(self) -> None:
        """Forget all history: every watch and every page that continues an older list gets 410."""
        with self.lock:
            self._history.clear()
            self._compacted = self.version
            self.lock.notify_all()

    def is_compacted(self, version: int) -> bool:
        oldest = self._history[0][0] - 1 if len(self._history) == self._history.maxlen else self._compacted
        return version < max(oldest, self._compacted)

    def events_since(self, version: int, resource: str) -> Iterator[tuple[int, str, Object, Object | None]]:
        """(version, type, object, the object before) of each later change."""
        newer = itertools.takewhile(lambda entry: entry[0] > version, reversed(self._history))
        return iter([(v, kind, one, old) for v, kind, of, one, old in newer if of == resource][::-1])

    def _store(self, kind: str, key: Key, one: Object) -> Object:
        self.version += 1
        one["metadata"]["resourceVersion"] = str(self.version)
        old = self.objects.get(key)
        if old is None or kind == "DELETED":
            self._keys.pop(key[0], None)
        if kind == "DELETED":
            self.objects.pop(key, None)
            self._remove_dependents(one)
        else:
            self.objects[key] = one
        self._history.append((self.version, kind, key[0], one, old))
        self.lock.notify_all()
        return copy.deepcopy(one)

    def _remove_dependents(self, owner: Object) -> None:
        """The garbage collector: what a removed object owns is removed."""
        uid = owner["metadata"]["uid"]
        for key, one in list(self.objects.items()):
            owners = one["metadata"].get("ownerReferences") or ()
            if any(reference["uid"] == uid for reference in owners) and key in self.objects:
                self.remove(key, one)


def _is_finished(one: Object) -> bool:
    metadata = one["metadata"]
    return (
        "deletionTimestamp" in metadata
        and not metadata.get("finalizers")
        and not metadata.get("deletionGracePeriodSeconds")
    )


def timestamp(after_s: float = 0.0) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + after_s))  # noqa: TID251 - a cluster has the real clock
