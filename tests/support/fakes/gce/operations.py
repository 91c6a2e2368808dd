"""Operations: started by a call, completed or failed later."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

LINKS = "https://www.googleapis.com/compute/v1"


@dataclass
class Operation:
    """One operation. Times are epoch seconds."""

    id: int
    project: str
    zone: str  # or `regions/…`, or `global`
    kind: str
    target: str
    inserted_at: float
    due_at: float | None  # when it completes; None: when something else ends it
    client_id: str = ""
    group: str = ""
    errors: Sequence[Mapping[str, str]] = ()
    user: str = "perdure@perdure-test.iam.gserviceaccount.com"
    ended_at: float | None = None
    finish: Callable[[float], None] = field(default=lambda _: None)

    @property
    def name(self) -> str:
        return f"operation-{self.id:013d}"

    def to_json(self) -> dict[str, Any]:
        scope = link_of(self.project, scope_of(self.zone))
        body: dict[str, Any] = {
            "kind": "compute#operation",
            "id": str(self.id),
            "name": self.name,
            "operationType": self.kind,
            "targetLink": self.target,
            "selfLink": f"{scope}/operations/{self.name}",
            "status": "RUNNING" if self.ended_at is None else "DONE",
            "progress": 0 if self.ended_at is None else 100,
            "user": self.user,
            "insertTime": rfc3339(self.inserted_at),
            "startTime": rfc3339(self.inserted_at),
        }
        if (kind := scope_of(self.zone).partition("/")[0]) != "global":
            body[kind.removesuffix("s")] = scope
        if self.client_id:
            body["clientOperationId"] = self.client_id
        if self.group:
            body["operationGroupId"] = self.group
        if self.ended_at is not None:
            body["endTime"] = rfc3339(self.ended_at)
            if self.errors:
                body["error"] = {"errors": [dict(error) for error in self.errors]}
        return body


class Operations:
    """All operations since the start, in order."""

    def __init__(self) -> None:
        self._all: dict[str, Operation] = {}
        self._ids = itertools.count(1)

    def begin(self, project: str, zone: str, kind: str, target: str, now: float, **more: Any) -> Operation:
        one = Operation(next(self._ids), project, zone, kind, target, now, **{"due_at": now, **more})
        self._all[one.name] = one
        return one

    def settle(self, now: float) -> None:
        """Complete the operations that are due."""
        for one in list(self._all.values()):
            if one.ended_at is None and one.due_at is not None and one.due_at <= now:
                end(one, one.due_at)

    def get(self, zone: str, name: str) -> Operation | None:
        one = self._all.get(name)
        return one if one is not None and scope_of(one.zone) == scope_of(zone) else None

    def by_client_id(self, zone: str, client_id: str) -> Operation | None:
        return next((one for one in self.of(zone) if client_id and one.client_id == client_id), None)

    def forget_client_ids(self) -> None:
        for one in self._all.values():
            one.client_id = ""

    def of(self, zone: str) -> Iterator[Operation]:
        return (one for one in self._all.values() if scope_of(one.zone) == scope_of(zone))


def end(one: Operation, at: float) -> None:
    """Complete an operation."""
    one.ended_at = at
    one.finish(at)


def scope_of(zone: str) -> str:
    return zone if "/" in zone or zone == "global" else f"zones/{zone}"


def link_of(project: str, scope: str) -> str:
    return f"{LINKS}/projects/{project}/{scope}"


def rfc3339(epoch_s: float) -> str:
    """A time as Google writes it: with milliseconds and an offset."""
    at = datetime.fromtimestamp(round(epoch_s, 3), UTC)
    return at.isoformat(timespec="milliseconds")
