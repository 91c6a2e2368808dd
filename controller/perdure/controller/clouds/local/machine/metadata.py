"""The metadata service of an instance: EC2's IMDSv2, as far as the agent and common clients need it.

A PUT with a time to live returns a token, which every GET must carry.
Paths and responses: docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-data-categories.html
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping

TOKEN_PATH = "/latest/api/token"  # noqa: S105
DATA_PATH = "/latest/meta-data"
USER_DATA_PATH = "/latest/user-data"
TTL_HEADER = "x-aws-ec2-metadata-token-ttl-seconds"
TOKEN_HEADER = "x-aws-ec2-metadata-token"  # noqa: S105
MAX_TTL_S = 21600
MAX_REQUEST = 16 * 1024
PHRASES = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 405: "Method Not Allowed"}


class Metadata:
    """The service's state. `values`: the categories of metadata, and `user-data` if there is some.

    `now` is monotonic time in seconds, for the expiry of tokens only.
    """

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = dict(values)
        self._user_data = self._values.pop("user-data", None)
        self._tokens: dict[str, float] = {}

    def mark_for_interruption(self, *, at: float, deadline: float) -> None:
        """Announce that the instance is preempted at `deadline`. Epoch seconds; the service returns whole ones."""
        when, noticed = iso(deadline), iso(at)
        self._values["spot/instance-action"] = f'{{"action": "terminate", "time": "{when}"}}'
        self._values["spot/termination-time"] = when
        self._values["events/recommendations/rebalance"] = f'{{"noticeTime": "{noticed}"}}'

    def respond(self, method: str, path: str, headers: Mapping[str, str], now: float) -> tuple[int, str]:
        """Status and body. Header names are in lower case."""
        path = path.partition("?")[0]
        if path == TOKEN_PATH:
            return self._new_token(headers, now) if method == "PUT" else (405, "")
        if method != "GET":
            return 405, ""
        if self._tokens.get(headers.get(TOKEN_HEADER, ""), -math.inf) <= now:
            return 401, ""
        return self._find(path)

    def _new_token(self, headers: Mapping[str, str], now: float) -> tuple[int, str]:
        ttl = headers.get(TTL_HEADER, "")
        if not (ttl.isascii() and ttl.isdecimal() and 1 <= int(ttl) <= MAX_TTL_S):
            return 400, ""
        self._tokens = {token: until for token, until in self._tokens.items() if until > now}
        token = os.urandom(24).hex()
        self._tokens[token] = now + int(ttl)
        return 200, token

    def _find(self, path: str) -> tuple[int, str]:
        if path == USER_DATA_PATH and self._user_data is not None:
            return 200, self._user_data
        if path != DATA_PATH and not path.startswith(DATA_PATH + "/"):
            return 404, ""
        name = path[len(DATA_PATH) :].strip("/")
        if name in self._values:
            return 200, self._values[name]
        folder = f"{name}/" if name else ""
        below = {key[len(folder) :] for key in self._values if key.startswith(folder)}
        listing = sorted({f"{head}/" if slash else head for head, slash, _ in (key.partition("/") for key in below)})
        return (200, "\n".join(listing)) if listing else (404, "")


class HttpConnection:
    """One client's connection: bytes in, bytes out."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata
        self._received = b""
        self.is_closed = False

    def feed(self, received: bytes, now: float) -> bytes:
        """Responses to all requests that are complete now."""
        self._received += received
        responses = b""
        while not self.is_closed and (request := self._next_request()) is not None:
            responses += self._respond(*request, now)
        return responses

    def _next_request(self) -> tuple[str, dict[str, str]] | None:
        """The request line and headers of the next complete request; its body is skipped. None if there is none."""
        head, end, rest = self._received.partition(b"\r\n\r\n")
        if not end:
            self.is_closed = len(self._received) > MAX_REQUEST
            return None
        line, *fields = head.decode("latin-1").split("\r\n")
        headers = {name.strip().lower(): value.strip() for name, _, value in (field.partition(":") for field in fields)}
        length = headers.get("content-length", "0")
        if not (length.isascii() and length.isdecimal() and int(length) <= MAX_REQUEST):
            self.is_closed = True
            return None
        if len(rest) < int(length):
            return None
        self._received = rest[int(length) :]
        return line, headers

    def _respond(self, line: str, headers: dict[str, str], now: float) -> bytes:
        words = line.split(" ")
        if len(words) == 3:
            status, body = self._metadata.respond(words[0], words[1], headers, now)
        else:
            status, body = 400, ""
        connection = headers.get("connection", "").lower()
        self.is_closed = (
            connection == "close" or status == 400 or (words[-1] == "HTTP/1.0" and connection != "keep-alive")
        )
        content = body.encode()
        connection_header = "close" if self.is_closed else "keep-alive"
        return (
            f"HTTP/1.1 {status} {PHRASES[status]}\r\nServer: EC2ws\r\nContent-Type: text/plain\r\n"
            f"Content-Length: {len(content)}\r\nConnection: {connection_header}\r\n\r\n"
        ).encode() + content


def iso(epoch_s: float) -> str:
    """As EC2 writes times: UTC, whole seconds."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(epoch_s))
