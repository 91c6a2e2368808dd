"""What an API server, or the way to it, answers instead of an object."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


class ApiError(Exception):
    """An HTTP status of 400 or more, with the server's `Status` object."""

    def __init__(
        self, status: int, reason: str, message: str, *, retry_after_s: float | None = None, where: str = ""
    ) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason  # such as NotFound, AlreadyExists, Forbidden
        self.message = message
        self.retry_after_s = retry_after_s
        self.where = where  # the request, for logs

    def __str__(self) -> str:
        return self.message


class NotConnected(ConnectionError):
    """The request was not sent: no connection, or no TLS session, could be made."""


class ConnectionBroken(ConnectionError):
    """The connection ended after the request may have reached the server: its effect is unknown."""


def api_error(status: int, headers: Mapping[str, str], body: bytes, where: str) -> ApiError:
    """The error of a response."""
    try:
        data: Any = json.loads(body)
    except ValueError:
        data = {}
    if not isinstance(data, dict):
        data = {}
    message = str(data.get("message") or body[:300].decode(errors="replace").strip() or f"HTTP {status}")
    seconds = (data.get("details") or {}).get("retryAfterSeconds") if isinstance(data.get("details"), dict) else None
    return ApiError(
        status,
        str(data.get("reason") or _REASONS.get(status, f"Http{status}")),
        message,
        retry_after_s=_number(headers.get("Retry-After")) or _number(seconds),
        where=where,
    )


_REASONS = {
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    409: "Conflict",
    410: "Gone",
    429: "TooManyRequests",
}


def _number(text: object) -> float | None:
    try:
        value = float(str(text))
    except ValueError:
        return None
    return value if 0 <= value < 3600 else None
