"""Calls of a cloud's metadata service, whichever cloud it is."""

from __future__ import annotations

import http.client
from urllib.parse import urlsplit


class MetadataError(Exception):
    """The service gave no usable answer; the next call may."""


class MetadataService:
    """One connection is kept open: asking five times a second must cost nothing."""

    def __init__(self, endpoint: str, timeout_s: float) -> None:
        self._address = urlsplit(endpoint).netloc
        self._timeout_s = timeout_s
        self._connection: http.client.HTTPConnection | None = None

    def call(self, method: str, path: str, headers: dict[str, str]) -> tuple[http.client.HTTPResponse, bytes]:
        """A kept connection may have been closed by the service meanwhile: then the call is made on a new one.

        Raises MetadataError.
        """
        for connection in (self._connection, None):
            if connection is None:
                connection = self._connection = http.client.HTTPConnection(self._address, timeout=self._timeout_s)
            try:
                connection.request(method, path, headers=headers)
                answer = connection.getresponse()
                return answer, answer.read()
            except (OSError, http.client.HTTPException, ValueError) as error:
                connection.close()
                self._connection, failed = None, error
        raise MetadataError(f"{method} {path}: {failed!r}")
