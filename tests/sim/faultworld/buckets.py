"""Temporary buckets in memory, and the client with which a process calls their store."""

from __future__ import annotations

from collections.abc import Callable
from typing import IO, TYPE_CHECKING, Any, TypeVar

from perdure.controller.clouds.base.protocol import Fault
from perdure.recovery.market.unavailable import FaultKind
from perdure.recovery.reasons import Reason

if TYPE_CHECKING:
    from faultworld.process import Process
    from faultworld.world import World

_Result = TypeVar("_Result")


class BucketStore:
    """Buckets in memory, with outages."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.names: set[str] = set()  # of the buckets that exist
        self.unavailable_until = 0.0

    def ensure(self, bucket: str) -> bool:
        self._require_available()
        is_new = bucket not in self.names
        self.names.add(bucket)
        return is_new

    def exists(self, bucket: str) -> bool:
        self._require_available()
        return bucket in self.names

    def put(self, bucket: str, key: str, body: IO[bytes]) -> None:
        self._require_available()

    def remove(self, bucket: str) -> None:
        self._require_available()
        self.names.discard(bucket)
        self.world.invariants.on_bucket_removed(bucket)

    def _require_available(self) -> None:
        if self.world.scheduler.now() < self.unavailable_until:
            raise OSError("the store does not answer")


class BucketStoreClient:
    """One process's `Store`, with a failpoint before each call and one before its response is used."""

    name = "local"

    def __init__(self, process: Process) -> None:
        self._process, self._buckets = process, process.world.buckets

    def ensure(self, bucket: str) -> bool:
        return self._call(self._buckets.ensure, bucket)

    def exists(self, bucket: str) -> bool:
        return self._call(self._buckets.exists, bucket)

    def put(self, bucket: str, key: str, body: IO[bytes]) -> None:
        self._call(self._buckets.put, bucket, key, body)

    def remove(self, bucket: str) -> None:
        self._call(self._buckets.remove, bucket)

    def rclone_remote(self, bucket: str, _access: Any) -> dict[str, object]:
        return {"type": "local", "root": "/"}

    def classify(self, error: Exception) -> Fault:
        """Classify an error: only those of the store itself are transient."""
        if isinstance(error, OSError):
            return Fault(FaultKind.RETRY_LATER, Reason.THROTTLED, "Broken", str(error), 15.0)
        return Fault(FaultKind.GIVE_UP, Reason.BAD_REQUEST, type(error).__name__, str(error))

    def _call(self, method: Callable[..., _Result], *args: Any) -> _Result:
        self._process.failpoint(f"before {method.__name__}")
        result = method(*args)
        self._process.failpoint(f"after {method.__name__}")
        return result
