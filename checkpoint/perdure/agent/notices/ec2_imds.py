"""EC2's instance metadata service, version 2: spot interruptions and rebalance recommendations. `poller` polls it.

https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html
"""

from __future__ import annotations

import json
from datetime import datetime, timezone

from perdure.agent.notices.http import MetadataError, MetadataService

TOKEN_TTL_S = 21600
TIMEOUT_S = 2.0
INTERRUPTION_PATH = "/latest/meta-data/spot/instance-action"
REBALANCE_PATH = "/latest/meta-data/events/recommendations/rebalance"


class ImdsV2:
    """A `NoticeSource`."""

    name = "imds-v2"

    def __init__(self, endpoint: str) -> None:
        self._service = MetadataService(endpoint, TIMEOUT_S)
        self._token: str | None = None

    def interruption(self) -> tuple[str, float] | None:
        body = self._get(INTERRUPTION_PATH)
        if body is None:
            return None
        try:
            notice = json.loads(body)
            return str(notice["action"]), epoch_seconds(notice["time"])
        except (ValueError, KeyError, TypeError) as error:
            raise MetadataError(f"an unreadable instance action: {error!r}") from None

    def is_rebalance_recommended(self) -> bool:
        return self._get(REBALANCE_PATH) is not None

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


def epoch_seconds(text: str) -> float:
    """`2017-09-18T08:22:00Z` as epoch seconds; a fraction is kept. Raises ValueError."""
    whole, _, fraction = text.rstrip("Z").partition(".")
    at = datetime.strptime(whole, "%Y-%m-%dT%H:%M:%S").replace(tzinfo=timezone.utc)
    return at.timestamp() + (float("0." + fraction) if fraction else 0.0)
