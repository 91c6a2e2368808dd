"""Calls to a cloud's metadata service, and the times in its answers."""

from __future__ import annotations

import http.client
import re
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

_ISO_TIME = re.compile(r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d)([.,]\d+)?\s*(Z|z|[+-]\d\d:?\d\d)?")


class MetadataError(Exception):
    """The service gave no usable answer. The next call may succeed."""


class MetadataService:
    """Keeps one connection open, so that five calls per second are cheap."""

    def __init__(self, endpoint: str, timeout_s: float) -> None:
        self._address = urlsplit(endpoint).netloc
        self._timeout_s = timeout_s
        self._connection: http.client.HTTPConnection | None = None

    def call(self, method: str, path: str, headers: dict[str, str]) -> tuple[http.client.HTTPResponse, bytes]:
        """Make a call; repeat it on a new connection when the service has closed the old one.

        Raises MetadataError.
        """
        for connection in (self._connection, None):
            if connection is None:
                connection = self._connection = http.client.HTTPConnection(self._address, timeout=self._timeout_s)
            try:
                connection.request(method, path, headers=headers)
                response = connection.getresponse()
                return response, response.read()
            except (OSError, http.client.HTTPException, ValueError) as error:
                connection.close()
                self._connection, failed = None, error
        raise MetadataError(f"{method} {path}: {failed!r}")


def epoch_seconds(text: object) -> float | None:
    """A time as clouds and their simulators write it, as epoch seconds; None if it is no time.

    ISO 8601 with any fraction and any offset (`2017-09-18T08:22:00.25Z`, `…+02:00`; UTC if it has none), and the form
    of mail (`Mon, 19 Sep 2016 18:29:47 GMT`, also without the weekday).
    """
    if not isinstance(text, str):
        return None
    try:
        match = _ISO_TIME.fullmatch(text.strip())
        if match is None:
            at = parsedate_to_datetime(text)
            return (at if at.tzinfo else at.replace(tzinfo=timezone.utc)).timestamp()
        date, time, fraction, offset = match.groups()
        offset = "+00:00" if offset in (None, "Z", "z") else offset
        at = datetime.strptime(f"{date}T{time}{offset.replace(':', '')}", "%Y-%m-%dT%H:%M:%S%z")
        return at.timestamp() + (float(f"0.{fraction[1:]}") if fraction else 0.0)
    except (ValueError, TypeError, OverflowError):  # Python 3.9 raises TypeError for what is no date
        return None
