"""Pub/Sub beside the fake Compute Engine. A subscription exists once something is sent to it.

Every request and response is checked against the discovery document of pubsub v1.
"""

from __future__ import annotations

import base64
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from support.fakes.google_discovery import Call, Discovery, Invalid

_PUBSUB = Discovery("pubsub", "v1")
read, check_answer = _PUBSUB.read, _PUBSUB.check_answer
# Reason of Compute Engine → status, status name and reason of Pub/Sub. google.aip.dev/193
_ERRORS = {
    "rateLimitExceeded": (429, "RESOURCE_EXHAUSTED", "RATE_LIMIT_EXCEEDED"),
    "authError": (401, "UNAUTHENTICATED", "ACCESS_TOKEN_EXPIRED"),
    "forbidden": (403, "PERMISSION_DENIED", "IAM_PERMISSION_DENIED"),
    "notFound": (404, "NOT_FOUND", ""),
    "alreadyExists": (409, "ALREADY_EXISTS", ""),
    "aborted": (409, "ABORTED", ""),
    "accessNotConfigured": (403, "PERMISSION_DENIED", "SERVICE_DISABLED"),
    "SERVICE_DISABLED": (403, "PERMISSION_DENIED", "SERVICE_DISABLED"),
}


@dataclass
class PubSub:
    """Subscriptions. A message that is not acknowledged is delivered again at once."""

    held_s: float = 0.0  # how long a pull waits for a message
    _messages: dict[str, dict[str, bytes]] = field(default_factory=dict)
    _ids: Any = field(default_factory=lambda: count(1))
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def send(self, subscription: str, data: bytes) -> None:
        with self._changed:
            self._messages.setdefault(subscription, {})[str(next(self._ids))] = data
            self._changed.notify_all()

    def count(self, subscription: str) -> int:
        """How many messages are not acknowledged."""
        with self._changed:
            return len(self._messages.get(subscription, ()))

    def answer(self, call: Call) -> dict[str, Any]:
        name = call.parameters["subscription"]
        with self._changed:
            if name not in self._messages:
                raise Invalid(404, "notFound", f"Resource not found (resource={name.rpartition('/')[2]}).")
            waiting = self._messages[name]
            if call.method.endswith(".acknowledge"):
                for ack_id in call.body["ackIds"]:
                    waiting.pop(ack_id.removeprefix("ack-"), None)
                return {}
            self._changed.wait_for(lambda: waiting, self.held_s)
            pulled = list(waiting.items())[: call.body["maxMessages"]]
        # Google omits empty fields.
        return {"receivedMessages": [_received(id, data) for id, data in pulled]} if pulled else {}


def error(invalid: Invalid) -> tuple[int, dict[str, Any]]:
    """(status, body) of an error, in the form of Google's newer services"""
    status, name, reason = _ERRORS.get(invalid.reason, (invalid.status, "INVALID_ARGUMENT", ""))
    info = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": reason, "domain": "googleapis.com"}
    error = {"code": status, "message": str(invalid), "status": name, "details": [info] if reason else []}
    return status, {"error": error}


def _received(id: str, data: bytes) -> Mapping[str, Any]:
    message = {"data": base64.b64encode(data).decode(), "messageId": id, "publishTime": "2026-11-22T20:00:00.123Z"}
    return {"ackId": f"ack-{id}", "message": message}
