"""EC2's instance metadata service, version 2: interruptions, rebalance recommendations, maintenance. `poller` polls it.

https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/viewing_scheduled_events.html

Maintenance is announced days ahead. Until its last two minutes it is a reason to move, as a rebalance recommendation;
then it is an interruption.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

from perdure.agent.notices.metadata_service import MetadataError, MetadataService, epoch_seconds

TOKEN_TTL_S = 21600
TIMEOUT_S = 2.0
INTERRUPTION_PATH = "/latest/meta-data/spot/instance-action"
MAINTENANCE_PATH = "/latest/meta-data/events/maintenance/scheduled"
MAINTENANCE_INTERVAL_S = 15.0
NOTICE_S = 120.0
REBALANCE_PATH = "/latest/meta-data/events/recommendations/rebalance"


class ImdsV2:
    """A `NoticeSource`."""

    name = "imds-v2"

    def __init__(self, endpoint: str) -> None:
        self._service = MetadataService(endpoint, TIMEOUT_S)
        self._token: str | None = None
        self._assumed_deadline: float | None = None  # of an interruption without a readable time
        self._maintenance: list[tuple[str, float]] = []
        self._maintenance_read_at: float | None = None

    def interruption(self) -> tuple[str, float] | None:
        """A spot interruption, or else maintenance that is about to begin."""
        body = self._get(INTERRUPTION_PATH)
        if body is None:
            imminent = [(at, code) for code, at in self._maintenance if at <= time.time() + NOTICE_S]
            at, code = min(imminent, default=(0.0, ""))
            return (code, at) if code else None
        try:
            notice = json.loads(body)
            action, deadline = str(notice["action"]), epoch_seconds(notice.get("time"))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise MetadataError(f"an unreadable instance action: {error!r}") from None
        return action, self._assume_deadline() if deadline is None else deadline

    def is_rebalance_recommended(self) -> bool:
        self._read_maintenance()
        return bool(self._maintenance) or self._get(REBALANCE_PATH) is not None

    def _assume_deadline(self) -> float:
        """The usual time of a notice after it was first read."""
        if self._assumed_deadline is None:
            self._assumed_deadline = time.time() + NOTICE_S
        return self._assumed_deadline

    def _read_maintenance(self) -> None:
        """Update the active events, now and then."""
        now = time.monotonic()
        if self._maintenance_read_at is not None and now - self._maintenance_read_at < MAINTENANCE_INTERVAL_S:
            return
        self._maintenance_read_at = now
        body = self._get(MAINTENANCE_PATH)
        try:
            self._maintenance = list(_active_events(json.loads(body) if body else []))
        except (ValueError, TypeError, AttributeError) as error:
            raise MetadataError(f"unreadable maintenance events: {error!r}") from None

    def _get(self, path: str) -> bytes | None:
        """The document at `path`, or None when there is none. A rejected token is renewed once."""
        for _ in range(2):
            if self._token is None:
                self._token = self._new_token()
            status, body = self._call("GET", path, {"X-aws-ec2-metadata-token": self._token})
            if status == 200:
                return body
            if status == 404:
                return None
            if status != 401:
                raise MetadataError(f"{path} answered {status}")
            self._token = None
        raise MetadataError(f"{path} refuses a new token")

    def _new_token(self) -> str:
        status, body = self._call(
            "PUT", "/latest/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_TTL_S)}
        )
        if status != 200:
            raise MetadataError(f"the token request answered {status}")
        return body.decode("latin-1")

    def _call(self, method: str, path: str, headers: dict[str, str]) -> tuple[int, bytes]:
        response, body = self._service.call(method, path, headers)
        return response.status, body


def _active_events(reported: object) -> Iterator[tuple[str, float]]:
    """(action, begin in epoch seconds) of each event that is neither completed nor canceled."""
    if not isinstance(reported, list):
        raise TypeError(f"{type(reported).__name__} is no list")
    for event in reported:
        at = epoch_seconds(event.get("NotBefore"))
        if at is not None and event.get("State", "active") == "active":
            code = str(event.get("Code"))
            yield "stop" if code in ("instance-stop", "instance-retirement") else "reboot", at
