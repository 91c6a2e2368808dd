"""The remote control of a running rclone, over its unix socket."""

from __future__ import annotations

import http.client
import json
import socket
from dataclasses import dataclass
from typing import Any


class RcError(Exception):
    """rclone refused a control call, or does not respond."""


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


@dataclass(frozen=True)
class Rc:
    """rclone's remote control over a unix socket in a directory that only this user can enter."""

    socket_path: str

    def call(self, method: str, *, timeout_s: float = 2.0, **params: object) -> dict[str, Any]:
        """Call `method`; returns its result. Raises RcError with rclone's error message."""
        connection = _UnixConnection(self.socket_path, timeout_s)
        try:
            connection.request("POST", f"/{method}", json.dumps(params), {"Content-Type": "application/json"})
            response = connection.getresponse()
            result: dict[str, Any] = json.loads(response.read() or b"{}")
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise RcError(f"rclone does not respond to {method}: {error}") from error
        finally:
            connection.close()
        if response.status != http.client.OK:
            raise RcError(str(result.get("error", f"{method}: HTTP {response.status}")))
        return result
