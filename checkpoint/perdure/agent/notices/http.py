"""HTTP calls to a cloud's metadata service."""

from __future__ import annotations

import http.client
from urllib.parse import urlsplit


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
